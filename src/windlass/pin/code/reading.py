"""Reading of files in a pinned tree without a checkout, even if a dry plan stored no snapshot."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.pin.code.git import Git, Repository, open_repository, unquote
from windlass.pin.code.pinned import CodePin
from windlass.pin.code.worktree import name_some

__all__ = ["TreeFile", "TreeReader", "read_tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """Entry in a tree: mode (`100644`, `100755`, `120000`, `160000` for a submodule), object id, path."""

    mode: str
    object_id: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReader:
    """Reader of the code folder in a pinned tree; paths are relative to it."""

    git: Git
    tree: str
    subdir: str = ""

    def files(self, folder: str = "") -> list[TreeFile]:
        """Return all files below a folder, sorted, with relative paths; empty if the folder does not exist."""
        below = "/".join(part for part in (self.subdir, folder) if part not in ("", "."))
        done = self.git.call("ls-tree", "-r", f"{self.tree}:{below}" if below else self.tree)
        if done.code != 0:
            return []
        found = []
        for line in done.stdout.split("\n"):
            about, _, name = line.partition("\t")
            if name:
                mode, _, object_id = about.split()
                found.append(TreeFile(mode=mode, object_id=object_id, path=unquote(name)))
        return sorted(found, key=lambda file: os.fsencode(file.path))

    def text(self, path: str) -> str | None:
        """Return the text of a small file; None if it is missing or not a file."""
        name = f"{self.subdir}/{path}" if self.subdir else path
        done = self.git.call("cat-file", "blob", f"{self.tree}:{name}")
        return done.stdout if done.code == 0 else None


@contextlib.contextmanager
def read_tree(pin: CodePin, folder: Path, *, store: Path | None = None) -> Iterator[TreeReader]:
    """Yield a reader of a folder's pinned tree, valid inside the context. This takes a few calls of git, no checkout.

    Args:
        folder: the folder that was pinned.
        store: windlass's repository, for folders outside any repository.

    Raises:
        PreconditionError: the code runs in place, so there is no tree (`code-not-pinned`).
    """
    if pin.kind in ("in-place", "none"):
        files = f": {name_some(pin.dirty_files)}" if pin.dirty_files else ""
        raise PreconditionError(
            f"an image is built from a commit or a snapshot, but the code in {folder} is neither{files}",
            hint="commit, or use --snapshot instead of --allow-dirty",
            code="code-not-pinned",
        )
    repository = open_repository(folder)
    if repository is not None and repository.aimed.has(f"{pin.commit}^{{tree}}"):
        yield TreeReader(git=repository.aimed, tree=pin.tree, subdir=pin.subdir)
        return
    with _unstored(repository, folder, store) as (git, tree):
        yield TreeReader(git=git, tree=tree, subdir=pin.subdir)


@contextlib.contextmanager
def _unstored(repository: Repository | None, folder: Path, store: Path | None) -> Iterator[tuple[Git, str]]:
    """Recreate the snapshot that a dry plan did not store; yield git and the tree's id."""
    from windlass.pin.code.pinning import loose_repository  # lazy: a commit needs no snapshot
    from windlass.pin.code.snapshot import unstored_tree  # lazy: as above

    with contextlib.ExitStack() as stack:
        if repository is None:
            repository = stack.enter_context(loose_repository(folder, store, write=False))
        yield stack.enter_context(unstored_tree(repository))
