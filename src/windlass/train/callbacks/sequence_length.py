"""Short rows first: the batch keeps its tokens, rows are cut."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.core.errors import Problem, SpecError
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.callbacks.schedules import current_value
from windlass.train.duration import Duration

__all__ = ["SequenceLength"]


class SequenceLength(TrainerCallback):
    """Calls the loader's `set_length(tokens)` at the moments given, and again after a restart.

    Args:
        at: when; `0 steps` for a length from the start.
        lengths: tokens of a row from there on; divisors of the full length.
    """

    def __init__(self, *, at: Sequence[Duration], lengths: Sequence[int]) -> None:
        self.at, self.lengths = tuple(at), tuple(lengths)
        self._first = self._now = 0

    def on_attach(self) -> None:
        """Try all lengths. Raises SpecError where the loader cannot cut rows, or refuses one of them."""
        loader = self.trainer.loader
        set_length = getattr(loader, "set_length", None)
        self._first = self._now = int(getattr(loader, "length", 0))
        if not callable(set_length) or not self._first:
            message = f"the loader {type(loader).__name__} cannot change the length of rows"
            hint = "give it `length` and `set_length(tokens)`, or leave the callback out"
            raise SpecError([Problem(message, "loader-cannot", None, hint)])
        for length in (*self.lengths, self._first):
            set_length(length)

    def on_start(self) -> None:
        """The length that holds here, after a restart too."""
        self._set()

    def on_step_end(self) -> None:
        """Change the next rows, when it is time."""
        self._set()

    def _set(self) -> None:
        length = current_value(self._first, self.at, self.lengths, self.trainer)
        if length != self._now:
            self._now = length
            self.trainer.loader.set_length(length)  # type: ignore[attr-defined]  # on_attach saw that it has it
