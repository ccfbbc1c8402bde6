"""Checkout for one run: the pinned tree in a new folder, which later edits do not affect."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.names import new_token
from windlass.core.process import Completed
from windlass.pin.code.git import Commit, Git, Repository, last_lines, open_repository, unquote
from windlass.pin.code.pinned import CodePin
from windlass.pin.code.worktree import find_submodule, index_gitlinks, name_some

__all__ = ["checkout", "find_repository", "resolve_code_folder"]

_LFS_PROCESS = ("filter.lfs.process=git-lfs filter-process",)
_LFS_SETTINGS = (
    "filter.lfs.smudge=git-lfs smudge -- %f",
    "filter.lfs.clean=git-lfs clean -- %f",
    "filter.lfs.required=true",
)
_NO_LFS_SETTINGS = ("filter.lfs.process=", "filter.lfs.smudge=", "filter.lfs.required=false")


def resolve_code_folder(pin: CodePin, folder: Path, destination: Path) -> Path:
    """Return the path of a run's code: below `destination`, or `folder` itself if the code runs in place."""
    if pin.kind in ("in-place", "none"):
        return folder.expanduser().absolute()
    return destination / pin.subdir if pin.subdir else destination


def checkout(
    pin: CodePin, folder: Path, destination: Path, *, store: Path | None = None, repository: Repository | None = None
) -> Path:
    """Write the pinned tree to `destination` atomically; return the code folder.

    Includes executable bits, symbolic links, submodules and LFS files, but no `.git`. Files have the commit's time.
    Idempotent: an existing checkout of the same tree is kept. For `in-place` nothing is written.

    Args:
        folder: the folder that was pinned; its repository holds the commit.
        store: windlass's repository, for snapshots of folders outside any repository.
        repository: the folder's repository, if the caller has opened it.

    Raises:
        NotFoundError: the commit is in neither repository.
        PreconditionError: `destination` holds something else, or git cannot write the tree.
    """
    code_folder = resolve_code_folder(pin, folder, destination)
    if pin.kind in ("in-place", "none"):
        return code_folder
    repository, commit = find_repository(pin, folder.expanduser().absolute(), store, repository)
    destination = destination.absolute()
    if destination.exists() and any(destination.iterdir()):
        _check_same(repository, pin, destination)
        return code_folder
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{new_token()[:12]}.tmp")
    try:
        temporary.mkdir()
        _write_tree(repository, pin.commit, temporary, is_exact=pin.kind == "snapshot")
        _set_times(temporary, commit.time_s)
        os.rename(temporary, destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return code_folder


def find_repository(
    pin: CodePin, folder: Path, store: Path | None, opened: Repository | None = None
) -> tuple[Repository, Commit]:
    """Return the repository that has the pinned commit (the folder's, or else windlass's store), and the commit."""
    candidates = [folder] if folder.is_dir() else []
    if store is not None and (store / "HEAD").is_file():
        candidates.append(store.absolute())
    for candidate in candidates:
        found = opened if opened is not None and candidate == folder else open_repository(candidate)
        commit = found.aimed.read_commit(pin.commit) if found is not None else None
        if found is not None and commit is not None:
            return found, commit
    raise NotFoundError(
        f"commit {pin.commit[:12]} is not in the repository at {folder}",
        hint="fetch it (`git fetch --all`; `git fetch --unshallow` for a shallow clone), or launch the current tree",
        code="revision-not-found",
    )


def _write_tree(repository: Repository, commit: str, destination: Path, *, is_exact: bool) -> None:
    with _own_index(repository, destination, is_exact=is_exact) as git:
        done = git.call("read-tree", "--no-sparse-checkout", "--reset", "-u", commit)
        if done.code != 0:
            raise _explain(done, commit)
        # At this point a submodule is an empty folder, and git creates no other empty folders.
        for link in index_gitlinks(git) if _has_empty_folder(destination) else ():
            submodule = find_submodule(repository, commit, link)
            _write_tree(submodule, link.commit, destination / link.path, is_exact=False)


@contextlib.contextmanager
def _own_index(repository: Repository, destination: Path, *, is_exact: bool) -> Iterator[Git]:
    """Yield git with `destination` as its working tree and a new, empty index."""
    destination.mkdir(parents=True, exist_ok=True)
    lfs = _LFS_PROCESS + _LFS_SETTINGS if shutil.which("git-lfs") is not None else _NO_LFS_SETTINGS
    with tempfile.TemporaryDirectory(prefix="windlass-index-") as temporary:
        git = repository.aimed.at(destination).set("core.fileMode=true", "core.bare=false", *lfs)
        git = git.aimed(GIT_WORK_TREE=str(destination), GIT_INDEX_FILE=str(Path(temporary) / "index"))
        if is_exact:
            git = _without_conversion(git, repository, Path(temporary) / "git")
        yield git


def _without_conversion(git: Git, repository: Repository, skeleton: Path) -> Git:
    """Yield git on an empty repository that shares the objects, and whose attributes override those in the tree.

    A snapshot has the bytes that were on disk, so line endings, `ident` and encodings must not be applied again; filters
    (LFS, encryption) still are, from the repository's configuration.
    """
    for name in ("info", "refs", "objects"):
        (skeleton / name).mkdir(parents=True)
    (skeleton / "HEAD").write_text("ref: refs/heads/none\n")
    (skeleton / "info" / "attributes").write_text("* -text -ident !eol !working-tree-encoding\n")
    is_sha1 = repository.git.text("rev-parse", "--show-object-format").strip() == "sha1"
    extensions = "" if is_sha1 else "[extensions]\n\tobjectformat = sha256\n"
    (skeleton / "config").write_text(f"[core]\n\trepositoryformatversion = {0 if is_sha1 else 1}\n{extensions}")
    own = repository.common_dir / "config"
    borrowed = git.aimed(GIT_DIR=str(skeleton), GIT_OBJECT_DIRECTORY=str(repository.objects))
    return borrowed.including(own) if own.is_file() else borrowed


def _explain(done: Completed, commit: str) -> PreconditionError:
    last = last_lines(done.stderr)
    if "No space left" in last:
        return PreconditionError(
            f"no space left for the checkout of {commit[:12]}: {last}", hint="windlass gc", code="disk-full"
        )
    return PreconditionError(
        f"git could not check out {commit[:12]}: {last}",
        hint="run `git fsck`, and `git lfs fetch` if LFS is used",
        code="git-failed",
    )


def _check_same(repository: Repository, pin: CodePin, destination: Path) -> None:
    """Raise unless the tracked files in `destination` are exactly those of the pinned tree."""
    with _own_index(repository, destination, is_exact=pin.kind == "snapshot") as git:
        git.text("read-tree", "--no-sparse-checkout", pin.commit)
        git.call("update-index", "-q", "--refresh")
        changed = [unquote(name) for name in git.lines("diff-files", "--name-only", "--ignore-submodules=all")]
    if changed:
        raise PreconditionError(
            f"{destination} exists and is not a checkout of {pin.commit[:12]}: {name_some(changed)}",
            hint="remove that folder, or start a new run",
            code="already-exists",
        )


def _has_empty_folder(folder: Path) -> bool:
    return any(not folders and not names for _, folders, names in os.walk(folder))


def _set_times(folder: Path, seconds: int) -> None:
    """Set every file's time to that of the commit, so that checkouts of one tree are identical."""
    for root, _, names in os.walk(folder):
        for name in names:
            os.utime(os.path.join(root, name), (seconds, seconds), follow_symlinks=False)
