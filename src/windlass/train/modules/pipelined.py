"""Train module for a decoder that is split into pipeline stages, through which microbatches flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windlass.train.batch import Batch
from windlass.train.modules.language import LanguageModule
from windlass.train.modules.protocol import StepFacts
from windlass.train.parallel.apply import pipeline_of
from windlass.train.parallel.sync import no_sync, sync_gradients

if TYPE_CHECKING:
    from windlass.train.parallel.pipeline import Pipeline

__all__ = ["PipelinedModule"]


class PipelinedModule(LanguageModule):
    """`LanguageModule` for a model that `parallelize` has split into stages (unproven on hardware).

    The schedule cuts a process's rows into microbatches (`PipelineConfig.microbatches_of`).
    """

    def train_batch(self, batch: Batch, facts: StepFacts) -> Mapping[str, Tensor]:
        """Run forward and backward through all stages. Collective over the stages."""
        self.model.train()
        self.seed_microbatch(facts, batch.rows, 0)
        with no_sync(self.model, False):
            sums = self._pipeline.train_batch(
                *self._moved(batch),
                loss=self.loss,
                total_weight=facts.total_weight,
                rows_at_once=batch.num_rows_step,
            )
        sync_gradients(self.model)
        metrics = self._metrics([sums], facts.total_weight)
        self._loss = metrics["loss"]
        return metrics

    def eval_batch(self, batch: Batch) -> Mapping[str, Tensor]:
        """Run forward through all stages; return the same sums on each. Collective over the stages."""
        self.model.eval()
        sums = self._pipeline.eval_batch(*self._moved(batch), loss=self.loss)
        return {"loss": sums.loss, "weight": torch.tensor(self.weigh(batch), device=sums.loss.device)}

    @property
    def _pipeline(self) -> Pipeline:
        found = pipeline_of(self.model)
        assert found is not None
        return found

    def _moved(self, batch: Batch) -> tuple[Tensor, Tensor | None, Tensor]:
        device = self.world.device
        documents_BT = None if batch.documents_BT is None else batch.documents_BT.to(device, non_blocking=True)
        tokens_BT = batch.tokens_BT.to(device, non_blocking=True)
        return tokens_BT, documents_BT, batch.labels_BT.to(device, non_blocking=True)
