"""What a look at one part of a run found, and which link of its chain that part is."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from windlass.core.dataclass import dataclass

__all__ = ["Finding", "ProvenanceLink", "Status", "broken_links"]

Status = Literal["ok", "changed", "failed", "skipped"]


class ProvenanceLink(StrEnum):
    """The links of the chain, in its order; `record` is what was written down of it."""

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
    """The verdict on one part of a run.

    Attributes:
        what: the part: `code`, `data prompts`, `outputs train`.
        status: `changed`: what it was taken from is another now, and what was pinned is still there.
        files: names of the files that are not as they were, as far as they are known.
    """

    what: str
    status: Status
    message: str
    files: tuple[str, ...] = ()

    @property
    def link(self) -> ProvenanceLink:
        """The link of the chain that it belongs to."""
        first = self.what.partition(" ")[0]
        return _LINK_OF.get(first) or ProvenanceLink(first)

    @property
    def is_broken(self) -> bool:
        """Whether the chain does not hold here."""
        return self.status in ("failed", "changed")


def broken_links(findings: Sequence[Finding]) -> tuple[ProvenanceLink, ...]:
    """The links that do not hold, in the order of the chain."""
    broken = {finding.link for finding in findings if finding.is_broken}
    return tuple(link for link in ProvenanceLink if link in broken)
