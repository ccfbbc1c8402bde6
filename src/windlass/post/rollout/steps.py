"""Numbers of slots that a step computes: as few as hold all open samples, where that changes no bit of a sample.

A kernel may sum the products of a row in another order when it computes fewer rows. So a number is used only after a step
of this model with that many slots was found equal, to the last bit, to a step with all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windlass.post.rollout.slots import TILE, SlotCache

if TYPE_CHECKING:
    from windlass.train.model.decoder import Decoder

__all__ = ["StepSizes", "have_equal_slots"]

SMALLEST = 16
MOST_SIZES = 16


def have_equal_slots(model: Decoder, num_slots: int) -> bool:
    """Return whether a step makes the same of equal rows in every slot, to the last bit.

    Vector instructions leave a rest of a tensor's elements to scalar ones, which round otherwise: with AVX-512, where the
    slots times a layer's width are not a multiple of 32, that are elements of the last slots.

    Cost: one step of random weights on a cache of one tile.
    """
    config, parameter = model.config, next(model.parameters())
    length = min(TILE, config.max_length)
    slots = SlotCache(config, num_slots=num_slots, max_length=length, device=parameter.device, dtype=parameter.dtype)
    slots.begin([1] * num_slots, 1)
    with torch.inference_mode():
        logits_B1V = model(torch.zeros(num_slots, 1, dtype=torch.int64, device=parameter.device), cache=slots)
    assert isinstance(logits_B1V, Tensor)
    return torch.equal(logits_B1V, logits_B1V[:1].expand_as(logits_B1V))


class StepSizes:
    """Multiples of 16 slots, at most 16 of them, and all slots.

    Cost: for each number, once, when it is first wanted, one step of random tokens on a cache of one tile.
    """

    def __init__(self, model: Decoder, num_slots: int, *, is_checked: bool) -> None:
        """Prepare sizes up to `num_slots`; unless `is_checked`, they are used without comparison."""
        self._model, self._num_slots = model, num_slots
        self._unit = -(-num_slots // (SMALLEST * MOST_SIZES)) * SMALLEST
        self._is_equal: dict[int, bool] = {num_slots: True} if is_checked else {}
        self._is_checked = is_checked
        self._whole_BV: Tensor | None = None

    def fit(self, num_open: int) -> int:
        """Return the number of slots of a step for this many open samples."""
        size = min(-(-num_open // self._unit) * self._unit, self._num_slots)
        if not self._is_checked:
            return size
        if size not in self._is_equal:
            if self._whole_BV is None:
                self._whole_BV = self._step(self._num_slots)
            self._is_equal[size] = torch.equal(self._step(size), self._whole_BV[:size])
        return size if self._is_equal[size] else self._num_slots

    def _step(self, num_rows: int) -> Tensor:
        """Return the logits of a step of the first slots, whose lengths differ."""
        config, parameter = self._model.config, next(self._model.parameters())
        length = min(TILE, config.max_length)
        slots = SlotCache(
            config, num_slots=self._num_slots, max_length=length, device=parameter.device, dtype=parameter.dtype
        )
        slots.lengths = [1 + row % (length - 1) for row in range(self._num_slots)]
        tokens_B = torch.arange(num_rows, device=parameter.device) % config.vocab_size
        slots.begin([1] * num_rows, 1)
        with torch.inference_mode():
            logits_B1V = self._model(tokens_B[:, None], cache=slots)
        assert isinstance(logits_B1V, Tensor)
        return logits_B1V[:, 0]
