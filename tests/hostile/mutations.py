"""Documents as a hostile or broken program would write them: seeded changes of good ones."""

from __future__ import annotations

import json
import random
import re
from typing import Any

__all__ = ["mutated", "mutated_words"]

_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\0",
    "\ud800",
    "../../../etc/passwd",
    "x" * 5000,
    [],
    {},
    [[]],
    {"a": {}},
    ["x"],
)
_PIECES = (
    b"[" * 5000,
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b"\0" * 100,
    b"\xff\xfe",
    b"\n",
    b'"',
    b"\\",
    b"]" * 5000,
    b"9" * 6000,
    b"\xed\xa0\x80",
    b"Infinity",
)

_WORD = re.compile(rb"([A-Za-z0-9_.-]+)")
_WORDS = (
    b"9" * 6000,
    b"9" * 400,
    b"-1",
    b"0",
    b"1e999",
    b"nan",
    b"file:///etc/passwd",
    b"..",
    b"../../x",
    "\u00b2".encode(),
    b"\xff\xfe",
    b"\0",
    b"[" * 5000,
    b"a[" * 5000,
    b" " * 5000,
    b"0001-01-01T00:00:00",
    b"9999-12-31T23:59:59",
    b"2001-99-99",
    b"&a [*a]",
    b"0x",
    b"None",
    b"=",
    b"|",
    b"\n",
)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A changed copy; a document of JSON is mostly changed in its values, so that it gets past the parser."""
    if rng.random() < 0.6:
        try:
            value = json.loads(content)
        except ValueError:
            return _bytes_changed(content, rng)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            value = _value_changed(value, rng)
        return json.dumps(value).encode()
    return _bytes_changed(content, rng)


def mutated_words(content: bytes, rng: random.Random) -> bytes:
    """A changed copy of a text: words of it replaced, doubled or taken away, or bytes changed."""
    words = _WORD.split(content)  # every other one is a word
    if rng.random() < 0.2 or len(words) < 3:
        return _bytes_changed(content, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place = 2 * rng.randrange(len(words) // 2) + 1
        words[place] = rng.choice((b"", words[place] * 2, rng.choice(words), *_WORDS))
    return b"".join(words)


def _value_changed(value: Any, rng: random.Random) -> Any:
    """One value somewhere in a document replaced, removed, added, or put into fifty lists."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if rng.random() < 0.15:
            del value[key]
        elif rng.random() < 0.1 and isinstance(value, dict):
            value[rng.choice(("schema", "x", "", "__class__", f"{key}x"))] = rng.choice(_VALUES)
        else:
            value[key] = _value_changed(value[key], rng)
        return value
    if rng.random() < 0.1:
        for _ in range(50):
            value = [value]
        return value
    return json.loads(json.dumps(rng.choice(_VALUES)))


def _bytes_changed(content: bytes, rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    place = rng.randint(0, len(content))
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[place:]
    if kind == 2:
        return rng.choice(_PIECES)
    if kind == 3:
        return content[:place] + rng.choice(_PIECES) + content[place:]
    if kind == 4:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(300)))
    changed = bytearray(content)
    for _ in range(rng.randint(1, 20)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)
