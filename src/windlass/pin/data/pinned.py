"""The pin of a dataset, and where data is kept on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from windlass.core.dataclass import dataclass

if TYPE_CHECKING:
    from windlass.store import LocalStore

__all__ = ["BuildPin", "DataPin", "DataPlaces", "no_secret"]

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
        """Return True when its bytes are in the store; else they are used where they are."""
        return self.source.partition(":")[0] not in _IN_PLACE

    @property
    def file_name(self) -> str:
        """Return the name of a placed copy: the last part of its source."""
        path = self.source.partition("#")[0].partition("?")[0].rstrip("/")
        name = path.rpartition("/")[2].rpartition(":")[2].partition("@")[0]
        return name if name.strip(".") and len(name) < 200 else self.name


def no_secret(name: str) -> str:
    """Return nothing: there is no vault to look in."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPin:
    """Prepared data before a launch: named by the key of its build, and what is known of it at the place.

    Attributes:
        code: digest of the code that the build runs.
        is_hit: it was there when the plan was made.
        digest: of its content, where it is a hit; the same rule as for a folder that is named by `file:`.
        size_bytes, num_files: of a hit; else what is to be expected, where `expected` says what that is.
        expected: `last build` of data of this name, or its `inputs`; empty: nothing is known, or it is a hit.
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
    """Folders of data on this machine, below one home.

    Attributes:
        placed: folder of read-only trees that jobs read.
        digests: cache of digests by file times.
        runs: folder of runs, for `run:` sources.
        find_secret: returns the user's secret of a name, empty if there is none; asked only where a source needs a token
            that is not in the environment.
    """

    store: LocalStore
    placed: Path
    digests: Path
    runs: Path
    find_secret: Callable[[str], str] = no_secret

    @classmethod
    def of(cls, home: Path, *, find_secret: Callable[[str], str] = no_secret) -> DataPlaces:
        """Return the places of a home folder; creates nothing."""
        from windlass.store import LocalStore  # lazy: most runs pin only files

        cache = home / "cache"
        return cls(
            store=LocalStore.of(home),
            placed=cache / "data",
            digests=cache / "digests",
            runs=home / "runs",
            find_secret=find_secret,
        )
