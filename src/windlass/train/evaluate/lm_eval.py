"""The callback `lm-eval`: loss and perplexity on held-out sources while training goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass import report
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.duration import Duration
from windlass.train.evaluate.loss import EvalLoss, evaluate
from windlass.train.evaluate.rows import HeldOut, open_held_out
from windlass.train.progress import is_due

if TYPE_CHECKING:
    from windlass.train.callbacks.config import LMEvalConfig
    from windlass.train.data.config import DataConfig

__all__ = ["LMEval", "Moment", "PeriodicEvaluation", "lm_eval_callback"]


@dataclass(frozen=True, slots=True)
class Moment:
    """Where training stood."""

    step: int = 0
    tokens: int = 0
    epoch: int = 0


class PeriodicEvaluation(TrainerCallback):
    """Something that is measured every so often, and always at the end; subclasses say what.

    Args:
        every: between measurements; None: only at the end.
        at_start: whether one comes before the first step.
    """

    priority = -10  # after callbacks that change the model, before the checkpointer

    def __init__(self, *, every: Duration | None = None, at_start: bool = False) -> None:
        self.every, self.at_start = every, at_start
        self._before = Moment()

    def measure(self) -> Mapping[str, float] | None:
        """Names of metrics to values, equal on all processes; None where it was asked to stop. Collective."""
        raise NotImplementedError

    def on_start(self) -> None:
        """Count from here."""
        self._before = self._moment()
        if self.at_start and self.trainer.step == 0:
            self._run()

    def on_step_end(self) -> None:
        """Measure what is due."""
        before, now = self._before, self._moment()
        self._before = now
        is_time = self.every is not None and is_due(self.every, before, now)
        if is_time or self.trainer.is_complete:
            self._run()

    def _run(self) -> None:
        report.progress("eval", step=self.trainer.step)
        for name, value in (self.measure() or {}).items():
            self.trainer.record(name, value, "none")
        report.progress("step", step=self.trainer.step)

    def _moment(self) -> Moment:
        return Moment(self.trainer.step, self.trainer.tokens, self.trainer.epoch)


class LMEval(PeriodicEvaluation):
    """Metrics `eval/NAME/loss` and `eval/NAME/perplexity` of held-out sources.

    A stop that is heard meanwhile ends it before the next batch, and nothing is recorded of sources that were not done.

    Attributes:
        found: of the last evaluation that was finished, by name.
    """

    def __init__(self, sources: Sequence[HeldOut], *, every: Duration | None = None, at_start: bool = False) -> None:
        super().__init__(every=every, at_start=at_start)
        self.sources = tuple(sources)
        self.found: dict[str, EvalLoss] = {}

    def measure(self) -> Mapping[str, float] | None:
        """Loss of every source. Collective."""
        trainer = self.trainer
        metrics: dict[str, float] = {}
        for source in self.sources:
            loss = evaluate(trainer.module, source, trainer.world, should_stop=trainer.agree_on_stop)
            if loss is None:
                break
            self.found[source.name] = loss
            metrics |= {f"eval/{source.name}/loss": loss.loss, f"eval/{source.name}/perplexity": loss.perplexity}
        return metrics


def lm_eval_callback(config: LMEvalConfig, data: DataConfig, *, vocab_size: int) -> LMEval:
    """The callback of its settings; opens all sources, so that a missing file is found before training.

    Raises:
        SpecError, TrainingError: a source is missing, broken or of another vocabulary.
    """
    sources = [
        open_held_out(name, source, data, vocab_size=vocab_size, max_tokens=config.max_tokens)
        for name, source in config.sources.items()
    ]
    return LMEval(sources, every=config.every, at_start=config.at_start)
