"""Target for MLflow, with one run per trial in an experiment named after the sweep, as in Ray Tune's callback.

Runs are found again by a tag, and parameters are written once. A repeated report has the same time and step, and
MLflow's databases store it once (its plain files store both).

Source: the documentation of `mlflow.MlflowClient` and of the REST call `runs/log-batch` (at most 1000 metrics and 100
parameters or tags; parameters cannot change).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from windlass.core.extras import require
from windlass.tune.controller.journal.history import TrialHistory
from windlass.tune.followers.target import FollowedSweep, Target, plain_values
from windlass.tune.results.columns import NestedMetrics, flatten

__all__ = ["MLflowTarget"]

_TRIAL_TAG = "windlass.trial"
_PARAM_BATCH = 100
_METRIC_BATCH = 1000
_PARAM_LENGTH = 6000
_MISSING = "following with MLflow needs mlflow, which is not installed"


class MLflowTarget(Target):
    """Target that logs to MLflow at `tracking_uri` or MLFLOW_TRACKING_URI.

    Args:
        experiment_name: name of the experiment; by default MLFLOW_EXPERIMENT_NAME, or the sweep's name.
        tags: set on every run.
        save_artifact: upload the trial's folder when it ends.
        log_params_on_trial_end: write parameters at the end, when they no longer change.
        client: a module like mlflow; by default the installed one.
    """

    name = "mlflow"
    secrets: ClassVar = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        registry_uri: str | None = None,
        experiment_name: str = "",
        tags: Mapping[str, str] | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
        client: Any = None,
    ) -> None:
        self._uris = (tracking_uri, registry_uri)
        self._experiment_name = experiment_name
        self._tags = dict(tags or {})
        self._saves_artifact = save_artifact
        self._params_last = log_params_on_trial_end
        self._mlflow = client
        self._runs: dict[str, str] = {}
        self._metrics: dict[str, list[Any]] = {}

    def open(self, sweep: FollowedSweep) -> None:
        """Import the library, and open or create the experiment.

        Raises:
            PreconditionError: mlflow is not installed (`extra-missing`).
        """
        self._sweep = sweep
        self._mlflow = self._mlflow or require("mlflow", _MISSING, hint="pip install mlflow")
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uris[0], registry_uri=self._uris[1])
        name = self._experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or sweep.name
        found = self._client.get_experiment_by_name(name)
        self._experiment: str = found.experiment_id if found else self._client.create_experiment(name)

    def started(self, trial: TrialHistory) -> None:
        """Find or create the run for the trial."""
        self._run(trial)

    def _run(self, trial: TrialHistory) -> str:
        if trial.id not in self._runs:
            mark = f"{self._sweep.name}/{trial.id}"
            found = self._client.search_runs(
                [self._experiment], filter_string=f"tags.`{_TRIAL_TAG}` = '{mark}'", max_results=1
            )
            if found:
                run = found[0]
            else:
                name = f"{self._sweep.trainable.rsplit(':', 1)[-1]}_{trial.id}"
                tags = {**self._tags, "trial_name": name, _TRIAL_TAG: mark}
                begin_ms = int(trial.suggested_at * 1000)
                run = self._client.create_run(self._experiment, start_time=begin_ms, tags=tags, run_name=name)
                if not self._params_last:
                    self._log_params(run.info.run_id, trial)
            self._runs[trial.id] = run.info.run_id
        return self._runs[trial.id]

    def _log_params(self, run_id: str, trial: TrialHistory) -> None:
        make = self._mlflow.entities.Param
        params = [make(name, str(value)[:_PARAM_LENGTH]) for name, value in flatten(trial.config).items()]
        for begin in range(0, len(params), _PARAM_BATCH):
            self._client.log_batch(run_id, params=params[begin : begin + _PARAM_BATCH])

    def configured(self, trial: TrialHistory) -> None:
        """Log changed numbers as metrics named `config/...`, because parameters in MLflow cannot change."""
        at = trial.decisions[-1].at if trial.decisions else trial.suggested_at
        self._add(trial, flatten(trial.config, prefix="config/"), at, trial.iteration)

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """Collect the numbers in a report."""
        step = int(result.get("timesteps_total") or result["training_iteration"])
        self._add(trial, {name: value for name, value in result.items() if name != "config"}, at, step)

    def _add(self, trial: TrialHistory, values: Mapping[str, Any], at: float, step: int) -> None:
        make = self._mlflow.entities.Metric
        own = self._metrics.setdefault(self._run(trial), [])
        own.extend(make(name, value, int(at * 1000), step) for name, value in plain_values(values).items())

    def ended(self, trial: TrialHistory, *, is_failed: bool) -> None:
        """Write everything that is pending, and end the run."""
        run_id = self._run(trial)
        self.flush()
        if self._params_last:
            self._log_params(run_id, trial)
        folder = self._sweep.folder.trial(trial.id)
        if self._saves_artifact and folder.is_dir():
            self._client.log_artifacts(run_id, str(folder))
        end_ms = int((trial.ended_at or trial.suggested_at) * 1000)
        self._client.set_terminated(run_id, "FAILED" if is_failed else "FINISHED", end_ms)
        self._runs.pop(trial.id, None)

    def flush(self) -> None:
        """Send the collected metrics."""
        for run_id, metrics in self._metrics.items():
            for part in _parts(metrics, _METRIC_BATCH):
                self._client.log_batch(run_id, metrics=part)
        self._metrics.clear()


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]
