"""A decoder whose blocks lie on several processes; microbatches flow through them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from windlass.core.errors import Problem, SpecError
from windlass.train.batch import Batch
from windlass.train.modules.language import LanguageModule
from windlass.train.modules.protocol import StepFacts
from windlass.train.parallel.apply import pipeline_of
from windlass.train.parallel.sync import no_sync, sync_gradients

__all__ = ["PipelinedModule"]


class PipelinedModule(LanguageModule):
    """As `LanguageModule`, for a model that `parallelize` cut into stages (unproven on hardware).

    The schedule cuts a process's rows into microbatches of its own (`parallel.pipeline.num_microbatches`).
    """

    def train_batch(self, batch: Batch, facts: StepFacts) -> Mapping[str, Tensor]:
        """Forward and backward through all stages. Collective over them."""
        pipeline = pipeline_of(self.model)
        assert pipeline is not None
        device = self.world.device
        self.model.train()
        self._seed(facts, batch, 0)
        documents_BT = None if batch.documents_BT is None else batch.documents_BT.to(device, non_blocking=True)
        with no_sync(self.model, False):
            sums = pipeline.train_batch(
                batch.tokens_BT.to(device, non_blocking=True),
                documents_BT,
                batch.labels_BT.to(device, non_blocking=True),
                loss=self.loss,
                total_weight=facts.total_weight,
            )
        sync_gradients(self.model)
        metrics = self._metrics([sums], facts.total_weight)
        self._loss = metrics["loss"]
        return metrics

    def eval_batch(self, batch: Batch) -> Mapping[str, Tensor]:
        """Stages only train.

        Raises:
            SpecError: always.
        """
        message = "parallel.pipeline.stages: a model that is cut into stages cannot be evaluated while it trains"
        hint = "set `no_evals=true`, and evaluate its checkpoints"
        raise SpecError([Problem(message, "unsupported-model", hint=hint)])
