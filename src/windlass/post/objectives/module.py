"""Train module for objectives: microbatches of token rows, each loss component over its own global weight."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from windlass.post.objectives.batch import LossTotals, Objective, Scores, TokenBatch, TokenRows
from windlass.post.objectives.logprobs import LogProbs, TokenScores
from windlass.train.model.adapters import num_adapter_weights
from windlass.train.model.decoder import Decoder, LossSums
from windlass.train.model.flops import flops_per_token
from windlass.train.modules.protocol import StepFacts
from windlass.train.modules.trainable import TrainableModel
from windlass.train.optim.config import LossConfig, SkipConfig
from windlass.train.parallel.sync import no_sync
from windlass.train.parallel.world import World

__all__ = ["ObjectiveModule"]


class ObjectiveModule(TrainableModel):
    """A decoder with an objective and its optimiser, on this process's microbatches.

    Args:
        model: decoder after `parallelize`.
        language_loss: for an objective that is the plain cross-entropy of labels with weight 1: computed in chunks, in
            three products with the head instead of four.
        temperature: logits are divided by it, as they were at sampling.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        *,
        language_loss: LossConfig | None = None,
        temperature: float = 1.0,
        max_grad_norm: float | None = 1.0,
        skip: SkipConfig | None = None,
        world: World | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer, max_grad_norm=max_grad_norm, skip=skip, world=world, seed=seed)
        self.objective, self._language_loss = objective, language_loss
        self._log_probs = LogProbs(
            temperature=temperature,
            wants_entropy=objective.wants_entropy,
            wants_log_squares=objective.wants_log_squares,
        )

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the loss components."""
        return self.objective.components

    def weigh(self, batch: TokenBatch) -> tuple[float, ...]:
        """Return the weight of each loss component on this process."""
        weights = [self.objective.weigh(part) for part in batch.parts]
        return tuple(map(sum, zip(*weights, strict=True))) if weights else (0.0,) * len(self.components)

    def count(self, batch: TokenBatch) -> int:
        """Return the number of tokens, padding included."""
        return batch.num_tokens

    def train_batch(self, batch: TokenBatch, facts: StepFacts) -> Mapping[str, Tensor]:
        """Run forward and backward of all microbatches; the last one sums gradients over processes."""
        self.model.train()
        found: list[LossTotals] = []
        for place, part in enumerate(batch.parts):
            self.seed_microbatch(facts, part.rows, place)
            with no_sync(self.model, place == len(batch.parts) - 1):
                sums = self._sums(part.to(self.world.device))
                self._loss_of(sums, facts.total_weights).backward()
            found.append(_detached(sums))
        metrics = self._metrics(found, facts.total_weights)
        self._loss = metrics["loss"]
        return metrics

    def eval_batch(self, batch: TokenBatch) -> Mapping[str, Tensor]:
        """Return the sum of the first component's losses and its weight, without gradients."""
        self.model.eval()
        name = self.components[0]
        with torch.no_grad():
            losses = [self._sums(part.to(self.world.device)).losses[name] for part in batch.parts]
        return {
            "loss": torch.stack(losses).sum(),
            "weight": torch.tensor(self.weigh(batch)[0], dtype=torch.float32, device=self.world.device),
        }

    def flops(self, batch: TokenBatch) -> float:
        """Return the forward and backward FLOPs of this process's rows, without recomputation."""
        if not isinstance(self.model, Decoder):
            return 0.0
        config, added = self.model.config, num_adapter_weights(self.model)
        return sum(
            flops_per_token(config, part.tokens_BT.shape[1], adapter_weights=added) * float(part.tokens_BT.numel())
            for part in batch.parts
        )

    def _sums(self, rows: TokenRows) -> LossTotals:
        if self._language_loss is not None:
            found = self._forward(rows, self._language_loss)
            assert isinstance(found, LossSums)
            total = found.loss + found.z_loss + found.aux
            return LossTotals(losses={self.components[0]: total}, metrics={"nll": found.loss.detach()})
        if self.objective.wants_values:
            values_BT = self.model(rows.tokens_BT, rows.documents_BT)
            return self.objective.sums(rows, Scores(values_BT=values_BT))
        found = self._forward(rows, self._log_probs)
        assert isinstance(found, TokenScores)
        return self.objective.sums(
            rows, Scores(logp_BT=found.logp, entropy_BT=found.entropy, log_squares_BT=found.log_squares)
        )

    def _forward(self, rows: TokenRows, loss: LossConfig | LogProbs) -> object:
        return self.model(rows.tokens_BT, rows.documents_BT, labels_BT=rows.labels_BT, loss=loss, **rows.context())

    def _loss_of(self, sums: LossTotals, weights: tuple[float, ...]) -> Tensor:
        """Return the sum of the components, each divided by its global weight; one without weight counts nothing."""
        parts = [
            sums.losses[name] / weight if weight else sums.losses[name] * 0.0
            for name, weight in zip(self.components, weights, strict=True)
        ]
        return sum(parts[1:], parts[0])

    def _metrics(self, found: list[LossTotals], weights: tuple[float, ...]) -> dict[str, Tensor]:
        """Return this process's share of each mean; `loss` is their sum."""
        by_name = dict(zip(self.components, weights, strict=True))
        losses = {
            name: torch.stack([each.losses[name] for each in found]).sum() / (weight or 1.0)
            for name, weight in by_name.items()
        }
        metrics = {"loss": torch.stack(list(losses.values())).sum()}
        if len(losses) > 1:
            metrics |= {f"loss_{name}": value for name, value in losses.items()}
        sums = _added([each.metrics for each in found])
        own_weights = self._over_share(_added([each.weights for each in found]))
        for name, total in sums.items():
            metrics[name] = total / (own_weights[name].clamp(min=1e-12) if name in own_weights else weights[0] or 1.0)
        return metrics

    def _over_share(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum values over data-parallel processes."""
        if not values:
            return {}
        total = torch.stack(list(values.values())).double()
        self._sum_over_share(total)
        return dict(zip(values, total.unbind(), strict=True))


def _added(parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sum of each name over microbatches."""
    found: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found[name] + value if name in found else value
    return found


def _detached(sums: LossTotals) -> LossTotals:
    return LossTotals(
        losses={name: value.detach() for name, value in sums.losses.items()}, metrics=sums.metrics, weights=sums.weights
    )
