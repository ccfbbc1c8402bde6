"""Ray Tune's own scheduler objects, driven by a trial and a controller of ours instead of a Ray cluster."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.schedulers import pbt as ray_pbt

from windlass.tune.rng import draw

LETTERS = {"PENDING": "P", "RUNNING": "R", "PAUSED": "U", "TERMINATED": "T", "ERROR": "E"}


class AttemptSaved(_FutureTrainingResult):
    """A checkpoint that is there at once."""

    def __init__(self, trial: RayTrial) -> None:
        name: Any = f"{trial.trial_id} saved"
        self.found = _TrainingResult(checkpoint=name, metrics={})

    def resolve(self, block: bool = True) -> Any:
        return self.found


class RayTrial:
    """What schedulers look at in a trial of Ray's."""

    PENDING, RUNNING, PAUSED, TERMINATED, ERROR = LETTERS

    def __init__(self, trial_id: str, config: dict[str, Any], shape: Any) -> None:
        self.trial_id = trial_id
        self.status = "PENDING"
        self.is_saving = False
        self.config = config
        self.experiment_tag = trial_id
        self.evaluated_params: dict[str, Any] = {}
        self.last_result: dict[str, Any] = {}
        self.local_experiment_path = self.local_dir = "/nonexistent"
        manager = SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None), _latest_checkpoint_result=None)
        self.run_metadata = SimpleNamespace(checkpoint_manager=manager)
        self.temporary_state = SimpleNamespace(saving_to=None)
        self.placement_group_factory = shape

    @property
    def checkpoint(self) -> Any:
        found = self.run_metadata.checkpoint_manager._latest_checkpoint_result
        return found and found.checkpoint

    def is_finished(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")

    def set_experiment_tag(self, tag: str) -> None:
        self.experiment_tag = tag

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config

    def update_resources(self, shape: Any) -> None:
        self.placement_group_factory = shape

    def has_saved(self) -> None:
        self.run_metadata.checkpoint_manager._latest_checkpoint_result = AttemptSaved(self).found


class RaySide:
    """A scheduler of Ray's with its trials; the methods are events, each returns what was decided, in our words.

    Args:
        mends: whether HyperBand's flag that a bracket is being processed is taken back after each call. Ray never
            does, so that a trial that fails after the first halving leaves its bracket waiting for ever.
    """

    def __init__(self, scheduler: Any, *, cpus: float = 0, gpus: float = 0, mends: bool = True) -> None:
        self.scheduler = scheduler
        self.mends = mends
        self.trials: list[RayTrial] = []
        self.by_id: dict[str, RayTrial] = {}
        self._shape: Any = None
        searcher = SimpleNamespace(on_pause=lambda _: None, on_unpause=lambda _: None)
        self.search_alg: Any = SimpleNamespace(searcher=searcher)
        self._resource_updater = SimpleNamespace(get_num_cpus=lambda: cpus, get_num_gpus=lambda: gpus)

    # -------------------------------------------------------------------------------- what Ray's schedulers may call

    def get_trials(self) -> list[RayTrial]:
        return self.trials

    def get_live_trials(self) -> list[RayTrial]:
        return sorted((trial for trial in self.trials if not trial.is_finished()), key=lambda trial: trial.trial_id)

    def stop_trial(self, trial: RayTrial) -> None:
        if trial.status in ("PENDING", "PAUSED"):
            self.scheduler.on_trial_remove(self, trial)
        elif trial.status == "RUNNING":
            self.scheduler.on_trial_complete(self, trial, trial.last_result)
        trial.status = "TERMINATED"

    def pause_trial(self, trial: RayTrial, should_checkpoint: bool = True) -> None:
        trial.status = "PAUSED"

    def _schedule_trial_save(self, trial: RayTrial, result: Any = None) -> AttemptSaved:
        return AttemptSaved(trial)

    # ------------------------------------------------------------------------------------------------------- events

    def add(self, trial_id: str, config: dict[str, Any], shape: Any) -> str:
        self._shape = self._shape or PlacementGroupFactory(*shape)
        trial = RayTrial(trial_id, config, self._shape)
        self.trials.append(trial)
        self.by_id[trial_id] = trial
        self.scheduler.on_trial_add(self, trial)
        return self._done("")

    def choose(self) -> str:
        trial = self.scheduler.choose_trial_to_run(self)
        if trial is not None:
            trial.status = "RUNNING"
        return self._done("" if trial is None else trial.trial_id)

    def is_stuck(self) -> bool:
        """Whether trials wait for each other for ever: nothing runs, and nothing may."""
        letters = set(self.statuses())
        return "U" in letters and not letters & {"R", "P"}

    def report(self, trial_id: str, result: dict[str, Any]) -> str:
        trial = self.by_id[trial_id]
        decision = self.scheduler.on_trial_result(self, trial, result)
        trial.last_result = result
        self._done("")
        is_reshaped = trial in getattr(self.scheduler, "_trials_to_reallocate", ())
        if decision == "STOP":
            self.stop_trial(trial)
        elif decision == "PAUSE":
            trial.status = "PAUSED"
            trial.has_saved()
        if is_reshaped:
            self.scheduler.choose_trial_to_run(self)
        return self._done("noop" if is_reshaped else decision.lower())

    def complete(self, trial_id: str, result: dict[str, Any]) -> str:
        self.by_id[trial_id].last_result = result
        self.stop_trial(self.by_id[trial_id])
        return self._done("")

    def fail(self, trial_id: str, is_final: bool) -> str:
        trial = self.by_id[trial_id]
        trial.status = "ERROR"
        self.scheduler.on_trial_error(self, trial)
        if not is_final:
            trial.status = "PENDING"
            self.trials.remove(trial)
            self.trials.append(trial)
            self.scheduler.on_trial_add(self, trial)
        return self._done("")

    def remove(self, trial_id: str) -> str:
        self.stop_trial(self.by_id[trial_id])
        return self._done("")

    def pause(self, trial_id: str) -> str:
        self.by_id[trial_id].status = "PAUSED"
        self.by_id[trial_id].has_saved()
        return self._done("")

    def statuses(self) -> str:
        """A letter per trial, in order of ids; a trial that HyperBand let go on counts as pending."""
        woken = {
            trial
            for bracket in self._brackets()
            for trial in bracket.trials_to_unpause
            if trial in bracket._live_trials
        }
        return "".join(
            "P" if trial.status == "PAUSED" and trial in woken else LETTERS[trial.status]
            for trial in self.by_id.values()
        )

    def shapes(self) -> list[list[dict[str, float]]]:
        return [self.by_id[name].placement_group_factory.bundles for name in sorted(self.by_id)]

    def configs(self) -> list[dict[str, Any]]:
        return [self.by_id[name].config for name in sorted(self.by_id)]

    def _brackets(self) -> list[Any]:
        bands = getattr(self.scheduler, "_hyperbands", ())
        return [bracket for band in bands for bracket in band if bracket is not None]

    def _done(self, said: str) -> str:
        if self.mends:
            for bracket in self._brackets():
                bracket.is_being_processed = False
        return said


class SharedDraws:
    """Stands in for the module `random` in Ray's PBT: draws from the generator that ours uses at the same place."""

    def __init__(self) -> None:
        self.current = Random(0)

    def random(self) -> float:
        return self.current.random()

    def choice(self, values: Any) -> Any:
        return self.current.choice(values)


SHARED = SharedDraws()


class OraclePBT(ray_pbt.PopulationBasedTraining):
    """Ray's class; before each draw it gets the generator that ours has."""

    def __init__(self, seed: int, **arguments: Any) -> None:
        vars(ray_pbt)["random"] = SHARED
        super().__init__(log_config=False, **arguments)
        self._seed = seed
        self._num_draws: dict[str, int] = {}

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        SHARED.current = draw(self._seed, "pbt-fill", trial.trial_id)
        tuner: Any = SimpleNamespace(search_alg=None)
        super().on_trial_add(tuner, trial)

    def _checkpoint_or_exploit(self, trial: Any, controller: Any, upper_quantile: Any, lower_quantile: Any) -> None:
        if trial in lower_quantile:
            name = trial.trial_id
            self._num_draws[name] = self._num_draws.get(name, 0) + 1
            SHARED.current = draw(self._seed, "pbt", name, self._num_draws[name])
        super()._checkpoint_or_exploit(trial, controller, upper_quantile, lower_quantile)
