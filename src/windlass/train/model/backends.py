"""Which way attention is computed on this machine, and the masks for it.

Legend: B rows, T tokens of a row, S tokens of a row with those in the cache.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from windlass.train.errors import TrainingError
from windlass.train.model.config import AttentionConfig
from windlass.train.model.masks import Mask, blockwise_mask, dense_mask, packed_mask

__all__ = ["Backend", "MaskTable", "choose_backend"]

MOST_KEPT = 16

Backend: TypeAlias = Literal["sdpa", "flex", "varlen"]


def choose_backend(
    config: AttentionConfig, device: torch.device, dtype: torch.dtype, *, has_documents: bool, has_cache: bool
) -> Backend:
    """The backend that the configuration names, or the fastest that this machine has for these masks.

    On a GPU: SDPA's own kernels where tokens see all before them, varlen for documents and windows, flex where scores
    are capped or the precision is float32. Elsewhere and with a cache: SDPA, with dense masks.

    Raises:
        TrainingError: the named backend cannot do this here.
    """
    if has_cache:
        return "sdpa"
    if config.backend != "auto":
        obstacle = _obstacle(config.backend, config, device, dtype)
        if obstacle:
            raise TrainingError(
                f"attention backend `{config.backend}` {obstacle}",
                hint="write model.attention.backend=auto",
                code="attention-backend",
            )
        return config.backend
    is_plain = not has_documents and config.window is None and config.soft_cap is None
    if device.type != "cuda" or is_plain:
        return "sdpa"
    return "varlen" if not _obstacle("varlen", config, device, dtype) else "flex"


def _obstacle(backend: Backend, config: AttentionConfig, device: torch.device, dtype: torch.dtype) -> str:
    """Why a backend cannot be had; empty: it can."""
    if backend == "sdpa":
        return ""
    if backend == "flex":
        is_trained = torch.is_grad_enabled() and device.type != "cuda"
        return f"has no gradients on {device.type}" if is_trained else ""
    if device.type != "cuda":
        return f"needs a GPU, and this is {device.type}"
    if not _has_varlen():
        return f"is not in torch {torch.__version__}, or not yet with windows"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or newer"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"needs bfloat16, and this is {str(dtype).removeprefix('torch.')}; set parallel.precision"
    return "cannot cap scores" if config.soft_cap is not None else ""


@functools.cache
def _has_varlen() -> bool:
    """Whether torch has `varlen_attn` in the form of torch 2.13; the first form knew no windows and no groups."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn  # lazy: torch may lack it

    return {"window_size", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters)


class MaskTable:
    """Masks in the form of a backend. Those that depend on shapes alone are made once, others for each batch."""

    def __init__(self, config: AttentionConfig) -> None:
        self._config = config
        self._kept: dict[tuple[object, ...], Mask] = {}

    def take(
        self,
        windows: set[int | None],
        x_BTD: Tensor,
        documents_BT: Tensor | None = None,
        *,
        start: int = 0,
        documents_BS: Tensor | None = None,
    ) -> dict[int | None, Mask]:
        """The mask of each window.

        Args:
            start: tokens in the cache; a layer with a window kept fewer of them.
            documents_BS: documents of all tokens, those in the cache too; None: there is no cache.
        """
        device, length = x_BTD.device, x_BTD.shape[1]
        has_documents = documents_BT is not None
        has_cache = start > 0 or documents_BS is not None
        backend = choose_backend(self._config, device, _dtype(x_BTD), has_documents=has_documents, has_cache=has_cache)
        if has_documents or has_cache:
            return {window: _make(backend, x_BTD, window, start, documents_BT, documents_BS) for window in windows}
        masks: dict[int | None, Mask] = {}
        for window in windows:
            key = (backend, window, length, device, x_BTD.shape[0] if backend == "varlen" else 0)
            if key not in self._kept:
                if self.num_kept >= MOST_KEPT:
                    self._kept.clear()
                # out of inference mode: a mask made in it could take part in no backward pass later
                with torch.inference_mode(mode=False):
                    self._kept[key] = _make(backend, x_BTD, window, 0, None, None)
            masks[window] = self._kept[key]
        return masks

    @property
    def num_kept(self) -> int:
        """Masks in memory; no more than MOST_KEPT, or evaluations of many lengths would fill it."""
        return len(self._kept)


def _make(
    backend: Backend,
    x_BTD: Tensor,
    window: int | None,
    start: int,
    documents_BT: Tensor | None,
    documents_BS: Tensor | None,
) -> Mask:
    rows, length, device = x_BTD.shape[0], x_BTD.shape[1], x_BTD.device
    if backend == "varlen":
        return packed_mask(rows, length, window, device, documents_BT)
    if backend == "flex":
        return blockwise_mask(rows, length, window, device, documents_BT)
    num_keys = length + (start if window is None else min(start, window - 1))
    seen_BS = documents_BS if documents_BS is not None else documents_BT
    if seen_BS is not None:
        seen_BS = seen_BS[:, seen_BS.shape[1] - num_keys :]
    return dense_mask(length, num_keys, window, device, documents_BT, seen_BS)


def _dtype(x_BTD: Tensor) -> torch.dtype:
    kind = x_BTD.device.type
    is_cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_cast else x_BTD.dtype
