"""Choice of prompts by how often the policy solves them: pools by difficulty, and prompts that are retired.

State of the checkpoint. Which groups are used is a function of the seed, the number of the group and the visits so far, in
the order in which batches are reserved; so a resumed run makes the same choice.
"""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from windlass.post.control.config import PoolsConfig, RetireConfig

__all__ = ["PromptPools", "Visit"]

Visit: TypeAlias = tuple[int, Sequence[float | None]]
"""A prompt's row, and the rewards of the answers to it; None or NaN: could not be scored."""

_NORMAL, _EASY, _HARD = range(3)
_NAMES = ("normal", "easy", "hard")


class PromptPools:
    """The pool of each prompt, and for how many visits in a row it has been solved, by row of the prepared data.

    Args:
        retire: when a prompt is retired; None: never.
        pools: how often the prompts of each pool are used; None: all of them always.
        rows: returns the row of a group's prompt.

    Attributes:
        seed: seed of the choice.
    """

    def __init__(
        self,
        retire: RetireConfig | None,
        pools: PoolsConfig | None,
        *,
        num_rows: int,
        seed: int = 0,
        rows: Callable[[int], int] = int,
    ) -> None:
        self._retire, self._pools, self._rows, self.seed = retire, pools, rows, seed
        is_on = retire is not None or pools is not None
        self._pool, self._solved = (bytearray(num_rows if is_on else 0) for _ in range(2))
        self._passed_over: Counter[str] = Counter()
        self._num_counted = 0
        self._text = ""

    @property
    def is_on(self) -> bool:
        """Return whether prompts are chosen at all."""
        return bool(self._pool)

    def copy(self) -> PromptPools:
        """Return pools with the same state, which then have their own."""
        other = PromptPools(self._retire, self._pools, num_rows=len(self._pool), seed=self.seed, rows=self._rows)
        other.load_state_dict(self.state_dict())
        return other

    def next_group(self, position: int) -> int | None:
        """Return the first group from a position on whose prompt is used; None if all prompts are retired.

        Each group that is passed over is counted once. If a whole pass has none, the first possible one is used.
        """
        if not self.is_on:
            return position
        possible, skipped = None, []
        for group in range(position, position + len(self._pool)):
            row = self._rows(group)
            share, name = self._share(row)
            if share >= 1.0 or (share > 0.0 and _fraction(self.seed, group) < share):
                possible = group
                break
            possible = group if possible is None and share > 0.0 else possible
            skipped.append((group, name))
        if possible is not None:
            self._passed_over.update(name for group, name in skipped if self._num_counted <= group < possible)
            self._num_counted = max(self._num_counted, possible + 1)
        return possible

    def _share(self, row: int) -> tuple[float, str]:
        """Return in which share of its turns a prompt is used, and the reason to pass over it."""
        if self._retire is not None and self._solved[row] >= self._retire.visits:
            return 0.0, "retired"
        if self._pools is None:
            return 1.0, ""
        weights = (self._pools.weights.normal, self._pools.weights.easy, self._pools.weights.hard)
        return weights[self._pool[row]] / max(weights), _NAMES[self._pool[row]]

    def visit(self, row: int, rewards: Iterable[float | None]) -> None:
        """Take the answers to a prompt into account; one that could not be scored does not solve it."""
        if not self.is_on:
            return
        found, self._text = [-math.inf if each is None or math.isnan(each) else each for each in rewards], ""
        if self._retire is not None:
            is_solved = sum(each >= self._retire.reward for each in found) >= self._retire.rate * len(found)
            self._solved[row] = min(255, self._solved[row] + 1) if is_solved else 0
        if self._pools is not None:
            share = sum(each >= self._pools.reward for each in found) / len(found)
            self._pool[row] = _EASY if share >= self._pools.easy else _HARD if share <= self._pools.hard else _NORMAL

    def metrics(self) -> dict[str, float]:
        """Return the sizes of pools, the number of retired prompts, and groups passed over since the start."""
        found = {f"rollout/passed_over_{name}": float(count) for name, count in sorted(self._passed_over.items())}
        if self._retire is not None:
            visits = self._retire.visits
            found["rollout/retired_prompts"] = float(sum(count >= visits for count in self._solved))
        if self._pools is not None:
            found |= {f"rollout/pool_{_NAMES[pool]}": float(self._pool.count(pool)) for pool in (_EASY, _HARD)}
        return found

    def state_dict(self) -> Mapping[str, str]:
        """Return the pools and the counts of visits."""
        if not self.is_on:
            return {}
        self._text = self._text or base64.b64encode(zlib.compress(bytes(self._pool + self._solved), 1)).decode()
        return {"prompt_pools": self._text}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore a state of the same rows; an empty one is that of a new run."""
        size, self._text = len(self._pool), ""
        self._pool, self._solved = bytearray(size), bytearray(size)
        if self.is_on and "prompt_pools" in state:
            found = zlib.decompress(base64.b64decode(str(state["prompt_pools"])))
            self._pool, self._solved = bytearray(found[:size]), bytearray(found[size:])


def _fraction(seed: int, group: int) -> float:
    """Return a number of [0, 1) that depends on the seed and the group alone."""
    digest = hashlib.blake2b(f"{seed}:{group}".encode(), digest_size=8, person=b"prompt-pools").digest()
    return int.from_bytes(digest, "little") / 2**64
