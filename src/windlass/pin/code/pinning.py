"""Pinning of a folder's code."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.core.files import write_atomic
from windlass.core.names import nearest
from windlass.core.phrases import count
from windlass.pin.code.git import Git, Repository, last_lines, open_repository, private_index
from windlass.pin.code.pinned import CodePin
from windlass.pin.code.worktree import WorkingTree, changed_files, check_submodules, look_at, name_some, printable

__all__ = ["pin_code", "strip_credentials"]

_EXCLUDES = [
    ".git/",
    "__pycache__/",
    "*.pyc",
    ".venv/",
    "venv/",
    ".tox/",
    ".nox/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
    ".ipynb_checkpoints/",
    "node_modules/",
    ".DS_Store",
    "*.egg-info/",
]


def pin_code(
    folder: Path,
    *,
    snapshot: bool = False,
    allow_dirty: bool = False,
    write: bool = True,
    revision: str = "",
    store: Path | None = None,
    repository: Repository | None = None,
) -> CodePin:
    """Pin the code in `folder`: a commit, an exact snapshot, or a record of an unpinned tree.

    The user's index, HEAD, branches, hooks and configuration are never touched.

    Args:
        snapshot: store a dirty tree (or a folder outside a repository) exactly.
        allow_dirty: record a dirty tree and run in place.
        write: False for a plan: nothing is written, the ids are the same.
        revision: pin this commit, branch or tag, whatever the state of the working tree.
        store: windlass's bare repository for folders outside any repository; created when needed.
        repository: the folder's repository, if the caller has opened it.

    Raises:
        NotFoundError: no such folder or revision.
        AccessError: something cannot be read, or git does not trust the repository.
        PreconditionError: the tree is dirty, there is no repository, no commit, no git.
        UsageError: options that are mutually exclusive.
    """
    if sum((snapshot, allow_dirty, bool(revision))) > 1:
        raise UsageError(
            "--snapshot, --allow-dirty and an explicit revision are mutually exclusive", hint="use one of them"
        )
    folder = folder.expanduser().absolute()
    repository = repository or open_repository(folder)
    if repository is None:
        return _pin_loose(folder, snapshot=snapshot, allow_dirty=allow_dirty, write=write, store=store)
    if revision:
        return _pin_revision(repository, folder, revision)
    if repository.toplevel is None:
        raise PreconditionError(
            f"{folder} is in a bare repository, which has no files to run",
            hint="use a clone of it, or an explicit revision",
            code="no-commit",
        )
    return _pin_working_tree(repository, snapshot=snapshot, allow_dirty=allow_dirty, write=write)


def strip_credentials(url: str) -> str:
    """Return a remote's URL without user name, password, query or fragment; `git@host:path` is unchanged."""
    if not re.match(r"[a-z][a-z0-9+.-]*://", url, re.IGNORECASE):
        return re.sub(r"\A([^/@:]+):[^/@]*@", r"\1@", url)
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0] if parts.scheme.endswith("ssh") else ""
    return urlunsplit((parts.scheme, f"{name}@{host}" if name else host, parts.path, "", ""))


def _pin_working_tree(repository: Repository, *, snapshot: bool, allow_dirty: bool, write: bool) -> CodePin:
    remote = _remote(repository.git)
    with private_index(repository) as own:
        seen = look_at(own, is_exact=snapshot)
    head, branch, changes = seen.head, seen.branch, tuple(seen.changes)
    if head and not changes:
        return _pin_commit(repository, head, branch=branch, remote=remote)
    if snapshot:
        from windlass.pin.code.snapshot import take_snapshot  # lazy: only with --snapshot

        taken = take_snapshot(repository, write=write)
        return CodePin(
            kind="snapshot",
            commit=taken.commit,
            tree=taken.tree,
            ref=taken.ref,
            subdir=repository.subdir,
            remote=remote,
            branch=branch,
            base=head,
            is_dirty=True,
            dirty_files=tuple(printable(name) for name in taken.changes),
        )
    if allow_dirty:
        return CodePin(
            kind="in-place",
            commit=head,
            subdir=repository.subdir,
            remote=remote,
            branch=branch,
            is_dirty=True,
            dirty_files=tuple(printable(name) for name in changes),
        )
    if not head:
        raise PreconditionError(
            f"the repository at {repository.git.folder} has no commit yet",
            hint="commit first, or add --snapshot (stores this exact tree)",
            code="no-commit",
        )
    raise _dirty(repository, seen)


def _dirty(repository: Repository, seen: WorkingTree) -> PreconditionError:
    names = changed_files(repository.git, seen)
    differing = count(len(names), "file differs", "files differ")
    commit = "commit them (or list files that are not code in .gitignore)" if seen.untracked else "commit them"
    if seen.submodules:
        commit += ", in the submodule first"
    return PreconditionError(
        f"{differing} from the last commit in {repository.git.folder}: {name_some(names)}",
        hint=f"{commit}, or add --snapshot (stores this exact tree) or --allow-dirty (runs in place and records it)",
        code="dirty-tree",
    )


def _pin_commit(repository: Repository, commit: str, *, branch: str = "", remote: str = "") -> CodePin:
    """Pin a commit after checking that all of it can be checked out later."""
    found = repository.aimed.read_commit(commit)
    if found is None:
        raise PreconditionError(
            f"git cannot read the commit {commit} in {repository.git.folder}", hint="git fsck", code="git-failed"
        )
    tree = found.tree
    if repository.subdir and not repository.aimed.has(f"{tree}:{repository.subdir}"):
        raise PreconditionError(
            f"commit {commit[:12]} has no folder {repository.subdir} (it is ignored, empty, or not committed)",
            hint=f"commit its files, or remove it from .gitignore in {repository.git.folder}",
            code="code-not-in-commit",
        )
    check_submodules(repository, commit)
    return CodePin(kind="commit", commit=commit, tree=tree, subdir=repository.subdir, remote=remote, branch=branch)


def _pin_revision(repository: Repository, folder: Path, revision: str) -> CodePin:
    commit = "" if revision.startswith("-") else _resolve(repository.git, revision)
    if commit:
        return _pin_commit(repository, commit, remote=_remote(repository.git))
    names = repository.git.lines("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes")
    close = nearest(revision, names)
    raise NotFoundError(
        f"no commit `{revision}` in the repository at {folder}",
        hint=f"did you mean `{close}`?"
        if close
        else "fetch it (`git fetch --all --tags`; `git fetch --unshallow` for a shallow clone)",
        code="revision-not-found",
    )


def _pin_loose(folder: Path, *, snapshot: bool, allow_dirty: bool, write: bool, store: Path | None) -> CodePin:
    """Pin a folder that is not in a repository."""
    if allow_dirty:
        return CodePin(kind="in-place", is_dirty=True)
    if not snapshot:
        raise PreconditionError(
            f"{folder} is not in a git repository, so there is no commit to pin",
            hint="add --snapshot (stores this exact tree), or `git init` and commit",
            code="no-commit",
        )
    from windlass.pin.code.snapshot import take_snapshot  # lazy: as above

    with loose_repository(folder, store, write=write) as repository:
        taken = take_snapshot(repository, write=write)
    return CodePin(kind="snapshot", commit=taken.commit, tree=taken.tree, ref=taken.ref, is_dirty=True)


@contextlib.contextmanager
def loose_repository(folder: Path, store: Path | None, *, write: bool) -> Iterator[Repository]:
    """Yield windlass's bare repository, with `folder` as its working tree."""
    with contextlib.ExitStack() as stack:
        if not write:
            store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windlass-store-")))
        if store is None:
            raise UsageError(
                f"a snapshot of {folder} needs a store, because it is in no repository", hint="set WINDLASS_HOME"
            )
        ensure_store(store)
        excludes = store / "info" / "windlass-excludes"
        if not excludes.exists():
            write_atomic(excludes, "\n".join(_EXCLUDES).encode() + b"\n")
        git = Git(folder=folder, settings=(f"core.excludesFile={excludes}",)).aimed(
            GIT_DIR=str(store), GIT_WORK_TREE=str(folder)
        )
        yield Repository(
            git=git, git_dir=store, common_dir=store, objects=store / "objects", toplevel=folder, subdir=""
        )


def ensure_store(store: Path) -> None:
    """Create windlass's bare repository; idempotent, safe for concurrent processes."""
    if (store / "HEAD").is_file():
        return
    store.mkdir(parents=True, exist_ok=True)
    Git(folder=store).text("init", "--bare", "-q", "--template=", "--object-format=sha1", str(store))
    (store / "info").mkdir(exist_ok=True)


def _resolve(git: Git, revision: str) -> str:
    """Return the id of the commit that a revision names, or an empty string."""
    found = git.call("rev-parse", "-q", "--verify", "--end-of-options", revision + "^{commit}")
    if found.code not in (0, 1, 128):
        raise PreconditionError(
            f"`git rev-parse` failed in {git.folder}: {last_lines(found.stderr)}", hint="git fsck", code="git-failed"
        )
    return found.stdout.strip() if found.code == 0 else ""


def _remote(git: Git) -> str:
    return strip_credentials(git.call("config", "--get", "remote.origin.url").stdout.strip())
