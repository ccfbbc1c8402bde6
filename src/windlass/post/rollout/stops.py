"""Stop texts: whether the tokens of a sample contain one, also where it begins and ends inside tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = ["Decode", "StopTexts", "TextPieces"]

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Returns the text of token ids, such as `Tokenizer.decode`."""

BROKEN = "\ufffd"
MARGIN = 8
"""Characters kept before a possible beginning of a stop text, because a tokenizer may decode the first token of a window
differently: without its leading space, or as broken bytes."""


class TextPieces:
    """The text of each token on its own, decoded once."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self._pieces: dict[int, str] = {}

    def of(self, token: int) -> str:
        """Return the token's text; it may differ from its text among others."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self.decode([token])
        return piece


class StopTexts:
    """Looks for stop texts in a growing sample.

    Cost: a table look-up for a token that cannot end a stop text; otherwise the decoding of the tokens since the last such
    look.
    """

    def __init__(self, texts: Sequence[str], pieces: TextPieces) -> None:
        self._texts, self._pieces = texts, pieces
        self._longest = max(map(len, texts))
        self._ends = {text[-1] for text in texts}
        # a leading space may be missing in a piece
        self._is_always_possible = any(end.isspace() for end in self._ends)
        self._start = 0

    def found(self, ids: Sequence[int]) -> bool:
        """Return whether the text of `ids` contains a stop text; call it after each new token."""
        if not self._is_possible(self._pieces.of(ids[-1])):
            return False
        text = self._pieces.decode(ids[self._start :])
        if any(stop in text for stop in self._texts):
            return True
        self._forget(ids)
        return False

    def _is_possible(self, piece: str) -> bool:
        is_unclear = not piece or BROKEN in piece or self._is_always_possible
        return is_unclear or any(end in piece for end in self._ends)

    def _forget(self, ids: Sequence[int]) -> None:
        """Advance the window so that it still holds the beginning of every unfinished stop text."""
        num_kept = self._longest + MARGIN
        while num_kept < len(ids) - self._start:
            if len(self._pieces.decode(ids[-num_kept:])) >= self._longest + MARGIN:
                self._start = len(ids) - num_kept
                return
            num_kept *= 2
