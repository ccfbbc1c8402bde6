"""Provenance of a run as a table, from code to outputs."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.cli.screen import paint, printable, table
from windlass.core.phrases import brief
from windlass.runs.provenance.graph import ProvenanceGraph, ProvenanceNode

__all__ = ["provenance_page"]

_WIDTH = 60
_DIGEST_LETTERS = 12


def provenance_page(chain: ProvenanceGraph) -> Iterator[str]:
    """Yield a line per node in chain order, with shortened digests; `--json` has them in full."""
    rows = [_row(node) for node in chain.nodes]
    lines = table(("link", "what", "digest", "more"), rows)
    yield paint(lines[0], "dim")
    yield from lines[1:]


def _row(node: ProvenanceNode) -> tuple[str, str, str, str]:
    what, _, content = node.digest.partition(":")
    digest = f"{what}:{content[:_DIGEST_LETTERS]}" if content else ""
    title = printable(brief(node.title, _WIDTH))
    return str(node.kind), title, digest, printable("; ".join(brief(detail, _WIDTH) for detail in node.details))
