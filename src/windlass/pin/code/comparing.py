"""Comparison of code files, between two pins or between a pin and its folder's current content."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.pin.code.checkouts import _own_index, find_repository
from windlass.pin.code.git import Git, open_repository, unquote
from windlass.pin.code.pinned import CodePin

__all__ = ["FileChange", "changed_since", "changes_between"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """Code file that differs.

    Attributes:
        path: relative to the repository's root.
        status: `A` added, `D` deleted, `M` changed, `T` of another type.
        num_added, num_deleted: lines; -1 if not counted (in a binary file, or a comparison with a folder).
    """

    path: str
    status: str
    num_added: int = -1
    num_deleted: int = -1

    def __str__(self) -> str:
        lines = f" | +{self.num_added} -{self.num_deleted}" if self.num_added >= 0 else ""
        return f"{self.status} {self.path}{lines}"


def changed_since(
    pin: CodePin, folder: Path, *, root: Path | None = None, store: Path | None = None
) -> list[FileChange]:
    """Return the files that differ from the pin, including untracked files that are not ignored. Read-only.

    Args:
        folder: the folder that was pinned; its repository holds the commit.
        root: a checkout to compare instead, where new files are ignored.
        store: windlass's repository, for snapshots of folders outside any repository.

    Raises:
        NotFoundError: the folder does not exist, or the commit is in neither repository.
    """
    folder = folder.expanduser().absolute()
    present = open_repository(folder) if root is None else None  # a checkout can outlive its source folder
    own = present.toplevel if present is not None and present.toplevel is not None else folder
    repository, _ = find_repository(pin, folder, store)
    with _own_index(repository, root or own, is_exact=pin.kind == "snapshot") as git:
        git.text("read-tree", "--no-sparse-checkout", pin.commit)
        git.call("update-index", "-q", "--refresh")
        told = git.lines("diff-files", "--name-status", "--ignore-submodules=all")
        found = [_change(line) for line in told]
        others = git.lines("ls-files", "--others", "--exclude-standard") if root is None else []
        found += [FileChange(path=unquote(name), status="A") for name in others]
    return sorted(found, key=lambda change: change.path)


def changes_between(
    before: CodePin, after: CodePin, folder: Path, *, store: Path | None = None
) -> list[FileChange] | None:
    """Return the files that differ between two pins, with line counts; None if no local repository has both."""
    for git in _repositories(folder, store):
        if git.read_commit(before.commit) is not None and git.read_commit(after.commit) is not None:
            pair = ("-r", "--no-renames", before.commit, after.commit)
            lines = dict(_counted(line) for line in git.lines("diff-tree", "--numstat", *pair))
            told = [_change(line) for line in git.lines("diff-tree", "--name-status", *pair)]
            return [
                FileChange(
                    path=change.path,
                    status=change.status,
                    num_added=lines.get(change.path, (-1, -1))[0],
                    num_deleted=lines.get(change.path, (-1, -1))[1],
                )
                for change in told
            ]
    return None


def _repositories(folder: Path, store: Path | None) -> Iterator[Git]:
    """Yield git on the folder's repository, on windlass's store, and on both together, if they exist."""
    found = None
    with contextlib.suppress(WindlassError):
        found = open_repository(folder.expanduser().absolute())
    if found is not None:
        yield found.aimed
    if store is not None and (store / "HEAD").is_file():
        ours = open_repository(store.absolute())
        if ours is not None:
            yield ours.aimed
            if found is not None:
                yield ours.aimed.aimed(GIT_ALTERNATE_OBJECT_DIRECTORIES=str(found.objects))


def _change(line: str) -> FileChange:
    status, _, name = line.partition("\t")
    return FileChange(path=unquote(name), status=status[:1])


def _counted(line: str) -> tuple[str, tuple[int, int]]:
    added, deleted, name = line.split("\t", 2)
    return unquote(name), (int(added), int(deleted)) if added != "-" else (-1, -1)
