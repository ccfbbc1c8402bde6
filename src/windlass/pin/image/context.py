"""Build context: the files from the pinned tree that the builder receives, and their digest."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.names import nearest
from windlass.pin.code.reading import TreeFile, TreeReader

__all__ = ["BuildContext", "ignoring", "read_context", "read_dockerfile", "write_context"]

_IGNORE = ".dockerignore"
_SUBMODULE = "160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """Files that the builder receives.

    Attributes:
        sha256: of mode, content and path of each.
        ignore: content of `.dockerignore`.
    """

    sha256: str
    num_files: int
    ignore: str


def read_dockerfile(tree: TreeReader, path: str) -> str:
    """Return the Dockerfile's text in the pinned tree; raises PreconditionError (`code-not-in-commit`)."""
    text = tree.text(path)
    if text is None:
        names = [
            each.path
            for each in tree.files()
            if "dockerfile" in each.path.lower() or "containerfile" in each.path.lower()
        ]
        close = nearest(path, names) or (names[0] if names else "")
        raise PreconditionError(
            f"no file `{path}` in the pinned code",
            hint=f"did you mean `{close}`?" if close else "commit it; `windlass init NAME --docker` creates an example",
            code="code-not-in-commit",
        )
    return text


def read_context(tree: TreeReader, folder: str, dockerfile: str) -> BuildContext:
    """Return the files below `folder` in the pinned tree that are not ignored, with one digest for all.

    Args:
        dockerfile: its path; `<Dockerfile>.dockerignore` takes precedence over `.dockerignore`.

    Raises:
        PreconditionError: no such folder, or a broken ignore file.
    """
    files = tree.files(folder)
    if not files:
        raise PreconditionError(
            f"the context `{folder}` of the image is not in the pinned code, or is empty",
            hint="`env.image.context` is a folder relative to the code; commit its files",
            code="code-not-in-commit",
        )
    own = tree.text(f"{dockerfile}{_IGNORE}")
    text = own if own is not None else tree.text(_IGNORE if folder in ("", ".") else f"{folder}/{_IGNORE}") or ""
    kept = _kept(files, text)
    digest = hashlib.sha256()
    for file in kept:
        digest.update(f"{file.mode} {file.object_id} ".encode() + os.fsencode(file.path) + b"\0")
    return BuildContext(sha256=digest.hexdigest(), num_files=len(kept), ignore=text)


def write_context(source: Path, destination: Path, ignore: str) -> None:
    """Move the builder's files from a checkout to `destination`, with modes that do not depend on the umask.

    Submodules are folders in a checkout, and their files are matched one by one.
    """
    is_ignored = _ignoring(ignore)
    destination.mkdir(parents=True)
    for root, folders, names in os.walk(source):
        at = Path(root).relative_to(source)
        for name in [*names, *(each for each in folders if os.path.islink(os.path.join(root, each)))]:
            path = at / name
            if is_ignored(str(path)):
                continue
            target = destination / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(source / path, target)
            if not target.is_symlink():
                target.chmod(0o755 if os.access(target, os.X_OK) else 0o644)
    for root, folders, _ in os.walk(destination):
        for name in (root, *(os.path.join(root, each) for each in folders)):
            if not os.path.islink(name):
                os.chmod(name, 0o755)  # noqa: S103 - as a fresh clone has them, whatever the umask


def _kept(files: Iterable[TreeFile], text: str) -> list[TreeFile]:
    is_ignored = _ignoring(text)
    return [file for file in files if file.mode == _SUBMODULE or not is_ignored(file.path)]


def _ignoring(text: str) -> Callable[[str], bool]:
    try:
        return ignoring(text)
    except ValueError as error:
        raise PreconditionError(
            f"invalid pattern in {_IGNORE}: {error}", hint="correct it and commit", code="invalid-file"
        ) from error


def ignoring(text: str) -> Callable[[str], bool]:
    """Return a predicate for ignored paths, relative to the context (`a/b`); the last matching line decides.

    Raises:
        ValueError: a pattern is broken; the message names it.
    """
    rules: list[tuple[bool, re.Pattern[str]]] = []
    for line in text.lstrip("\ufeff").split("\n"):
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        is_kept = pattern.startswith("!")
        pattern = _clean(pattern.removeprefix("!").strip())
        if pattern:
            rules.append((is_kept, _compile(pattern)))

    def is_ignored(path: str) -> bool:
        is_out = False
        for is_kept, pattern in rules:
            if is_out == is_kept and pattern.match(path):
                is_out = not is_kept
        return is_out

    return is_ignored


def _clean(pattern: str) -> str:
    """Clean a path as Go's filepath.Clean does, relative to the context."""
    parts: list[str] = []
    for part in pattern.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern, which also matches everything below a path that it matches."""
    out, position = "", 0
    while position < len(pattern):
        char = pattern[position]
        if pattern.startswith("**", position):
            position += 2
            if pattern.startswith("/", position):
                out, position = out + "(?:.*/)?", position + 1
            else:
                out += ".*"
            continue
        if char == "[":
            end = pattern.find("]", position + 1)
            if end < 0:
                raise ValueError(f"`{pattern}` has no closing `]`")
            out += pattern[position : end + 1]
            position = end
        elif char == "\\" and position + 1 < len(pattern):
            position += 1
            out += re.escape(pattern[position])
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(char) or re.escape(char)
        position += 1
    return re.compile(f"{out}(?:/.*)?\\Z", re.DOTALL)
