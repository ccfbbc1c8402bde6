"""Which files of a context the builder does not get: `.dockerignore`; pure.

Source: Docker docs, "Build context", ".dockerignore files"; the patterns are Go's filepath.Match and `**`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

__all__ = ["ignoring"]


def ignoring(text: str) -> Callable[[str], bool]:
    """Return True when a path (relative to the context, `a/b`) is left out; the last matching line decides.

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
    """As Go's filepath.Clean, relative to the context."""
    parts: list[str] = []
    for part in pattern.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    """A pattern that also matches everything below what it names."""
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
