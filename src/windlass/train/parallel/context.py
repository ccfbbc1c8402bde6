"""Context parallelism for a decoder: each process takes part of every row, and gathers all keys and values.

A process's queries see the keys of its tokens and all previous ones, like tokens after a cache; so documents,
windows and soft caps work unchanged. The process with the last part of a row has the most attention to do.
Source: Llama team 2024, "The Llama 3 herd of models", section 3.3.2 (all-gather based context parallelism).

Legend: B rows, T tokens of a row, L = T / processes tokens of a part, G key and value heads, K head size, S tokens seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.train.model.decoder import LossSums
from windlass.train.parallel.strict import reduce_scatter

if TYPE_CHECKING:
    from windlass.train.model.decoder import Decoder

__all__ = ["split_rows"]


def split_rows(model: Decoder, group: dist.ProcessGroup) -> None:
    """Make a decoder process only its part of each row, in place.

    All processes of the group call it with the same whole rows. It returns the losses of whole rows, equal on all
    processes; gradients are those of its part, to be summed over the group.
    """

    def cut(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names = ("tokens_BT", "documents_BT")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("labels_BT") is None:
            message = "context parallelism is for training: pass labels, or generate with context=1"
            raise ValueError(message)
        whole: Tensor = given["tokens_BT"]
        length = whole.shape[1] // group.size()
        part = slice(group.rank() * length, (group.rank() + 1) * length)
        cache = _Neighbours(model, group, part, given.get("documents_BT"))
        for name in ("tokens_BT", "labels_BT", "documents_BT"):
            if given.get(name) is not None:
                given[name] = given[name][:, part]
        return (), {**given, "cache": cache}

    def join(module: Any, args: Any, output: object) -> LossSums:
        assert isinstance(output, LossSums)
        return LossSums(*(_with_value_of_all(own, group) for own in output))

    model.register_forward_pre_hook(cut, with_kwargs=True)
    model.register_forward_hook(join)


def _with_value_of_all(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum over the group, with the gradient of this process's part."""
    total = own.detach().clone()
    dist.all_reduce(total, group=group)
    return own + (total - own.detach())


class _Neighbours:
    """Replacement for a decoder's cache, because other processes hold the tokens before this part."""

    def __init__(self, model: Decoder, group: dist.ProcessGroup, part: slice, documents_BT: Tensor | None) -> None:
        self.length: int = part.start
        self._documents_BS = None if documents_BT is None else documents_BT[:, : part.stop]
        self.layers = {name: _Layer(group, part, model.config.window_of(int(name))) for name in model.blocks}

    def join(self, _: Tensor | None) -> Tensor | None:
        """Return the document indices of all tokens that this part sees."""
        return self._documents_BS

    def advance(self, num_new: int) -> None:
        """Count this part's tokens; the next forward has a replacement of its own."""
        self.length += num_new


class _Layer:
    def __init__(self, group: dist.ProcessGroup, part: slice, window: int | None) -> None:
        self._group = group
        kept = part.start if window is None else min(part.start, window - 1)
        self._seen = slice(part.start - kept, part.stop)

    def extend(self, k_BGLK: Tensor, v_BGLK: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that this part sees, (B, G, S, K). Collective."""
        pair: Tensor = _Gather.apply(torch.stack((k_BGLK, v_BGLK)), self._group)
        return pair[0][:, :, self._seen], pair[1][:, :, self._seen]


class _Gather(torch.autograd.Function):
    """Gathering of all parts along the token axis; the gradient of a part is summed over all processes."""

    @staticmethod
    def forward(ctx: Any, x_2BGLK: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x_2BGLK, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(parts, x_2BGLK.contiguous(), group=group)
        return torch.cat(parts, dim=3)

    @staticmethod
    def backward(ctx: Any, grad_2BGSK: Tensor) -> tuple[Tensor, None]:
        parts = torch.stack(grad_2BGSK.chunk(ctx.group.size(), dim=3))
        own = torch.empty_like(parts[0])
        reduce_scatter(own.unsqueeze(0), parts, group=ctx.group)
        return own, None
