"""Calls of git that use none of the user's hooks, indexes, configuration files or prompts.

Git returns names C-quoted (core.quotePath); they are unquoted here, so file names may contain any bytes.
Source: git-config(1), git(1) section "Environment variables".
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, NotFoundError, PreconditionError
from windlass.core.process import Completed, run

__all__ = ["Commit", "Git", "Repository", "last_lines", "open_repository", "private_index", "quote", "unquote"]

_SETTINGS = (
    "core.quotePath=true",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.logAllRefUpdates=false",
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.symlinks=true",
    "core.sparseCheckout=false",
    "core.commitGraph=true",
    "gc.auto=0",
    "maintenance.auto=false",
    "i18n.commitEncoding=UTF-8",
    "advice.detachedHead=false",
    "color.ui=false",
)
# Variables that a calling git (a hook, `git rebase --exec`) sets to point its children to *its* repository.
_LOCAL_VARIABLES = frozenset(
    [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_NAMESPACE",
        "GIT_PREFIX",
        "GIT_GRAFT_FILE",
        "GIT_SHALLOW_FILE",
        "GIT_LITERAL_PATHSPECS",
        "GIT_GLOB_PATHSPECS",
        "GIT_NOGLOB_PATHSPECS",
        "GIT_ICASE_PATHSPECS",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_EXTERNAL_DIFF",
        "GIT_TRACE",
    ]
)
_FIXED_VARIABLES = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
_QUESTIONS = (
    "--is-inside-work-tree",
    "--absolute-git-dir",
    "--git-common-dir",
    "--git-path",
    "objects",
    "--show-prefix",
    "--show-toplevel",
)
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}

_LIMIT_BYTES = 1 << 30
"""Limit of git's output: the list of a tree with millions of files takes about 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """Folder in which to call git, with variables and settings that select the repository."""

    folder: Path
    variables: tuple[tuple[str, str], ...] = ()
    settings: tuple[str, ...] = ()
    included: Path | None = None

    def aimed(self, **variables: str) -> Git:
        """Return a copy with additional variables."""
        return replace(self, variables=tuple({**dict(self.variables), **variables}.items()))

    def set(self, *settings: str) -> Git:
        """Return a copy with additional settings (`core.fileMode=true`)."""
        return replace(self, settings=self.settings + settings)

    def including(self, config: Path) -> Git:
        """Return a copy with a configuration file's settings, which windlass's own settings override."""
        return replace(self, included=config)

    def at(self, folder: Path) -> Git:
        """Return a copy that calls git in another folder."""
        return replace(self, folder=folder)

    def call(self, *arguments: str, stdin: bytes | None = None, timeout_s: float = 3600.0) -> Completed:
        """Run git and return the result, whatever its exit code."""
        argv = ["git"] if self.included is None else ["git", "-c", f"include.path={self.included}"]
        for setting in _SETTINGS + self.settings:
            argv += ["-c", setting]
        return run(
            [*argv, *arguments],
            cwd=self.folder,
            env=_environment(dict(self.variables)),
            stdin=stdin,
            timeout_s=timeout_s,
            limit_bytes=_LIMIT_BYTES,
        )

    def text(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run git and return its output; if it fails, raise an error with its last lines."""
        done = self.call(*arguments, stdin=stdin)
        if done.code != 0:
            said = last_lines(done.stderr) or "no message"
            raise PreconditionError(
                f"`git {arguments[0]}` failed in {self.folder} with code {done.code}: {said}",
                hint="run `git status` and `git fsck` in that folder",
                code="git-failed",
            )
        return done.stdout

    def lines(self, *arguments: str, stdin: bytes | None = None) -> list[str]:
        """Run git and return the lines of its output, without line endings."""
        return [line for line in self.text(*arguments, stdin=stdin).split("\n") if line]

    def read_commit(self, commit: str) -> Commit | None:
        """Return a commit's tree and time; None if the commit is missing."""
        done = self.call("cat-file", "commit", commit)
        if done.code != 0:
            return None
        header = dict(line.partition(" ")[::2] for line in done.stdout.partition("\n\n")[0].split("\n"))
        return Commit(tree=header["tree"], time_s=int(header["committer"].split()[-2]))

    def has(self, name: str) -> bool:
        """Return True if an object (`<commit>^{commit}`, `<tree>:<path>`) exists."""
        return self.call("cat-file", "-e", name).code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Commit: its tree, and when it was made (seconds since 1970)."""

    tree: str
    time_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Git repository as seen from one folder in it."""

    git: Git
    git_dir: Path
    common_dir: Path
    objects: Path
    toplevel: Path | None
    subdir: str

    @property
    def aimed(self) -> Git:
        """Return git on this repository's object database, for use in any folder."""
        return self.git.aimed(GIT_DIR=str(self.git_dir))


def open_repository(folder: Path) -> Repository | None:
    """Return the repository that contains `folder`, or None.

    Raises:
        NotFoundError: no such folder.
        AccessError: the folder cannot be read, or git does not trust its owner.
        PreconditionError: git is not installed, or the repository is broken.
    """
    _check_folder(folder)
    git = Git(folder=folder)
    found = git.call("rev-parse", *_QUESTIONS)
    answers = found.stdout.split("\n")
    if found.code != 0 and answers[0] != "false":  # without a working tree, only the last query fails
        _explain_missing(folder, found.stderr)
        return None
    is_inside, git_dir, common_dir, objects, prefix, top = answers[:6]
    toplevel, subdir = (Path(top), prefix.rstrip("/")) if is_inside == "true" else (None, "")
    return Repository(
        git=Git(folder=toplevel or folder),
        git_dir=Path(git_dir),
        common_dir=(folder / common_dir).resolve(),
        objects=(folder / objects).resolve(),
        toplevel=toplevel,
        subdir=subdir,
    )


@contextlib.contextmanager
def private_index(repository: Repository) -> Iterator[Git]:
    """Yield git on a copy of the index in which no edits are hidden; the user's index is only read.

    The copy keeps the index's modification time: git needs it to tell entries written in the same instant (racy git).
    """
    with tempfile.TemporaryDirectory(prefix="windlass-index-") as temporary:
        index = Path(temporary) / "index"
        own = repository.git_dir / "index"
        if own.is_file():
            shutil.copy2(own, index)
        git = repository.git.aimed(GIT_INDEX_FILE=str(index))
        _unhide(git)
        yield git


def quote(name: str) -> bytes:
    """Quote a file name as git expects it in an input line: C-quoted if necessary."""
    raw = os.fsencode(name)
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        return raw
    return b'"' + b"".join(bytes([b]) if 32 <= b < 127 and b not in b'"\\' else b"\\%03o" % b for b in raw) + b'"'


def unquote(text: str) -> str:
    """Return the file name that git printed, C-quoted or not."""
    if not text.startswith('"'):
        return text
    raw, position, body = bytearray(), 0, text[1:-1]
    while position < len(body):
        char = body[position]
        if char != "\\":
            raw += char.encode()
            position += 1
        elif body[position + 1] in _ESCAPES:
            raw.append(_ESCAPES[body[position + 1]])
            position += 2
        else:
            raw.append(int(body[position + 1 : position + 4], 8))
            position += 4
    return os.fsdecode(bytes(raw))


def last_lines(text: str, count: int = 5) -> str:
    """Return the last non-empty lines of a program's output."""
    return "\n".join([line.rstrip() for line in text.split("\n") if line.strip()][-count:])


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _LOCAL_VARIABLES}
    return {**kept, **_FIXED_VARIABLES, **variables}


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise NotFoundError(
            f"no such folder: {folder}",
            hint="`code:` names a folder, relative to the experiment file",
            code="file-not-found",
        )
    if not folder.is_dir():
        raise PreconditionError(
            f"{folder} is not a folder", hint="`code:` names the folder of the code", code="file-not-found"
        )
    if not os.access(folder, os.R_OK | os.X_OK):
        raise AccessError(f"cannot read the folder {folder}", hint=f"chmod u+rx {folder}", code="file-unreadable")


def _explain_missing(folder: Path, stderr: str) -> None:
    if "not a git repository" in stderr:
        return
    if "dubious ownership" in stderr:
        raise AccessError(
            f"git does not trust the repository at {folder}: it belongs to another user",
            hint=f"git config --global --add safe.directory {folder}",
            code="repository-not-trusted",
        )
    raise PreconditionError(
        f"git cannot read the repository at {folder}: {last_lines(stderr)}",
        hint="run `git status` there",
        code="git-failed",
    )


def _unhide(git: Git) -> None:
    """Clear assume-unchanged, and skip-worktree for files that exist, since both hide edits from `git status`."""
    assumed, skipped = [], []
    for line in git.lines("ls-files", "-v"):
        tag, name = line[0], unquote(line[2:])
        if tag.islower():
            assumed.append(name)
        if tag in "Ss" and os.path.lexists(git.folder / name):
            skipped.append(name)
    for flag, names in (("--no-assume-unchanged", assumed), ("--no-skip-worktree", skipped)):
        if names:
            git.text("update-index", flag, "-z", "--stdin", stdin=b"".join(os.fsencode(name) + b"\0" for name in names))
