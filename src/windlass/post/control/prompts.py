"""Prompts that are retired once the policy solves them; state of the checkpoint, and a pure function of the answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from windlass.core.json_text import decode_json
from windlass.post.control.config import RetireConfig

__all__ = ["RetiredPrompts"]


class RetiredPrompts:
    """Counts of visits in which a prompt was solved, by row of the prepared data.

    Args:
        config: when a prompt is retired; None: never.
    """

    def __init__(self, config: RetireConfig | None) -> None:
        self._config = config
        self._counts: dict[int, int] = {}
        self._text = ""

    def __contains__(self, row: int) -> bool:
        """Return whether a prompt is retired."""
        return self._config is not None and self._counts.get(row, 0) >= self._config.visits

    def __len__(self) -> int:
        """Return the number of retired prompts."""
        return sum(row in self for row in self._counts)

    def visit(self, row: int, rewards: Iterable[float]) -> None:
        """Count the answers to a prompt; an answer without a reward (NaN) does not solve it."""
        if self._config is None:
            return
        solved = [reward >= self._config.reward for reward in rewards]
        is_solved = sum(solved) >= self._config.rate * len(solved)
        self._counts[row] = self._counts.get(row, 0) + 1 if is_solved else 0
        self._text = ""

    def state_dict(self) -> Mapping[str, str]:
        """Return the counts above 0."""
        if self._config is None:
            return {}
        if not self._text:
            self._text = json.dumps({str(row): count for row, count in sorted(self._counts.items()) if count})
        return {"solved_visits": self._text}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore counts."""
        found = decode_json(str(state.get("solved_visits", "{}")))
        self._counts, self._text = {int(row): int(count) for row, count in found.items()}, ""
