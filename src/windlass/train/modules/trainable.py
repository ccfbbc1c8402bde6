"""A model with its optimiser: the parts that train modules share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from windlass.train.model.adapters import check_base, is_of_adapter, sample_base
from windlass.train.modules.protocol import StepFacts
from windlass.train.modules.state import load_training_state, training_state
from windlass.train.optim.build import set_lr
from windlass.train.optim.clip import clip
from windlass.train.optim.config import SkipConfig
from windlass.train.optim.skip import SkipGuard, guarded_step
from windlass.train.parallel.world import World
from windlass.train.randomness import seed_for, seed_generators

__all__ = ["TrainableModel"]


class TrainableModel:
    """Clips gradients, skips outliers, steps, and keeps the state for checkpoints.

    Args:
        model: model after `parallelize`.
        optimizer: optimizer of its parameters; its learning rates are the peaks.
        max_grad_norm: gradients are clipped to this norm; None: no clipping.
        skip: settings for skipping outlier steps.
        is_strict: whether gradients were summed in a fixed tree.
        seed: seed of the model's random numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float | None = 1.0,
        skip: SkipConfig | None = None,
        is_strict: bool = False,
        world: World | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.max_grad_norm, self.is_strict, self.seed = max_grad_norm, is_strict, seed
        self.world = world or World(device=torch.device("cpu"))
        for group in optimizer.param_groups:
            group.setdefault("peak_lr", group["lr"])
        self._guard = None if skip is None else SkipGuard(skip, self.world.device, self._sum_over_share)
        self._base: Mapping[str, Tensor] | None = None
        self._loss = torch.zeros(())  # of the last `train_batch`, by which outliers are found

    def optim_step(self, facts: StepFacts) -> Mapping[str, Tensor]:
        """Clip, step, zero the gradients."""
        mesh = self.world.mesh
        stages = mesh["pp"].get_group() if mesh is not None and "pp" in (mesh.mesh_dim_names or ()) else None
        norm = clip(self.model.parameters(), self.max_grad_norm, is_strict=self.is_strict, stages=stages)
        set_lr(self.optimizer, facts.lr_factor)
        metrics = {"grad_norm": norm}
        if self._guard is None:
            self.optimizer.step()
        else:
            metrics["skipped"] = self._guard.judge(self._loss, norm)
            guarded_step(self.optimizer, metrics["skipped"])
        self.optimizer.zero_grad(set_to_none=True)
        return metrics

    def keep_base(self) -> None:
        """Leave the frozen weights beside an adapter out of the state, except for a few values of each. Collective.

        Call it when the weights of the base model are loaded.
        """
        self._base = sample_base(self.model)

    def state_dict(self) -> dict[str, Any]:
        """Return weights and the optimiser's state, by parameter name; with `skip`, its history as `guard`.

        With an adapter, the weights are the adapter's, and `base` holds values of each frozen weight.
        """
        state = training_state(self.model, self.optimizer)
        if self._base is not None:
            state["model"] = {name: value for name, value in state["model"].items() if is_of_adapter(name)}
            state["base"] = {name: value.clone() for name, value in self._base.items()}
        return state if self._guard is None else {**state, "guard": self._guard.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore weights and the optimiser's state.

        Raises:
            CheckpointError: an adapter was trained beside another base model.
        """
        if self._base is not None and "base" in state:
            check_base(self._base, state["base"], "the one of this run")
        load_training_state(self.model, self.optimizer, state)
        if self._guard is not None and "guard" in state:
            self._guard.load_state_dict(state["guard"])

    def seed_microbatch(self, facts: StepFacts, rows: tuple[int, ...], place: int) -> None:
        """Seed the model's random numbers by the first row, so that they do not depend on the process."""
        first = rows[0] if rows else self.world.share.rank * 1_000_003 + place
        seed_generators(seed_for(self.seed, facts.step, first), self.world.device)

    def _sum_over_share(self, value: Tensor) -> None:
        """Sum over data-parallel processes, in place; processes that share rows have the same value."""
        if self.world.size > 1:
            value.mul_(self.world.share.world / self.world.size)
            torch.distributed.all_reduce(value)
