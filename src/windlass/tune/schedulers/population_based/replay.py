"""Replay, in a single trial, of a schedule of configurations found by population based training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.schedulers.fifo import ENDLESS, FIFO, refuse
from windlass.tune.schedulers.population_based.explore import tag_of
from windlass.tune.schedulers.population_based.policy import read_policy, schedule_of
from windlass.tune.schedulers.protocol import CONTINUE, NOOP, ScheduledSweep, Verdict
from windlass.tune.space.values import flat
from windlass.tune.trial import Metrics, Trial

__all__ = ["PopulationBasedTrainingReplay"]

_TIME = "training_iteration"


class PopulationBasedTrainingReplay(FIFO):
    """Scheduler that trains one trial with the configurations of another, changed at the same iterations.

    The trial saves, and continues from there with the next configuration.

    Args:
        policy_file: a sweep's folder, or a policy file of Ray Tune; read now, and not again when a sweep is restored.
        trial: of a sweep: its id or number.
        config: the first configuration, in place of a file.
        changes: with it: pairs of an iteration and the configuration from there on.
    """

    needs_saving = True
    forbids_learning = True

    def __init__(
        self,
        policy_file: str | Path | None = None,
        trial: str | int | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        changes: Sequence[tuple[int, Mapping[str, Any]]] | None = None,
    ) -> None:
        super().__init__()
        if (policy_file is None) == (changes is None):
            raise refuse(
                "a replay needs either `policy_file` or `changes`",
                'pass for example policy_file="sweeps/NAME", trial=3',
            )
        self.policy_file = None if policy_file is None else str(policy_file)
        self.trial = trial
        if policy_file is not None:
            found, read = schedule_of(read_policy(policy_file, None if trial is None else str(trial)))
            config, changes = found, read
        self.config = config
        self.changes = [(int(step), dict(new)) for step, new in changes or ()]
        self._name = "replay" if self.policy_file is None else f"replay_{Path(self.policy_file).name}"
        self._next = 0
        self._replayed = ""

    def settings(self) -> Mapping[str, object]:
        """Return the content of the schedule, so that the file is not needed again."""
        changes = [[step, new] for step, new in self.changes]
        return {"type": type(self).__name__, "config": self.config, "changes": changes}

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        super().on_add(sweep, trial)
        if self._replayed == trial.id:
            return
        if self._replayed:
            raise BadValueError(
                f"a replay trains one trial, but trial {trial.id} is a second one",
                hint="set num_samples=1 and leave param_space empty",
                code="invalid-value",
            )
        if self.config is None and not trial.config:
            hint = "pass a param_space, or name a trial whose configuration changed"
            raise BadValueError(
                "the policy contains no changes, and the trial has no configuration", hint=hint, code="no-policy"
            )
        self._replayed = trial.id
        if self.config is not None:
            trial.config, trial.assigned = copy.deepcopy(dict(self.config)), flat(self.config)

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        if self._next == len(self.changes) or _TIME not in result or result[_TIME] < self.changes[self._next][0]:
            return CONTINUE
        step, config = self.changes[self._next]
        saved = sweep.save(trial)
        if saved is None:
            return CONTINUE
        self._next += 1
        sweep.exploit(
            trial,
            config=copy.deepcopy(config),
            source=saved,
            tag=tag_of(self._name, config),
            why=f"the schedule changes the configuration at iteration {step}",
            assigned=flat(config),
        )
        return NOOP

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        """Return the number of reports until the next change."""
        if self._next == len(self.changes):
            return ENDLESS
        return min(max(self.changes[self._next][0] - trial.iteration, 1), ENDLESS)
