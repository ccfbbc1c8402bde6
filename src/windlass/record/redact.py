"""Redaction of secrets in a stream of bytes, fast enough for logs.

Every form of every secret (see `secret_forms`) is a *pattern*. A pattern of 7 bytes or more, at any position, contains
a complete 4-byte word at an offset that is a multiple of 4. So a text contains no pattern if none of its aligned words
occurs in a pattern, and one `frozenset.isdisjoint` over the words of a block (about 150 MB/s in CPython) checks that. A
dictionary maps each word in the set to the few patterns and positions to compare. Shorter patterns are searched one by
one (about 1 ms per MiB each).

The result does not depend on how the stream is cut into pieces: from left to right, overlapping matches form one
region, which is replaced by `[secret NAME]` with the name of its longest match. A region is closed at
`2 x longest pattern` (a repeated, periodic secret), so that the number of unconsumed bytes is bounded.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress

from windlass.record.secret_forms import secret_forms

__all__ = ["DiscardingRedactor", "Redactor"]

_Match = tuple[int, int, str]  # start, end, name of the secret

_WORD = 4
_MIN_LONG = 2 * _WORD - 1
_BLOCK = 16 << 10
_PLACES = range(_BLOCK // _WORD)
_UNPACK_BLOCK = struct.Struct(f"={_BLOCK // _WORD}I").unpack_from
_COMMON = frozenset(b"-=_./:#* 0\n")
_RARE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ") | frozenset(range(128, 256))


class Redactor:
    """Redactor that replaces every form of the given secrets with `[secret NAME]`.

    It keeps no state between calls: pass unconsumed bytes again, followed by more data.

    Args:
        secrets: name to value; a value too short to be recognised (under 4 bytes) is not redacted.
        min_form_bytes: shorter forms are not redacted either.
    """

    def __init__(self, secrets: Mapping[str, bytes], *, min_form_bytes: int = 0) -> None:
        names: dict[bytes, str] = {}
        for name in sorted(secrets):
            for form in secret_forms(secrets[name]):
                if len(form) >= min_form_bytes:
                    names.setdefault(form, name)
        self._names = names
        self._longest = max(map(len, names), default=0)
        self._region_limit = 2 * self._longest
        self._short = sorted(pattern for pattern in names if len(pattern) < _MIN_LONG)
        long = [pattern for pattern in names if len(pattern) >= _MIN_LONG]
        self._inner = _WordTable((pattern, _rare_offsets(pattern)) for pattern in long)
        self._opening = _WordTable((pattern, range(_WORD)) for pattern in long if len(pattern) > _MIN_LONG)
        self._short_openings = frozenset(
            pattern[:size] for pattern in names for size in range(1, min(_MIN_LONG, len(pattern)))
        )

    @property
    def max_held_bytes(self) -> int:
        """Return the maximum number of bytes that `feed` leaves unconsumed."""
        return 2 * self._longest + self._region_limit

    @property
    def longest_form_bytes(self) -> int:
        """Return the length of the longest form of any secret."""
        return self._longest

    def names_in(self, data: bytes) -> set[str]:
        """Return the names of the secrets that occur in `data`, in any form."""
        return {name for _, _, name in self._find_matches(data)}

    def feed(self, data: bytes, is_final: bool) -> tuple[bytes, int]:
        """Redact the part of `data` whose result cannot depend on later bytes.

        Returns:
            The redacted bytes, and the number of bytes of `data` that they replace: all of them if `is_final`.
        """
        if not self._names:
            return data, len(data)
        matches = self._find_matches(data)
        partials = [] if is_final else self._find_partials(data)
        if not matches and not partials:
            return data, len(data)
        regions, limit = self._settle(matches, partials, len(data))
        pieces, position = [], 0
        for start, end, name in regions:
            pieces.append(data[position:start])
            pieces.append(f"[secret {name}]".encode())
            position = end
        pieces.append(data[position:limit])
        return b"".join(pieces), limit

    def redact(self, data: bytes) -> bytes:
        """Redact complete data."""
        return self.feed(data, True)[0]

    def redact_text(self, text: str) -> str:
        """Redact a complete text; it may contain lone surrogates for bytes that are not UTF-8."""
        try:
            return self.redact(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return self.redact(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def _find_matches(self, data: bytes) -> list[_Match]:
        """Return all matches of patterns from left to right, including overlapping ones."""
        found = []
        for start, pattern in self._inner.candidates(data, 0):
            if data.startswith(pattern, start):
                found.append((start, start + len(pattern), self._names[pattern]))
        for pattern in self._short:
            start = data.find(pattern)
            while start >= 0:
                found.append((start, start + len(pattern), self._names[pattern]))
                start = data.find(pattern, start + 1)
        found.sort()
        return found

    def _find_partials(self, data: bytes) -> list[int]:
        """Return the positions, ascending, from which the end of `data` could be the beginning of a pattern."""
        size = len(data)
        found = set()
        for start, pattern in self._opening.candidates(data, max(0, size - self._longest + 1)):
            if size - start < len(pattern) and pattern.startswith(data[start:]):
                found.add(start)
        for length in range(1, min(_MIN_LONG, size + 1)):
            if data[size - length :] in self._short_openings:
                found.add(size - length)
        return sorted(found)

    def _settle(self, matches: Sequence[_Match], partials: Sequence[int], size: int) -> tuple[list[_Match], int]:
        """Join matches into regions, up to the position where later bytes could change them.

        Returns:
            The regions, and the position up to which they are final.
        """
        regions: list[_Match] = []
        floor, index, count = 0, 0, len(matches)
        hold = partials[0] if partials else size
        while index < count:
            start, end, name = matches[index]
            index += 1
            if start < floor:
                continue
            if hold <= start:
                return regions, hold
            longest = end - start
            while index < count and matches[index][0] < min(end, hold) and end - start <= self._region_limit:
                other_start, other_end, other_name = matches[index]
                if other_end - other_start > longest:
                    longest, name = other_end - other_start, other_name
                end = max(end, other_end)
                index += 1
            if hold < end and end - start <= self._region_limit:
                return regions, start
            regions.append((start, end, name))
            floor = end
            if hold < floor:
                later = bisect_left(partials, floor)
                hold = partials[later] if later < len(partials) else size
        return regions, hold


class _WordTable:
    """Table that finds where patterns may occur, by one 4-byte word of each pattern for each of four alignments."""

    def __init__(self, patterns: Iterable[tuple[bytes, Iterable[int]]]) -> None:
        self._places: dict[int, list[tuple[bytes, int]]] = {}
        for pattern, offsets in patterns:
            for offset in offsets:
                word = int.from_bytes(pattern[offset : offset + _WORD], sys.byteorder)
                self._places.setdefault(word, []).append((pattern, offset))
        self._words = frozenset(self._places)

    def candidates(self, data: bytes, start: int) -> list[tuple[int, bytes]]:
        """Return the (position, pattern) pairs to compare in `data` from `start` on; positions are never negative."""
        found: list[tuple[int, bytes]] = []
        if not self._words:
            return found
        size, has_hit = len(data), False
        for base in range(start, size - _WORD + 1, _BLOCK):
            if base + _BLOCK <= size:
                words = _UNPACK_BLOCK(data, base)
            else:
                words = struct.unpack_from(f"={(size - base) // _WORD}I", data, base)
            if not has_hit and self._words.isdisjoint(words):
                continue
            # after a hit the next block is not prechecked: a log that prints one secret often prints more
            has_hit = False
            for place in compress(_PLACES, map(self._words.__contains__, words)):
                has_hit = True
                position = base + place * _WORD
                for pattern, offset in self._places[words[place]]:
                    if position >= offset:
                        found.append((position - offset, pattern))
        return found


def _rare_offsets(pattern: bytes) -> list[int]:
    """Return the offset of the word that is least likely in an ordinary log, for each alignment."""
    return [
        max(range(phase, len(pattern) - _WORD + 1, _WORD), key=lambda offset: _rarity(pattern[offset : offset + _WORD]))
        for phase in range(_WORD)
    ]


def _rarity(word: bytes) -> int:
    kinds = sum(2 if byte in _RARE else 0 if byte in _COMMON else 1 for byte in word)
    return kinds + len(set(word))


class DiscardingRedactor(Redactor):
    """Redactor that discards all output, since it may contain unknown secrets."""

    def __init__(self) -> None:
        super().__init__({})

    def feed(self, data: bytes, is_final: bool) -> tuple[bytes, int]:
        """Discard all of `data`."""
        return b"", len(data)
