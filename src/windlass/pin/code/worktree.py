"""Working trees as git sees them: changes, nested repositories, LFS pointers."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, PreconditionError
from windlass.core.phrases import count
from windlass.pin.code.git import Git, Repository, last_lines, open_repository, private_index, quote, unquote

__all__ = [
    "Gitlink",
    "WorkingTree",
    "changed_files",
    "check_lfs",
    "check_submodules",
    "find_submodule",
    "index_gitlinks",
    "list_changes",
    "list_converted",
    "look_at",
    "name_some",
    "printable",
]

_CONVERTING = re.compile(rb"(?:^|\s)(?:eol=crlf|ident|working-tree-encoding=|\[attr\])", re.MULTILINE)
_STATUS = (
    "--porcelain=v2",
    "--branch",
    "--no-ahead-behind",
    "--untracked-files=all",
    "--ignore-submodules=none",
    "--no-renames",
)
_NUM_FIELDS = {"1": 8, "u": 10, "?": 1}
"""Number of fields before the name, by kind of line; source: git-status(1), "Porcelain Format Version 2"."""
_CHANGED_SUBMODULE = re.compile(r"S.(?:M.|.U)")
"""The third field of a submodule that has modified or untracked files."""
_LFS_POINTER = "^version https://git-lfs.github.com/spec/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gitlink:
    """Submodule in a tree: its path and its commit."""

    path: str
    commit: str


def name_some(names: tuple[str, ...] | list[str], limit: int = 10) -> str:
    """Join the first names, and add the number of the others: `a, b and 3 more`."""
    shown = ", ".join(printable(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingTree:
    """State of a working tree: its commit and its changes.

    Attributes:
        head: the commit; empty before the first.
        branch: empty on a detached head.
        changes: see `list_changes`.
        untracked: the changes that are untracked files.
        submodules: the changes that are submodules with changed files.
    """

    head: str
    branch: str
    changes: list[str]
    untracked: frozenset[str] = frozenset()
    submodules: frozenset[str] = frozenset()


def list_changes(git: Git, *, is_exact: bool = False) -> list[str]:
    """Return the sorted names that differ from HEAD: staged, modified, deleted, or untracked but not ignored."""
    return look_at(git, is_exact=is_exact).changes


def look_at(git: Git, *, is_exact: bool = False) -> WorkingTree:
    """Return the state of a working tree (HEAD, branch and changes), with one call of git.

    Args:
        is_exact: include executable bits even if the repository is set to ignore them.
    """
    aimed = git.set("core.fileMode=true") if is_exact else git
    done = aimed.call("status", *_STATUS)
    if done.code != 0:
        raise PreconditionError(
            f"`git status` failed in {git.folder}: {last_lines(done.stderr)}",
            hint="run `git status` there",
            code="git-failed",
        )
    if "could not open directory" in done.stderr:
        raise AccessError(
            f"cannot read all of {git.folder}: {last_lines(done.stderr, 1).removeprefix('warning: ')}",
            hint="make it readable, or list it in .gitignore",
            code="file-unreadable",
        )
    lines = [line for line in done.stdout.split("\n") if line]
    told = dict(line.removeprefix("# ").split(" ", 1) for line in lines if line.startswith("# "))
    head, branch = told["branch.oid"], told["branch.head"]
    entries = [line.split(" ", _NUM_FIELDS[line[0]]) for line in lines if line[0] in _NUM_FIELDS]
    names = [(fields[0], unquote(fields[-1])) for fields in entries]
    return WorkingTree(
        head="" if head == "(initial)" else head,
        branch="" if branch == "(detached)" else branch,
        changes=sorted({name for _, name in names}),
        untracked=frozenset(name for kind, name in names if kind == "?"),
        submodules=frozenset(
            unquote(fields[-1]) for fields in entries if fields[0] in "1u" and _CHANGED_SUBMODULE.fullmatch(fields[2])
        ),
    )


def changed_files(git: Git, seen: WorkingTree) -> list[str]:
    """Return the sorted changes of a working tree, with changed submodules replaced by their changed files."""
    names = []
    for name in seen.changes:
        if name not in seen.submodules:
            names.append(f"{name} (untracked)" if name in seen.untracked else name)
            continue
        inner = open_repository(git.folder / name)
        if inner is None:
            names.append(name)
            continue
        with private_index(inner) as own:
            names += [f"{name}/{file}" for file in changed_files(inner.git, look_at(own))]
    return names


def list_converted(git: Git, own_attributes: Path) -> list[str]:
    """Return tracked files that differ from git's copy by design: line endings, `ident`, encodings, not filters."""
    listed = git.lines("ls-files", "--cached", "--others", "--exclude-standard", "--", ":(glob)**/.gitattributes")
    files = [own_attributes, *(git.folder / unquote(name) for name in listed)]
    if not any(path.is_file() and _CONVERTING.search(path.read_bytes()) for path in files):
        return []
    names = b"\n".join(quote(unquote(name)) for name in git.lines("ls-files"))
    found = set()
    for line in git.lines("check-attr", "--stdin", "eol", "ident", "working-tree-encoding", stdin=names + b"\n"):
        name, attribute, value = line.rsplit(": ", 2)
        if value not in ("unspecified", "unset", "lf") or (attribute, value) == ("eol", "crlf"):
            found.add(unquote(name))
    return sorted(found)


def index_gitlinks(git: Git) -> list[Gitlink]:
    """Return the submodules in the index that `git` uses."""
    return [_gitlink(line) for line in git.lines("ls-files", "--stage") if line.startswith("160000 ")]


def find_submodule(repository: Repository, tree: str, link: Gitlink) -> Repository:
    """Return a submodule's repository that has the commit of `link`.

    Raises:
        PreconditionError: it is not initialised, or the commit is missing.
    """
    for folder in _candidates(repository, tree, link.path):
        found = open_repository(folder)
        if found is not None and found.aimed.has(link.commit + "^{commit}"):
            return found
    raise PreconditionError(
        f"submodule `{printable(link.path)}` has no commit {link.commit[:12]} here",
        hint="git submodule update --init --recursive",
        code="submodule-missing",
    )


def check_submodules(repository: Repository, tree: str) -> None:
    """Raise unless every submodule below `tree` can be checked out, recursively, LFS files included."""
    entries = repository.aimed.lines("ls-tree", "-r", tree)
    if any(line.endswith((".gitattributes", '.gitattributes"')) for line in entries):
        check_lfs(repository.aimed, tree)
    for link in (_gitlink(line, commit=2) for line in entries if line.startswith("160000 ")):
        check_submodules(find_submodule(repository, tree, link), link.commit)


def check_lfs(git: Git, tree: str) -> None:
    """Raise if `tree` has LFS pointer files, and git-lfs is not installed to fetch their content."""
    if shutil.which("git-lfs") is not None:
        return
    if not _grep(git, "-F", "filter=lfs", tree, "--", ":(glob)**/.gitattributes"):
        return
    pointers = _grep(git, "-E", _LFS_POINTER, tree)
    if pointers:
        names = [unquote(line).partition(":")[2] for line in pointers]
        raise PreconditionError(
            f"git-lfs is not installed, and {count(len(names), 'file is only an LFS pointer', 'files are only LFS pointers')}: {name_some(names)}",
            hint="install git-lfs, then `git lfs pull`",
            code="program-missing",
        )


def _grep(git: Git, kind: str, pattern: str, tree: str, *pathspec: str) -> list[str]:
    done = git.call("grep", "--full-name", "-l", kind, "-e", pattern, tree, *pathspec)
    if done.code > 1:
        raise PreconditionError(
            f"`git grep` failed in {git.folder}: {last_lines(done.stderr)}", hint="git fsck", code="git-failed"
        )
    return [line for line in done.stdout.split("\n") if line]


def _gitlink(line: str, commit: int = 1) -> Gitlink:
    fields, _, name = line.partition("\t")
    return Gitlink(path=unquote(name), commit=fields.split()[commit])


def _candidates(repository: Repository, tree: str, path: str) -> list[Path]:
    """Return the folders where a submodule's repository may be: in the working tree, or below `.git/modules`."""
    found = []
    if repository.toplevel is not None and os.path.lexists(repository.toplevel / path / ".git"):
        found.append(repository.toplevel / path)
    listed = repository.aimed.call("config", "--blob", f"{tree}:.gitmodules", "--get-regexp", r"^submodule\..*\.path$")
    for line in listed.stdout.split("\n"):
        key, _, value = line.partition(" ")
        if value == path:
            modules = repository.git_dir / "modules" / key.removeprefix("submodule.").removesuffix(".path")
            found += [modules] if modules.is_dir() else []
    return found


def printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode() if name.isprintable() else repr(name)[1:-1]
