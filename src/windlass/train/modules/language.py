"""Train module for next-token prediction with a decoder.

Legend: B rows of a process, M rows of a microbatch, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from windlass.core.errors import Problem, SpecError
from windlass.train.batch import IGNORE, Batch
from windlass.train.errors import TrainingError
from windlass.train.model.adapters import num_adapter_weights
from windlass.train.model.decoder import Decoder, LossSums
from windlass.train.model.flops import flops_per_token
from windlass.train.modules.protocol import StepFacts
from windlass.train.modules.trainable import TrainableModel
from windlass.train.optim.config import LossConfig, SkipConfig
from windlass.train.optim.loss import logits_loss
from windlass.train.parallel.strict import MicrobatchTree
from windlass.train.parallel.sync import no_sync
from windlass.train.parallel.world import World
from windlass.train.targets.model import flops_of, form_of

__all__ = ["LanguageModule", "microbatches"]


class LanguageModule(TrainableModel):
    """Train module for a decoder, its loss and its optimizer, which runs this process's rows in microbatches.

    Args:
        model: model after `parallelize`: a decoder, or any module from `tokens_BT` (and `documents_BT`, if it has that
            parameter) to logits, or with `labels_BT` and `loss` to `LossSums`.
        optimizer: optimizer of its parameters; its learning rates are the peaks.
        loss: settings of the loss.
        max_grad_norm: norm to which gradients are clipped; if None, they are not clipped.
        skip: settings for skipping outlier steps.
        is_strict: sum gradients in a fixed tree, by microbatch; must match the model's parallelization.
        seed: seed of the model's random numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        loss: LossConfig | None = None,
        max_grad_norm: float | None = 1.0,
        skip: SkipConfig | None = None,
        is_strict: bool = False,
        world: World | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model,
            optimizer,
            max_grad_norm=max_grad_norm,
            skip=skip,
            is_strict=is_strict,
            world=world,
            seed=seed,
        )
        self.loss = loss or LossConfig()
        self._length, self._flops_per_token = 0, 0.0
        self._form = form_of(model)
        if self._form.gives == "logits" and self.loss.kind == "chunked":
            message = f"loss.kind: a {type(model).__name__} returns all logits at once, not in chunks"
            raise SpecError([Problem(message, "setting-unused", None, "set `loss.kind=auto`")])

    def weigh(self, batch: Batch) -> float:
        """Return the number of labels that count."""
        return float((batch.labels_BT != IGNORE).sum())

    def count(self, batch: Batch) -> int:
        """Return the number of tokens, including padding."""
        return int(batch.tokens_BT.numel())

    def train_batch(self, batch: Batch, facts: StepFacts) -> Mapping[str, Tensor]:
        """Run forward and backward on all microbatches; the last one sums gradients over processes."""
        self.model.train()
        parts = list(microbatches(batch))
        tree = MicrobatchTree(self.model.parameters()) if self.is_strict else None
        totals: list[LossSums] = []
        for place, part in enumerate(parts):
            self.seed_microbatch(facts, part.rows, place)
            with no_sync(self.model, tree is not None or place == len(parts) - 1):
                sums = self._losses(part)
                (sums.loss + sums.z_loss + sums.aux).div(facts.total_weight).backward()
            if tree is not None:
                tree.add()
            totals.append(LossSums(*(value.detach() for value in sums)))
        if tree is not None:
            tree.finish()
        metrics = self._metrics(totals, facts.total_weight)
        self._loss = metrics["loss"]
        return metrics

    def eval_batch(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the sum of cross-entropies and the number of labels that count, without computing gradients."""
        self.model.eval()
        with torch.no_grad():
            losses = torch.stack([self._losses(part).loss for part in microbatches(batch)])
        weight = torch.tensor(self.weigh(batch), dtype=torch.float32, device=losses.device)
        return {"loss": losses.sum(), "weight": weight}

    def flops(self, batch: Batch) -> float:
        """Return the forward and backward FLOPs for this process's rows, without recomputation."""
        length = batch.tokens_BT.shape[1]
        if length != self._length:
            own = self.model.config if isinstance(self.model, Decoder) else None
            self._length = length
            added = num_adapter_weights(self.model)
            self._flops_per_token = (
                flops_of(self.model, length) if own is None else flops_per_token(own, length, adapter_weights=added)
            )
        return self._flops_per_token * float(batch.tokens_BT.numel())

    def _losses(self, part: Batch) -> LossSums:
        device = self.world.device
        documents_BT = None if part.documents_BT is None else part.documents_BT.to(device, non_blocking=True)
        tokens_BT, labels_BT = (each.to(device, non_blocking=True) for each in (part.tokens_BT, part.labels_BT))
        named = {"documents_BT": documents_BT} if self._form.takes_documents else {}
        if self._form.gives == "sums":
            found = self.model(tokens_BT, labels_BT=labels_BT, loss=self.loss, **named)
            return found if isinstance(found, LossSums) else _refuse(self.model, found, "LossSums")
        found = self.model(tokens_BT, **named)
        logits_BTV = getattr(found, "logits", found)
        if not isinstance(logits_BTV, Tensor) or logits_BTV.shape[:-1] != labels_BT.shape:
            return _refuse(self.model, found, f"logits of shape {(*labels_BT.shape, 'vocabulary')}")
        loss, z_loss = logits_loss(logits_BTV.flatten(0, -2), labels_BT.flatten(), self.loss.z_loss)
        return LossSums(loss, z_loss, loss.new_zeros(()))

    def _metrics(self, totals: list[LossSums], weight: float) -> dict[str, Tensor]:
        sums = LossSums(*(torch.stack(values).double().sum() / weight for values in zip(*totals, strict=True)))
        metrics = {"loss": sums.loss}
        if self.loss.z_loss:
            metrics["z_loss"] = sums.z_loss
        config = self.model.config if isinstance(self.model, Decoder) else None
        if config is not None and config.moe is not None:
            metrics["moe_loss"] = sums.aux
        elif config is None and self._form.gives == "sums":
            metrics["aux_loss"] = sums.aux
        return metrics


def _refuse(model: nn.Module, found: object, wanted: str) -> LossSums:
    shape = f" of shape {tuple(found.shape)}" if isinstance(found, Tensor) else ""
    message = f"{type(model).__name__}.forward returned a {type(found).__name__}{shape}; the loss needs {wanted}"
    hint = "return logits, or accept `labels_BT` and `loss` and return windlass.train.LossSums"
    raise TrainingError(message, hint=hint, code="unsupported-model")


def microbatches(batch: Batch) -> Iterator[Batch]:
    """Yield views of the batch in order, with `num_rows_step` rows each."""
    step = batch.num_rows_step
    if step == len(batch.tokens_BT):
        yield batch
        return
    for start in range(0, len(batch.tokens_BT), step):
        rows = slice(start, start + step)
        yield Batch(
            tokens_BT=batch.tokens_BT[rows],
            labels_BT=batch.labels_BT[rows],
            documents_BT=None if batch.documents_BT is None else batch.documents_BT[rows],
            rows=batch.rows[rows],
            num_rows_step=step,
        )
