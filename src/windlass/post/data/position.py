"""Position in prepared rows: which rows the next batch has, and what a checkpoint keeps of that."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from windlass.core.errors import Problem, SpecError
from windlass.core.json_text import decode_json
from windlass.post.data.config import MixtureConfig
from windlass.post.data.prepared import PreparedData
from windlass.train.data.order import RowOrder

__all__ = ["PreparedPosition"]


class PreparedPosition:
    """Part of a loader that knows which rows come next, as a pure function of seed, epoch and index.

    A batch at the end of an epoch is filled from the next one, so no row is lost.

    Args:
        seed: shuffling seed, if the settings have none.
        fingerprint: further settings that determine the batches; a state with other ones is rejected.

    Attributes:
        position: rows since the start of the first epoch.
    """

    def __init__(
        self, data: PreparedData, config: MixtureConfig, *, seed: int, fingerprint: Mapping[str, str] | None = None
    ) -> None:
        self.position = 0
        self._data, self._config = data, config
        self._seed = seed if config.seed is None else config.seed
        self._fingerprint = {
            "data.mix": data.key,
            "data.batch_rows": str(config.batch_rows),
            "data.is_shuffled": str(config.is_shuffled),
            **(fingerprint or {}),
        }

    @property
    def batches_per_epoch(self) -> int:
        """Whole global batches in a pass over the rows."""
        return max(1, self._data.num_rows // self._config.batch_rows)

    @property
    def batches_per_pass(self) -> float:
        """Global batches in a pass, including the fraction of a batch at its end."""
        return self._data.num_rows / self._config.batch_rows

    def batches_until(self, epochs: int, state: Mapping[str, int | str]) -> int:
        """Return the batches from a position until `epochs` passes are complete."""
        position = int(state["epoch"]) * self._data.num_rows + int(state["index"])
        return max(0, -(-(epochs * self._data.num_rows - position) // self._config.batch_rows))

    def state_dict(self) -> Mapping[str, int | str]:
        """Return the next batch's position (epoch, row index, seed) and what determines its rows."""
        epoch, index = divmod(self.position, self._data.num_rows)
        fingerprint = json.dumps(self._fingerprint, sort_keys=True)
        return {"epoch": epoch, "index": index, "seed": self._seed, "data": fingerprint}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore a position.

        Raises:
            SpecError: the state is of different data (`tokens-changed`); the message names the difference.
        """
        before = decode_json(str(state["data"]))
        changed = [name for name, value in self._fingerprint.items() if before.get(name) != value]
        if changed and not self._config.allow_changes:
            hint = "use the checkpoint's data, or set `data.allow_changes=true` to resume at the same row number"
            raise SpecError(
                Problem(
                    f"`{name}` changed since the checkpoint: from {before.get(name)} to {self._fingerprint[name]}",
                    "tokens-changed",
                    hint=hint,
                )
                for name in changed
            )
        self._seed = int(state["seed"])
        self.position = int(state["epoch"]) * self._data.num_rows + int(state["index"])

    def rows_at(self, position: int, count: int | None = None) -> list[int]:
        """Return the rows from a position on, by default those of a global batch."""
        size = self._data.num_rows
        order = RowOrder((size,), (size,), seed=self._seed, is_shuffled=self._config.is_shuffled)
        epoch_N, index_N = np.divmod(np.arange(position, position + (count or self._config.batch_rows)), size)
        found: list[int] = []
        for epoch in np.unique(epoch_N).tolist():
            found += order.rows(epoch, index_N[epoch_N == epoch])[1].tolist()
        return found
