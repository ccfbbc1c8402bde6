"""Code pin: the tree of files that a run executes."""

from __future__ import annotations

from typing import Literal

from windlass.core.dataclass import dataclass

__all__ = ["NO_CODE", "SNAPSHOT_REFS", "CodeKind", "CodePin"]

CodeKind = Literal["commit", "snapshot", "in-place", "none"]
SNAPSHOT_REFS = "refs/windlass/snapshots/"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePin:
    """Immutable reference to code or, for `in-place`, a record of what was not pinned.

    Attributes:
        commit: the commit to check out; for `in-place` the commit that the edits are based on.
        tree: id of the whole tree; empty for `in-place`, whose files may change at any time.
        ref: ref that keeps a snapshot from being deleted; empty otherwise.
        subdir: the code folder inside the repository, `a/b`; empty for the root.
        remote: url of `origin`, credentials stripped.
        branch: empty on a detached head and for explicit commits.
        base: the commit that a snapshot is based on; empty if there is none.
        dirty_files: names that differed from the commit, relative to the repository's root.
    """

    kind: CodeKind
    commit: str = ""
    tree: str = ""
    ref: str = ""
    subdir: str = ""
    remote: str = ""
    branch: str = ""
    base: str = ""
    is_dirty: bool = False
    dirty_files: tuple[str, ...] = ()


NO_CODE = CodePin(kind="none")
