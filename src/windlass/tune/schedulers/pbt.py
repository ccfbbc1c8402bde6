"""Population based training, asynchronous or in step, with the same decisions as Ray Tune's scheduler of this name.

Source: Jaderberg et al. 2017, "Population based training of neural networks" (arXiv 1711.09846).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from windlass.core.phrases import count
from windlass.tune.errors import BadValueError
from windlass.tune.rng import seeded
from windlass.tune.schedulers.fifo import ENDLESS, FIFO, check_mode, refuse
from windlass.tune.schedulers.population_based.explore import (
    Config,
    check_mutations,
    draw_value,
    explore,
    fill,
    mutated,
    tag_of,
)
from windlass.tune.schedulers.population_based.ranking import Member, Population
from windlass.tune.schedulers.protocol import CONTINUE, NOOP, ScheduledSweep, SchedulerDecision, Verdict
from windlass.tune.space.values import flat
from windlass.tune.trial import Metrics, Trial

__all__ = ["PopulationBasedTraining"]


class PopulationBasedTraining(FIFO):
    """Scheduler in which the worst trials copy the best.

    At intervals the worst trials copy the state and configuration of the best, and then change the configuration.

    Each trial is considered every `perturbation_interval`, after `burn_in_period`. Among the best `quantile_fraction` of
    all live trials it saves; among the worst it continues as a clone of one of the best that has saved. Where trials
    outnumber slots, a trial is paused after each interval for the one that is furthest behind.

    Args:
        time_attr: measure of progress.
        hyperparam_mutations: by name a list (resample, or step to a neighbour), a space or a function without
            arguments (resample, or multiply), or a nested dictionary of those. Values that a trial's
            configuration lacks are drawn.
        resample_probability: chance that a value is drawn again; else it is changed a little.
        perturbation_factors: one of them multiplies a value.
        custom_explore_fn: gets the new configuration and returns the one to use.
        log_config: accepted for scripts that pass it; the journal always has every exploit.
        require_attrs: False skips results that lack `time_attr` or the metric.
        synch: all trials wait for each other at each interval.
    """

    needs_saving = True
    forbids_learning = True

    def __init__(  # noqa: PLR0917 - in the order of Ray Tune's arguments
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Callable[[Config], Any] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
    ) -> None:
        check_mode(mode)
        super().__init__()
        self.time_attr, self.metric, self.mode = time_attr, metric, mode
        self.perturbation_interval, self.burn_in_period = perturbation_interval, burn_in_period
        self.hyperparam_mutations = dict(hyperparam_mutations or {})
        self.quantile_fraction, self.resample_probability = quantile_fraction, resample_probability
        self.perturbation_factors, self.custom_explore_fn = perturbation_factors, custom_explore_fn
        self.log_config, self.require_attrs, self.synch = log_config, require_attrs, synch
        self._check()
        self._population = Population(quantile_fraction)
        self._barrier = max(perturbation_interval, burn_in_period)
        self._behind: set[str] = set()  # members that have not come to the barrier
        self._num_draws: dict[str, int] = {}

    def _check(self) -> None:
        check_mutations(self.hyperparam_mutations)
        if not self.hyperparam_mutations and self.custom_explore_fn is None:
            hint = 'pass for example hyperparam_mutations={"lr": tune.loguniform(1e-5, 1e-1)}'
            raise refuse("population based training has neither hyperparam_mutations nor custom_explore_fn", hint)
        if not 0 <= self.quantile_fraction <= 0.5:
            raise refuse(f"quantile_fraction is {self.quantile_fraction!r}", "use a value between 0 and 0.5")
        if not self.perturbation_interval > 0:
            raise refuse(f"perturbation_interval is {self.perturbation_interval!r}", "use a value above 0")
        if not self.perturbation_factors:
            raise refuse("perturbation_factors is empty", "the default is (1.2, 0.8)")

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        super().on_add(sweep, trial)
        rng = sweep.draw("pbt-fill", trial.id)
        trial.assigned.update(flat(fill(trial.config, self.hyperparam_mutations, lambda one: self._drawn(one, rng))))
        self._population.add(trial)
        self._behind.add(trial.id)

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        if not self._has_attributes(sweep, trial, result):
            return CONTINUE
        time, member = result[self.time_attr], self._population.members[trial.id]
        if time < self.burn_in_period or time - member.perturbed_at < self.perturbation_interval:
            return CONTINUE
        self._record(member, time, self.score(sweep, result))
        return self._meet(sweep, member, time) if self.synch else self._perturb(sweep, member, time)

    def on_complete(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        super().on_complete(sweep, trial, result)
        self._leave(trial)

    def on_error(self, sweep: ScheduledSweep, trial: Trial) -> None:
        super().on_error(sweep, trial)
        self._leave(trial)

    def on_remove(self, sweep: ScheduledSweep, trial: Trial) -> None:
        super().on_remove(sweep, trial)
        self._leave(trial)

    def choose(self, sweep: ScheduledSweep) -> Trial | None:
        """Return the waiting trial that is furthest behind; with `synch`, only one that has not reached the barrier."""
        if sweep.is_searching and not sweep.pending:
            return None  # a new trial is furthest behind
        if self.synch and not (self._behind or sweep.running) and sweep.paused:
            self._pass_barrier(sweep, self._population.furthest)  # the one that all waited for is over
        waiting = [*sweep.pending.values(), *sweep.paused.values()]
        if self.synch:
            waiting = [trial for trial in waiting if trial.id in self._behind]
        waiting.sort(key=lambda trial: (self._population.members[trial.id].trained_to, self.turn(trial)))
        return next((trial for trial in waiting if sweep.may_start(trial)), None)

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        """Return the number of reports until the trial's next perturbation, if `time_attr` counts reports."""
        member = self._population.members.get(trial.id)
        if self.time_attr != "training_iteration" or member is None:
            return 1
        due = max(self.burn_in_period, member.perturbed_at + self.perturbation_interval)
        return min(max(math.ceil(due) - trial.iteration, 1), ENDLESS)

    def _record(self, member: Member, time: float, score: float) -> None:
        """Record a member's newest score and how far it has trained."""
        self._population.rank(member, score)
        member.trained_to = time
        if time >= self._barrier:
            self._behind.discard(member.trial.id)

    def _perturb(self, sweep: ScheduledSweep, member: Member, time: float) -> Verdict:
        member.perturbed_at = time
        lower, upper = self._population.quantiles()
        others_wait = bool(sweep.pending or sweep.paused or sweep.is_searching)
        if self._save_or_exploit(sweep, member, lower, upper):
            return NOOP
        if others_wait:
            return Verdict(SchedulerDecision.PAUSE, "it is paused for a trial that is further behind")
        return CONTINUE

    def _meet(self, sweep: ScheduledSweep, member: Member, time: float) -> Verdict:
        if sweep.is_searching:
            return Verdict(
                SchedulerDecision.PAUSE, f"it waits at {self.time_attr} {time:g} for trials that were not suggested yet"
            )
        num_behind = len(self._behind) - (member.trial.id in self._behind)
        if num_behind:
            return Verdict(
                SchedulerDecision.PAUSE, f"it waits at {self.time_attr} {time:g} for {count(num_behind, 'other trial')}"
            )
        if member in self._pass_barrier(sweep, time):
            return NOOP
        return Verdict(SchedulerDecision.PAUSE, f"all trials reached {self.time_attr} {time:g}; they continue in turn")

    def _pass_barrier(self, sweep: ScheduledSweep, time: float) -> list[Member]:
        """Consider every member, the best first so that they have saved; return those that became clones."""
        members = self._population.members
        lower, upper = self._population.quantiles()
        for other in members.values():
            other.perturbed_at = time
            if other not in upper:
                other.saved = None
        exploited = [one for one in [*upper, *lower] if self._save_or_exploit(sweep, one, lower, upper)]
        self._barrier = max(self._barrier + self.perturbation_interval, self._population.furthest)
        self._behind = {name for name, other in members.items() if other.trained_to < self._barrier}
        return exploited

    def _save_or_exploit(self, sweep: ScheduledSweep, member: Member, lower: list[Member], upper: list[Member]) -> bool:
        """Save a member that is among the best, or make one among the worst a clone; return whether it became a clone."""
        member.saved = sweep.save(member.trial) if member in upper else None
        if member not in lower:
            return False
        name = member.trial.id
        self._num_draws[name] = self._num_draws.get(name, 0) + 1
        rng = sweep.draw("pbt", name, self._num_draws[name])
        source = rng.choice(upper)
        if source.saved is None:
            return False
        self._exploit(sweep, member, source, rng)
        return True

    def _exploit(self, sweep: ScheduledSweep, member: Member, source: Member, rng: Random) -> None:
        assert source.saved is not None
        trial, model = member.trial, source.trial
        config, done = self._changed(sweep, member, source, rng)
        if self.custom_explore_fn is not None:
            with seeded(rng.getrandbits(64)):
                config = self.custom_explore_fn(config)
            if not isinstance(config, dict):
                hint = "return the configuration that the function was called with, changed"
                raise BadValueError(f"custom_explore_fn returned {config!r}", hint=hint, code="invalid-value")
        changes = mutated(config, self.hyperparam_mutations)
        words = ", ".join(f"{name} {how}" for name, how in flat(done).items())
        num, sign = self._population.num_ranked, self.sign_in(sweep)
        scores = f"{sign * (member.score or 0):.6g} against {sign * (source.score or 0):.6g}"
        why = f"among the worst of {num}, it takes over from trial {model.id} ({scores})" + (
            f": {words}" if words else ""
        )
        assigned = {**model.assigned, **flat(changes)}
        tag = tag_of(trial.number, changes)
        sweep.exploit(trial, config=config, source=source.saved, tag=tag, why=why, assigned=assigned)
        member.perturbed_at, member.trained_to = source.perturbed_at, source.trained_to

    def _drawn(self, source: Any, rng: Random) -> Any:
        return draw_value(source, rng)

    def _changed(
        self, sweep: ScheduledSweep, member: Member, source: Member, rng: Random
    ) -> tuple[Config, dict[str, Any]]:
        return explore(
            source.trial.config,
            self.hyperparam_mutations,
            rng,
            self.resample_probability,
            self.perturbation_factors,
        )

    def _leave(self, trial: Trial) -> None:
        self._population.leave(trial)
        self._behind.discard(trial.id)

    def _has_attributes(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> bool:
        lacking = [name for name in (self.time_attr, self.metric_in(sweep)) if name not in result]
        if lacking and self.require_attrs:
            raise BadValueError(
                f"trial {trial.id} did not report {lacking[0]!r}, which {type(self).__name__} needs in every report",
                hint=f"report it, or pass require_attrs=False; the report has {', '.join(sorted(result))}",
                code="unknown-metric",
            )
        return not lacking
