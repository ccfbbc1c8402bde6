"""The same reports in Ray's own ExperimentAnalysis and in ours: the same answers and the same columns."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tune.results.journals import Journal, pbt_journal, random_journal
from windlass.tune.followers.following import SweepFollower
from windlass.tune.followers.target import make_target
from windlass.tune.results.analysis import ExperimentAnalysis
from windlass.tune.results.lineages import write_policies

JOURNALS = [random_journal(seed=seed, num_trials=12) for seed in range(4)] + [pbt_journal()]


def ray_analysis(journal: Journal, folder: Path) -> Any:
    """Ray's analysis over the files that our follower wrote, with Ray's own running scores."""
    import pyarrow.fs
    from ray.tune.analysis import ExperimentAnalysis as RayAnalysis
    from ray.tune.result import DEBUG_METRICS
    from ray.tune.trainable.metadata import _TrainingRunMetadata

    journal.append(folder)
    SweepFollower(folder, make_target("json", {})).run(follows=False)
    file_system = pyarrow.fs.LocalFileSystem()
    trials: list[Any] = []
    for view in ExperimentAnalysis(folder).trials:
        metadata: Any = _TrainingRunMetadata()
        last: dict[str, Any] = {}
        for row in (
            (folder / "trials" / view.trial_id / "result.json").read_text().splitlines() if view.last_result else ()
        ):
            last = json.loads(row)
            for name, value in last.items():
                if name not in DEBUG_METRICS and isinstance(value, int | float):
                    metadata.update_metric(name, value, step=last["training_iteration"])
        storage = SimpleNamespace(storage_filesystem=file_system, trial_fs_path=str(folder / "trials" / view.trial_id))
        trials.append(
            SimpleNamespace(
                trial_id=view.trial_id,
                config=view.config,
                last_result=last or None,
                metric_analysis=metadata.metric_analysis,
                storage=storage,
                run_metadata=metadata,
            )
        )
    return RayAnalysis(str(folder / "experiment_state.json"), storage_filesystem=file_system, trials=trials)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ExperimentAnalysis]]:
    pytest.importorskip("ray", reason="needs ray: run the tests with `make test`")
    found = []
    for journal in JOURNALS:
        folder = tmp_path_factory.mktemp("sweep")
        found.append((ray_analysis(journal, folder), ExperimentAnalysis(folder)))
    return found


def test_the_best_trial_is_the_same_by_every_metric_scope_and_mode(pairs: list[tuple[Any, ExperimentAnalysis]]) -> None:
    num_compared = 0
    for theirs, ours in pairs:
        names = [name for name in ("loss", "size", "score", "eval/accuracy", "training_iteration", "time_total_s") if any(
            name in trial.metric_analysis for trial in theirs.trials)]  # fmt: skip
        scopes = ("all", "last", "avg", "last-5-avg", "last-10-avg")
        for name, mode, scope, filters in itertools.product(names, ("min", "max"), scopes, (True, False)):
            expected = theirs.get_best_trial(name, mode, scope, filters)
            found = ours.get_best_trial(name, mode, scope, filters)
            assert getattr(found, "trial_id", None) == getattr(expected, "trial_id", None), (name, mode, scope, filters)
            num_compared += 1
    assert num_compared > 400


def test_every_summary_of_every_metric_is_the_same(pairs: list[tuple[Any, ExperimentAnalysis]]) -> None:
    for theirs, ours in pairs:
        for expected, found in zip(theirs.trials, ours.trials, strict=True):
            assert set(found.metric_analysis) == set(expected.metric_analysis)
            for name, values in expected.metric_analysis.items():
                for scope, value in values.items():
                    assert found.metric_analysis[name][scope] == pytest.approx(value, nan_ok=True), (name, scope)


def test_frames_have_the_same_columns_and_values(pairs: list[tuple[Any, ExperimentAnalysis]]) -> None:
    for theirs, ours in pairs:
        metric = "score" if ours.default_metric == "score" else "size"  # Ray's fails where a trial's are all NaN
        for arguments in ((), (metric, "min"), (metric, "max")):
            expected, found = theirs.dataframe(*arguments), ours.dataframe(*arguments)
            assert set(found.columns) == set(expected.columns)
            assert same_rows(expected, found, skips={"logdir"})
        for trial_id, frame in ours.trial_dataframes.items():
            expected = theirs.trial_dataframes[trial_id]
            assert set(expected.columns) == set(frame.columns)
            assert same_rows(expected, frame)


def test_last_results_are_the_same_frame(pairs: list[tuple[Any, ExperimentAnalysis]]) -> None:
    theirs, ours = pairs[-1]  # every trial of it has reported, as Ray needs
    expected = theirs.results_df
    assert list(ours.results_df.index) == list(expected.index)
    assert set(ours.results_df.columns) == set(expected.columns)


def same_rows(expected: Any, found: Any, skips: frozenset[str] | set[str] = frozenset()) -> bool:
    for column in set(expected.columns) - skips:
        for one, other in zip(expected[column], found[column], strict=True):
            assert is_same(one, other), (column, one, other)
    return True


def is_same(one: Any, other: Any) -> bool:
    both = [value is None or (isinstance(value, float) and math.isnan(value)) for value in (one, other)]
    return all(both) or one == pytest.approx(other)


def test_ray_replays_a_policy_that_was_exported(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs ray: run the tests with `make test`")
    from ray.tune.schedulers.pbt import PopulationBasedTrainingReplay

    history = pbt_journal(num_rounds=6).history
    files = write_policies(history, tmp_path)
    policies = [path for path in files if path.name.startswith("pbt_policy_")]
    assert len(policies) >= 2
    for path in policies:
        replay = PopulationBasedTrainingReplay(str(path))
        trial = history.trials[path.stem.removeprefix("pbt_policy_")]
        changes = list(replay._policy)
        assert changes[-1][1] == trial.config
        assert [step for step, _ in changes] == sorted(step for step, _ in changes)
