"""What a data pin says, and where data lies on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from windlass.core.dataclass import dataclass

if TYPE_CHECKING:
    from windlass.store import LocalStore

__all__ = ["DataPin", "DataPlaces"]

_IN_PLACE = ("file", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPin:
    """An immutable reference to data: where it was, and the digest of what it held.

    Attributes:
        revision: what the source resolved to, where that says more than `source`: a commit, an etag.
    """

    name: str
    source: str
    digest: str
    size_bytes: int
    kind: Literal["file", "folder"]
    num_files: int
    revision: str = ""

    @property
    def is_stored(self) -> bool:
        """Whether its bytes are in the store; else they are used where they lie."""
        return self.source.partition(":")[0] not in _IN_PLACE

    @property
    def file_name(self) -> str:
        """What a placed copy is called: the last part of its source."""
        path = self.source.partition("#")[0].partition("?")[0].rstrip("/")
        name = path.rpartition("/")[2].rpartition(":")[2].partition("@")[0]
        return name if name.strip(".") and len(name) < 200 else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlaces:
    """Where data lies on this machine, below one home.

    Attributes:
        placed: folder of read-only trees that jobs read.
        digests: cache of digests by file times.
        runs: folder of runs, for `run:` sources.
    """

    store: LocalStore
    placed: Path
    digests: Path
    runs: Path

    @classmethod
    def of(cls, home: Path) -> DataPlaces:
        """Those of a home folder; nothing is made."""
        from windlass.store import LocalStore  # lazy: most runs pin only files

        cache = home / "cache"
        return cls(store=LocalStore.of(home), placed=cache / "data", digests=cache / "digests", runs=home / "runs")
