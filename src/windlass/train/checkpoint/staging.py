"""Copies of the tensors that a process writes, so that training may change them while the file is written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from windlass.train.checkpoint.storage.shards import StagedTensor
from windlass.train.checkpoint.tensors import StateTensor

__all__ = ["Staging"]


class Staging:
    """Host buffers that are kept from save to save: as many bytes as this process writes, pinned where there is a GPU."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str, tuple[int, ...]], Tensor] = {}

    def take(self, tensors: Sequence[StateTensor], *, is_async: bool) -> list[StagedTensor]:
        """Parts to write. When it returns the tensors may change, unless `is_async` is false: then after the write.

        Cost: one copy; none for contiguous tensors on the host that are written at once. All copies from a GPU are queued, then
        waited for together.
        """
        parts = [StagedTensor(name=item.name, box=item.box, tensor=self._copy(item, is_async)) for item in tensors]
        for device in {item.local.device for item in tensors if item.local.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return parts

    def _copy(self, item: StateTensor, is_async: bool) -> Tensor:
        local = item.local
        if local.device.type == "cpu" and local.is_contiguous() and not is_async:
            return local
        key = (item.section, item.name, item.box.offsets)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
            is_pinned = local.device.type == "cuda"
            buffer = torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=is_pinned)
            self._buffers[key] = buffer
        buffer.copy_(local, non_blocking=True)
        return buffer
