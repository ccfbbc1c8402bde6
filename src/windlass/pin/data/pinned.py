"""Pin of a dataset, and the folders for data on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from windlass.core.dataclass import dataclass

if TYPE_CHECKING:
    from windlass.store.local import LocalStore

__all__ = ["BuildPin", "DataPin", "DataPlaces", "no_secret"]

_IN_PLACE = ("file", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPin:
    """Immutable reference to data: its source and the digest of its content.

    Attributes:
        revision: the commit or etag that the source resolved to, if any.
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
        """Return True if the data is in the store; otherwise it is used in place."""
        return self.source.partition(":")[0] not in _IN_PLACE

    @property
    def file_name(self) -> str:
        """Return the name for a placed copy: the last part of its source."""
        path = self.source.partition("#")[0].partition("?")[0].rstrip("/")
        name = path.rpartition("/")[2].rpartition(":")[2].partition("@")[0]
        return name if name.strip(".") and len(name) < 200 else self.name


def no_secret(name: str) -> str:
    """Return an empty string, for use where there is no vault."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPin:
    """Pin of prepared data before a launch: its build's key, and what is known about it at the site.

    Attributes:
        code: digest of the code that the build runs.
        is_hit: whether it existed when the plan was made.
        digest: of its content, if it is a hit; by the same rule as for a `file:` folder.
        size_bytes, num_files: actual for a hit, otherwise estimates from the source that `expected` names.
        expected: `last build` of data of this name, or its `inputs`; empty for a hit or if nothing is known.
    """

    name: str
    key: str
    code: str = ""
    is_hit: bool = False
    digest: str = ""
    size_bytes: int = 0
    num_files: int = 0
    expected: Literal["", "last build", "inputs"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlaces:
    """Folders for data on this machine, below one home.

    Attributes:
        placed: folder of read-only trees that jobs read.
        digests: cache of digests by file times.
        runs: folder of runs, for `run:` sources.
        find_secret: returns the user's secret of a name, empty if there is none; called only if a source needs a token
            that is not in the environment.
    """

    store: LocalStore
    placed: Path
    digests: Path
    runs: Path
    find_secret: Callable[[str], str] = no_secret

    @classmethod
    def of(cls, home: Path, *, find_secret: Callable[[str], str] = no_secret) -> DataPlaces:
        """Return the folders for data in a home; creates nothing."""
        from windlass.store.local import LocalStore  # lazy: most runs pin only files

        cache = home / "cache"
        return cls(
            store=LocalStore.of(home),
            placed=cache / "data",
            digests=cache / "digests",
            runs=home / "runs",
            find_secret=find_secret,
        )
