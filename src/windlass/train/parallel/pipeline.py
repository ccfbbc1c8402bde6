"""Pipeline parallelism for a decoder: processes hold different blocks, and microbatches flow through them.

The order of forward and backward passes is one of torch's schedules. `interleaved` and `zero-bubble` give each process
two groups of blocks that are not neighbours, so that it waits less at the beginning and the end of a batch.
Sources: Huang et al. 2019, "GPipe"; Narayanan et al. 2021, "Efficient large-scale language model training", section 2.2;
Qi et al. 2023, "Zero bubble pipeline parallelism".

Legend: B rows, T tokens of a row, D width.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)

from windlass.core.errors import Problem, SpecError
from windlass.train.batch import IGNORE
from windlass.train.model.decoder import LossSums

if TYPE_CHECKING:
    from windlass.train.model.decoder import Decoder
    from windlass.train.optim.config import LossConfig
    from windlass.train.parallel.config import PipelineConfig

__all__ = ["Pipeline", "split_blocks"]

_SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}


def split_blocks(model: Decoder, config: PipelineConfig, rank: int) -> list[list[str]]:
    """Drop the blocks that this pipeline stage does not hold, in place; the names of the others do not change.

    Returns:
        Block names of each group, for all stages; a process holds every `config.stages`-th group from its rank on.
    """
    names = list(model.blocks)
    num_groups = config.num_groups
    ends = [round(len(names) * group / num_groups) for group in range(num_groups + 1)]
    groups = [names[start:end] for start, end in pairwise(ends)]
    own = {name for group in range(rank, num_groups, config.stages) for name in groups[group]}
    for name in names:
        if name not in own:
            del model.blocks[name]
    if rank != 0:
        model.embed = None
    if (num_groups - 1) % config.stages != rank:
        model.norm = model.head = None
    return groups


class Pipeline:
    """Pipeline that runs whole batches through the stages.

    Every process of the group calls it with the same rows.
    """

    def __init__(
        self,
        model: Decoder,
        groups: list[list[str]],
        config: PipelineConfig,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        """Build the stages of a decoder, after `split_blocks` and after memory has been allocated."""
        self._config, self._group, self._device = config, group, device
        self._total_weight = 1.0
        self._parts = {
            number: _Stage(_view(model, groups, number), is_last=number == len(groups) - 1)
            for number in range(group.rank(), len(groups), config.stages)
        }
        self._num_groups = len(groups)
        object.__setattr__(model, "forward", _refuse)  # the stages above are views of it, with separate attributes
        self._schedules: dict[tuple[int, ...], Any] = {}
        self._forward_schedules: dict[tuple[int, ...], tuple[Any, list[PipelineStage]]] = {}

    def train_batch(
        self,
        tokens_BT: Tensor,
        documents_BT: Tensor | None,
        labels_BT: Tensor,
        *,
        loss: LossConfig,
        total_weight: float,
        rows_at_once: int | None = None,
    ) -> LossSums:
        """Run forward and backward on all microbatches; gradients are those of the sum of losses / `total_weight`.

        Args:
            rows_at_once: maximum rows of a microbatch, if the configuration does not set their number.

        Collective. Returns undivided sums, equal on all processes of the pipeline.

        Raises:
            SpecError: rows do not divide into microbatches, or there are too many for the schedule.
        """
        schedule = self._schedule(tokens_BT, rows_at_once or len(tokens_BT))
        if self._config.schedule == "zero-bubble":
            # It computes gradients of inputs and weights separately, which a loss with a custom backward does not support.
            loss = replace(loss, kind="plain")
        self._total_weight = total_weight
        return self._sums(schedule, tokens_BT, documents_BT, labels_BT, loss)

    def eval_batch(
        self, tokens_BT: Tensor, documents_BT: Tensor | None, labels_BT: Tensor, *, loss: LossConfig
    ) -> LossSums:
        """Run forward without gradients on any number of rows. Collective.

        Returns the same sums as `train_batch`.
        """
        num_rows = len(tokens_BT)
        rows = -(-num_rows // self._config.microbatches_of(num_rows, num_rows))
        num = -(-num_rows // rows)
        missing = rows * num - num_rows
        tokens_BT, labels_BT = _with_rows(tokens_BT, missing), _with_rows(labels_BT, missing)
        labels_BT[num_rows:] = IGNORE
        documents_BT = None if documents_BT is None else _with_rows(documents_BT, missing)
        schedule, stages = self._forward_schedule(tokens_BT, num)
        with torch.no_grad():
            sums = self._sums(schedule, tokens_BT, documents_BT, labels_BT, loss)
        for stage in stages:
            stage.clear_runtime_states()  # free activations, which would otherwise stay until the next evaluation
        return sums

    def _sums(
        self, schedule: Any, tokens_BT: Tensor, documents_BT: Tensor | None, labels_BT: Tensor, loss: LossConfig
    ) -> LossSums:
        for part in self._parts.values():
            part.loss = loss
        rest: dict[str, Tensor] = {"labels_BT": labels_BT}
        if documents_BT is not None:
            rest["documents_BT"] = documents_BT
        first = (tokens_BT,) if 0 in self._parts else ()
        is_last = self._num_groups - 1 in self._parts
        outputs = schedule.step(*first, target=labels_BT if is_last else None, **rest)
        sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        if is_last:
            sums += outputs.detach().view(-1, 3).sum(dim=0)  # the schedule concatenates the microbatches' outputs
        dist.all_reduce(sums, group=self._group)
        return LossSums(*sums.unbind())

    def _schedule(self, tokens_BT: Tensor, rows_at_once: int) -> Any:
        """Return the schedule for this shape, since stages infer the shapes they exchange from their first batch."""
        num = self._config.microbatches_of(len(tokens_BT), rows_at_once)
        key = (num, *tokens_BT.shape)
        if key not in self._schedules:
            misfit = self._config.misfit(len(tokens_BT), num)
            if misfit:
                message = f"parallel.pipeline.num_microbatches: {misfit}"
                raise SpecError([Problem(message, "shape-conflict", hint=f"choose a divisor of {len(tokens_BT)}")])
            kind = cast("Any", _SCHEDULES[self._config.schedule])
            self._schedules[key] = kind(self._given(self._stages()), num, loss_fn=self._take_loss, scale_grads=False)
        return self._schedules[key]

    def _forward_schedule(self, tokens_BT: Tensor, num: int) -> tuple[Any, list[PipelineStage]]:
        """Build a forward-only schedule with its own stages, so that the stages for training keep their state."""
        key = tuple(tokens_BT.shape)
        if key not in self._forward_schedules:
            kind = cast("Any", ScheduleLoopedBFS if self._config.num_groups_each > 1 else ScheduleGPipe)
            stages = self._stages()
            self._forward_schedules[key] = kind(self._given(stages), num), stages
        return self._forward_schedules[key]

    def _stages(self) -> list[PipelineStage]:
        return [
            PipelineStage(part, number, self._num_groups, self._device, group=self._group)
            for number, part in self._parts.items()
        ]

    def _given(self, stages: list[PipelineStage]) -> PipelineStage | list[PipelineStage]:
        return stages if self._config.num_groups_each > 1 else stages[0]

    def _take_loss(self, output_3: Tensor, _: Tensor) -> Tensor:
        return output_3.sum() / self._total_weight


def _with_rows(x_BT: Tensor, missing: int) -> Tensor:
    """Return a copy padded with repetitions of the last row."""
    return torch.cat([x_BT, x_BT[-1:].expand(missing, -1)])


def _refuse(*_: object, **__: object) -> Tensor:
    message = "parallel.pipeline.stages: this process has only a stage of the model, which cannot be called alone"
    hint = "call `pipeline_of(model).train_batch`, or use one stage"
    raise SpecError([Problem(message, "unsupported-model", hint=hint)])


class _Stage(nn.Module):
    """Part of a decoder as schedules need it: one tensor in, one tensor out.

    The last stage returns three sums of losses.
    """

    def __init__(self, part: Decoder, *, is_last: bool) -> None:
        super().__init__()
        self.part = part
        self.is_last = is_last
        self.loss: LossConfig | None = None

    def forward(self, x: Tensor, *, labels_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        """Return the residual stream (B, T, D) or the losses (3,)."""
        if not self.is_last:
            out: Tensor = self.part(x, documents_BT)
            return out
        sums = self.part(x, documents_BT, labels_BT=labels_BT, loss=self.loss)
        assert isinstance(sums, LossSums)
        return torch.stack(tuple(sums))


def _view(model: Decoder, groups: list[list[str]], number: int) -> Decoder:
    """Return a view of the decoder with one group of blocks, which shares weights and hooks."""
    view = copy.copy(model)
    view._modules = dict(model._modules)
    view.blocks = nn.ModuleDict({name: model.blocks[name] for name in groups[number]})
    if number != 0:
        view.embed = None
    if number != len(groups) - 1:
        view.norm = view.head = None
    return view
