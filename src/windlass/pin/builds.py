"""Pins of prepared data: a build's key, made from everything that may change its output.

A key is the sha256 of the command, its variables, the digests (or keys) of its inputs, the code that it runs and the
identity of its environment. It names the folder `<state>/data/built/<key>` at every launch.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from windlass.core.errors import AccessError, PreconditionError
from windlass.pin.code.git import Repository, open_repository, unquote
from windlass.pin.code.pinned import CodePin
from windlass.pin.code.pinning import pin_code
from windlass.supervise.builds.built_data import CONTENT

__all__ = ["BUILT", "build_key", "built_folder", "code_of_build"]

BUILT = "data/built"
"""Path below the state folder that has one folder per key."""

_KEY_SCHEMA = 1
_KEY_LENGTH = 40
_NO_CODE = (".git", "__pycache__", ".venv", "venv", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache")


def build_key(
    command: str | Sequence[str],
    *,
    variables: Mapping[str, str],
    inputs: Mapping[str, str],
    code: str,
    subdir: str,
    environment: Mapping[str, object],
) -> str:
    """Return the key of a build; pure.

    Args:
        command: with the planner's tokens replaced, except those for paths, so that no path is part of the key.
        inputs: digest of each input, or its key if it is itself built.
        subdir: folder of the code that the command starts in.
    """
    identity = {
        "schema": _KEY_SCHEMA,
        "command": command if isinstance(command, str) else list(command),
        "variables": dict(variables),
        "inputs": dict(inputs),
        "code": code,
        "subdir": subdir,
        "environment": dict(environment),
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


def built_folder(state: Path, key: str) -> Path:
    """Return the path of a build's content, below a state folder."""
    return state / BUILT / key / CONTENT


def code_of_build(name: str, pin: CodePin, folder: Path, patterns: Sequence[str]) -> str:
    """Return the digest of the code that a build runs: the whole pinned tree, or only files that match `patterns`.

    Code that runs in place is read in its current state. Equal files give equal digests, however they are pinned.

    Args:
        patterns: paths and patterns relative to `folder`; a folder stands for everything below it.

    Raises:
        PreconditionError: a pattern matches nothing.
        AccessError: a file cannot be read.
    """
    if not patterns:
        if pin.tree or pin.kind == "none":
            return pin.tree
        return pin_code(folder, snapshot=True, write=False).tree
    repository = open_repository(folder)
    if pin.kind == "commit" and repository is not None:
        files = dict(_in_tree(repository, pin))
    else:
        files = dict.fromkeys(_in_folder(repository, folder), "")
    chosen = _chosen(name, files, patterns)
    digest = hashlib.sha256()
    for path in sorted(chosen, key=os.fsencode):
        line = files[path] or _blob(name, folder / path)
        digest.update(f"{line} {json.dumps(os.fsencode(path).decode('utf-8', 'backslashreplace'))}\n".encode())
    return digest.hexdigest()


def _chosen(name: str, files: Mapping[str, str], patterns: Sequence[str]) -> set[str]:
    chosen: set[str] = set()
    for pattern in patterns:
        wanted = os.path.normpath(pattern)
        found = {path for path in files if _matches(path, wanted)}
        if not found:
            raise PreconditionError(
                f"data.{name}.code: `{pattern}` matches no file of the code",
                hint="name files or folders relative to `code`, such as `tokenise.py` or `prepare/*.py`",
                code="code-not-in-commit",
            )
        chosen |= found
    return chosen


def _matches(path: str, wanted: str) -> bool:
    is_below = wanted == "." or path.startswith(wanted + "/")
    return is_below or fnmatch.fnmatchcase(path, wanted) or fnmatch.fnmatchcase(path, wanted + "/*")


def _in_tree(repository: Repository, pin: CodePin) -> Iterator[tuple[str, str]]:
    """Yield the path (relative to the code folder), and the mode and id, of each file in the pinned tree."""
    tree = f"{pin.tree}:{pin.subdir}" if pin.subdir else pin.tree
    for line in repository.aimed.lines("ls-tree", "-r", "--full-tree", tree):
        described, _, quoted = line.partition("\t")
        mode, _, blob = described.split()
        yield unquote(quoted), f"{mode} {blob}"


def _in_folder(repository: Repository | None, folder: Path) -> Iterator[str]:
    """Yield the paths of the code's files as they are on disk, relative to its folder."""
    if repository is not None:
        listed = repository.git.at(folder).lines("ls-files", "--cached", "--others", "--exclude-standard")
        yield from (path for path in dict.fromkeys(map(unquote, listed)) if os.path.lexists(folder / path))
        return
    for root, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each not in _NO_CODE]
        yield from (os.path.relpath(os.path.join(root, each), folder) for each in names)


def _blob(name: str, path: Path) -> str:
    """Return a file's mode and id as git assigns them; source: git-hash-object(1), gitformat-index(5)."""
    try:
        found = os.lstat(path)
        content = os.fsencode(os.readlink(path)) if stat.S_ISLNK(found.st_mode) else path.read_bytes()
    except OSError as error:
        message = f"data.{name}.code: cannot read {path}: {error.strerror}"
        raise AccessError(message, hint=f"ls -ld {path}", code="file-unreadable") from error
    mode = "120000" if stat.S_ISLNK(found.st_mode) else "100755" if found.st_mode & stat.S_IXUSR else "100644"
    digest = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return f"{mode} {digest.hexdigest()}"
