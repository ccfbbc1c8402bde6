"""Weights & Biases and MLflow up to the boundary: recorded clients with the documented calls, for neither is installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tune.results.journals import Journal, pbt_journal, random_journal
from windlass.core.clock import FakeClock
from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.followers.following import SweepFollower
from windlass.tune.followers.mlflow_runs import MLflowTarget
from windlass.tune.followers.wandb_runs import WandbTarget


class FakeArtifact:
    def __init__(self, *, name: str, type: str) -> None:  # noqa: A002 - theirs
        self.name, self.type = name, type
        self.folders: list[str] = []

    def add_dir(self, folder: str) -> None:
        self.folders.append(folder)


class FakeRun:
    """A run of W&B: steps below the newest one are ignored, as the real one does."""

    def __init__(self, number: str, config: dict[str, Any]) -> None:
        self.id = number
        self.artifacts: list[FakeArtifact] = []
        self.rows: dict[int, dict[str, Any]] = {}
        self.exit_codes: list[int] = []
        self.values = dict(config)
        self.config = SimpleNamespace(update=self._update)

    def _update(self, values: dict[str, Any], *, allow_val_change: bool) -> None:
        self.values.update(values)

    def log(self, row: dict[str, Any], *, step: int) -> None:
        if step not in self.rows and step >= max(self.rows, default=0):
            self.rows[step] = row

    def log_artifact(self, artifact: FakeArtifact) -> None:
        self.artifacts.append(artifact)

    def finish(self, exit_code: int = 0) -> None:
        self.exit_codes.append(exit_code)


class FakeWandb:
    """`wandb.init` with resume="allow": the same id is the same run."""

    Artifact = FakeArtifact

    def __init__(self) -> None:
        self.runs: dict[str, FakeRun] = {}
        self.calls: list[dict[str, Any]] = []

    def init(self, **arguments: Any) -> FakeRun:
        assert arguments["resume"] == "allow"
        assert arguments["reinit"] == "create_new"
        self.calls.append(arguments)
        return self.runs.setdefault(arguments["id"], FakeRun(arguments["id"], arguments["config"]))


class FakeMlflow:
    """The calls of `mlflow.MlflowClient` that a follower makes; metrics are a set, as in MLflow's databases."""

    def __init__(self) -> None:
        self.entities = SimpleNamespace(
            Metric=lambda key, value, timestamp, step: (key, value, timestamp, step),
            Param=lambda key, value: (key, value),
        )
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, SimpleNamespace] = {}

    def MlflowClient(self, tracking_uri: str | None, registry_uri: str | None) -> FakeMlflow:  # noqa: N802 - its name
        self.uris = (tracking_uri, registry_uri)
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def search_runs(self, experiment_ids: list[str], filter_string: str, max_results: int) -> list[Any]:
        mark = filter_string.partition(" = ")[2].strip("'")
        return [run for run in self.runs.values() if run.tags["windlass.trial"] == mark][:max_results]

    def create_run(self, experiment_id: str, *, start_time: int, tags: dict[str, str], run_name: str) -> Any:
        run_id = f"run-{len(self.runs)}"
        run = SimpleNamespace(
            info=SimpleNamespace(run_id=run_id), tags=tags, metrics=set(), params={}, ended=[], name=run_name
        )
        self.runs[run_id] = run
        return run

    def log_batch(self, run_id: str, *, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        run = self.runs[run_id]
        run.metrics.update(metrics)
        for key, value in params:
            assert run.params.setdefault(key, value) == value, "parameters cannot change"

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        self.runs[run_id].ended.append(status)


def follow(folder: Path, target: Any, journal: Journal) -> None:
    journal.append(folder)
    SweepFollower(folder, target, clock=FakeClock()).run(follows=False)


def forget(folder: Path) -> None:
    """As if the follower was killed before it wrote how far it came."""
    for note in (folder / "followers").glob("*.json"):
        note.unlink()


def test_wandb_gets_a_run_per_trial_with_every_report_once(tmp_path: Path) -> None:
    client, journal = FakeWandb(), random_journal()
    for _ in range(2):
        follow(tmp_path, WandbTarget(project="digits", client=client), journal)
        forget(tmp_path)
    history = journal.history
    assert set(client.runs) == {f"digits-{trial.id}" for trial in history.trials.values() if trial.attempts}
    for trial in history.trials.values():
        if trial.attempts:
            run = client.runs[f"digits-{trial.id}"]
            assert [row["training_iteration"] for row in run.rows.values()] == [one.iteration for one in trial.reports]
            assert "eval/accuracy" in run.rows[1]
            assert not {"done", "config", "pid"} & set(run.rows[1])
            assert run.values["hostname"] == "node1"
            assert run.values["lr"] == trial.config["lr"]
    assert client.runs["digits-00005"].exit_codes[-1] == 1
    assert client.runs["digits-00000"].exit_codes[-1] == 0
    assert client.calls[0]["group"] == "digits"
    assert client.calls[0]["name"] == "Trainer_00000"


def test_wandb_takes_over_configurations_and_leaves_out_what_it_is_told_to(tmp_path: Path) -> None:
    client, journal = FakeWandb(), pbt_journal()
    follow(tmp_path, WandbTarget(project="p", excludes=["momentum"], log_config=True, client=client), journal)
    trial = journal.history.trials["00003"]
    run = client.runs["digits-00003"]
    assert run.values["lr"] == trial.config["lr"]
    assert run.rows[1]["config/lr"] != trial.config["lr"]
    assert len(run.rows) == len(trial.reports)  # although iterations go back at a clone


def test_wandb_uploads_checkpoints_of_local_folders_if_asked_to(tmp_path: Path) -> None:
    journal = pbt_journal()
    journal.append(tmp_path)
    saved = [(trial.id, one.path) for trial in journal.history.trials.values() for one in trial.checkpoints]
    assert saved
    for _, path in saved[:-1]:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    for uploads in (False, True):
        client = FakeWandb()
        target = WandbTarget(project="p", upload_checkpoints=uploads, client=client)
        SweepFollower(tmp_path, target, clock=FakeClock(), is_fresh=True).run(follows=False)
        uploaded = {
            (trial, artifact.name, artifact.type, *artifact.folders)
            for trial, run in client.runs.items()
            for artifact in run.artifacts
        }
        there = {
            (f"digits-{trial}", f"checkpoint_digits-{trial}", "model", str(tmp_path / path))
            for trial, path in saved[:-1]
        }
        assert uploaded == (there if uploads else set())


def test_wandb_without_a_project_or_without_the_library_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    with pytest.raises(UsageError, match="needs a project"):
        follow(tmp_path, WandbTarget(client=FakeWandb()), random_journal())
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(PreconditionError, match="needs wandb") as caught:
        follow(tmp_path / "other", WandbTarget(project="p"), random_journal())
    assert caught.value.hint == "pip install wandb"


def test_mlflow_gets_a_run_per_trial_with_every_report_once(tmp_path: Path) -> None:
    client, journal = FakeMlflow(), random_journal()
    for _ in range(2):
        follow(tmp_path, MLflowTarget(tracking_uri="http://server", tags={"team": "a"}, client=client), journal)
        forget(tmp_path)
    assert client.uris == ("http://server", None)
    assert list(client.experiments) == ["digits"]
    runs = {run.tags["windlass.trial"]: run for run in client.runs.values()}
    assert len(runs) == len(client.runs) == 7
    for trial in journal.history.trials.values():
        if trial.attempts:
            run = runs[f"digits/{trial.id}"]
            steps = sorted(step for key, _, _, step in run.metrics if key == "eval/accuracy")
            assert steps == [report.iteration for report in trial.reports]
            assert run.params["model/layers"] == str(trial.config["model"]["layers"])
            assert run.tags["team"] == "a"
            assert set(run.ended) == {"FAILED" if trial.id == "00005" else "FINISHED"}


def test_mlflow_shows_changed_parameters_as_metrics(tmp_path: Path) -> None:
    client, journal = FakeMlflow(), pbt_journal()
    follow(tmp_path, MLflowTarget(client=client), journal)
    run = next(run for run in client.runs.values() if run.tags["windlass.trial"] == "digits/00003")
    changed = [value for key, value, _, _ in run.metrics if key == "config/lr"]
    assert journal.history.trials["00003"].config["lr"] in changed
    assert run.params["lr"] != str(journal.history.trials["00003"].config["lr"])


def test_mlflow_without_the_library_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(PreconditionError, match="needs mlflow"):
        follow(tmp_path, MLflowTarget(), random_journal())
