"""Dotted paths: `tasks.train.nodes`; a key with a dot or a space is quoted: `params."a.b"`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from windlass.core.json_text import decode_json

__all__ = ["join_path", "split_path"]

_BARE = re.compile(r"[^\s.=\"'~\\\x00-\x1f\x7f-\xa0\u2028\u2029\ufeff]+\Z")
_SEGMENT = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^.\"']+", re.DOTALL)


def join_path(parts: Sequence[str]) -> str:
    """Join the parts of a path with dots, quoting parts if needed."""
    return ".".join(part if _BARE.match(part) and not part.startswith("--") else json.dumps(part) for part in parts)


def split_path(text: str) -> tuple[str, ...]:
    """Split a dotted path. Raises ValueError with the valid form."""
    parts, position = [], 0
    while True:
        match = _SEGMENT.match(text, position)
        if match is None:
            raise ValueError('a path is keys joined by dots, such as `tasks.train.nodes` or `params."a.b"`')
        parts.append(_unquote(match.group()))
        position = match.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            raise ValueError('a path is keys joined by dots, such as `tasks.train.nodes` or `params."a.b"`')
        position += 1


def _unquote(segment: str) -> str:
    if segment[0] == '"':
        try:
            return str(decode_json(segment, strict=False))
        except ValueError:
            return segment[1:-1]
    return segment[1:-1] if segment[0] == "'" else segment
