"""Provenance of a run, as a Mermaid flowchart.

Source: Mermaid documentation, "Flowcharts - Basic Syntax": special characters are written as entities, `#quot;`.
"""

from __future__ import annotations

import re

from windlass.runs.provenance.graph import ProvenanceGraph, ProvenanceNode

__all__ = ["mermaid"]

_UNSAFE = re.compile(r"[^A-Za-z0-9 .,:/@=_+()-]")
_DIGEST_LETTERS = 12


def mermaid(chain: ProvenanceGraph) -> str:
    """Return a left-to-right flowchart with one line per node and edge, and escaped labels."""
    names = {node.id: f"n{number}" for number, node in enumerate(chain.nodes)}
    lines = ["flowchart LR", "    accTitle: " + _plain(f"Provenance of {chain.run}")]
    lines += [f'    {names[node.id]}["{_label(node)}"]' for node in chain.nodes]
    lines += [f"    {names[edge.before]} --> {names[edge.after]}" for edge in chain.edges]
    return "\n".join(lines) + "\n"


def _label(node: ProvenanceNode) -> str:
    what, _, content = node.digest.partition(":")
    short = [f"{what}:{content[:_DIGEST_LETTERS]}"] if content else []
    return "<br>".join(_escaped(line) for line in (f"{node.kind}: {node.title}", *short, *node.details))


def _escaped(text: str) -> str:
    """Escape Mermaid's syntax as entities, and replace unprintable characters with blanks."""
    return _UNSAFE.sub(lambda found: f"#{ord(found.group())};" if found.group().isprintable() else " ", text)


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9 ._-]", " ", text)
