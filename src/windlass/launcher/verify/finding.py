"""Results of checking parts of a run."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from windlass.core.dataclass import dataclass

__all__ = ["Finding", "ProvenanceLink", "Status", "broken_links"]

Status = Literal["ok", "changed", "failed", "skipped"]


class ProvenanceLink(StrEnum):
    """Part of a run's provenance; `record` is the journal."""

    RECORD = "record"
    CODE = "code"
    ENVIRONMENT = "environment"
    IMAGE = "image"
    DATA = "data"
    PARAMETERS = "parameters"
    HARDWARE = "hardware"
    OUTPUTS = "outputs"


_LINK_OF = {
    "journal": ProvenanceLink.RECORD,
    "plan": ProvenanceLink.PARAMETERS,
    "checkpoint": ProvenanceLink.OUTPUTS,
    "metric": ProvenanceLink.OUTPUTS,
    "run": ProvenanceLink.OUTPUTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of checking one part of a run.

    Attributes:
        what: name of the part, such as `code`, `data prompts` or `outputs train`.
        status: `changed`: its source has changed, but the pinned content still exists.
        files: names of changed files, if known.
    """

    what: str
    status: Status
    message: str
    files: tuple[str, ...] = ()

    @property
    def link(self) -> ProvenanceLink:
        """Return the part of the provenance to which the finding belongs."""
        first = self.what.partition(" ")[0]
        return _LINK_OF.get(first) or ProvenanceLink(first)

    @property
    def is_broken(self) -> bool:
        """Return whether this part differs from its record."""
        return self.status in ("failed", "changed")


def broken_links(findings: Sequence[Finding]) -> tuple[ProvenanceLink, ...]:
    """Return the parts that differ from their record, in order."""
    broken = {finding.link for finding in findings if finding.is_broken}
    return tuple(link for link in ProvenanceLink if link in broken)
