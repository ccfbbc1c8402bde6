"""PB2: its Gaussian process against scikit-learn's, its choices on a problem whose best value is known."""

from __future__ import annotations

import random
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.tune.schedulers.fake_sweep import FakeSweep
from windlass.core.errors import UsageError
from windlass.tune.schedulers import PB2
from windlass.tune.schedulers.pb2 import _changes, _Row
from windlass.tune.schedulers.population_based.gaussian_process import TimeVaryingProcess
from windlass.tune.trial import Trial


def data(num: int = 25) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 1, (num, 3))
    values = np.sin(4 * points[:, 1]) - points[:, 2] + 0.5 * points[:, 0]
    return points, (values - values.mean()) / values.std()


def test_the_kernel_is_that_of_the_paper() -> None:
    points, values = data(5)
    process = TimeVaryingProcess(points, values)
    variance, lengthscale, epsilon = np.exp(process.theta[:3])
    for row, first in enumerate(points):
        for column, second in enumerate(points):
            gap = float(np.sum((first[1:] - second[1:]) ** 2))
            expected = variance * np.exp(-gap / lengthscale) * (1 - epsilon) ** (abs(first[0] - second[0]) / 2)
            assert np.isclose(process.kernel(points, points)[row, column], expected)


def test_likelihood_and_predictions_are_those_of_scikit_learn() -> None:
    gaussian_process = pytest.importorskip("sklearn.gaussian_process", reason="needs scikit-learn")
    points, values = data()
    points[:, 0] = 0.5  # one time: the kernel is then scikit-learn's own RBF
    ours = TimeVaryingProcess(points, values, noise=1e-3)
    variance, lengthscale, _ = np.exp(ours.theta)
    kernels = gaussian_process.kernels
    kernel = kernels.ConstantKernel(variance, "fixed") * kernels.RBF(np.sqrt(lengthscale / 2), "fixed")
    theirs = gaussian_process.GaussianProcessRegressor(kernel, alpha=1e-3, optimizer=None).fit(points, values)
    assert np.isclose(ours.log_likelihood, theirs.log_marginal_likelihood_value_)
    where = np.random.default_rng(1).uniform(0, 1, (20, 3))
    where[:, 0] = 0.5
    mean, deviation = theirs.predict(where, return_std=True)
    assert np.allclose(ours.predict(where)[0], mean)
    assert np.allclose(ours.predict(where)[1], deviation, atol=1e-6)


def test_the_slope_of_the_likelihood_is_right() -> None:
    points, values = data(12)
    process = TimeVaryingProcess(points, values)
    theta = np.log([0.7, 0.4, 0.2, 0.05])
    slope = process._loss(theta)[1]
    for index in range(4):
        step = np.zeros(4)
        step[index] = 1e-6
        by_hand = (process._loss(theta + step)[0] - process._loss(theta - step)[0]) / 2e-6
        assert np.isclose(slope[index], by_hand, rtol=1e-4)


def test_points_that_coincide_do_no_harm() -> None:
    points, values = data(6)
    process = TimeVaryingProcess(np.vstack((points, points)), np.concatenate((values, values)), noise=0.0)
    assert np.all(np.isfinite(process.predict(points)[0]))


def test_what_is_tried_already_is_less_uncertain() -> None:
    points, values = data()
    process = TimeVaryingProcess(points, values)
    where = np.array([[1.0, 0.5, 0.99]])
    assert process.also(where).predict(where)[1][0] < process.predict(where)[1][0]


def test_gains_are_per_time_and_within_one_configuration() -> None:
    rows = [
        _Row("a", 2, (1.0,), 1.0), _Row("a", 4, (1.0,), 2.0), _Row("b", 4, (1.0,), 7.0),
        _Row("a", 6, (2.0,), 9.0), _Row("a", 6, (2.0,), 9.0), _Row("a", 8, (2.0,), 8.0),
    ]  # fmt: skip
    found = [(change.trial, change.time, change.before, change.after, change.gain) for change in _changes(rows)]
    assert found == [("a", 4, 1.0, 2.0, 0.5), ("a", 8, 9.0, 8.0, -0.5)]


def chosen_by(scheduler: PB2, sweep: FakeSweep) -> Trial:
    """The trial that got the free slot."""
    trial = scheduler.choose(sweep)
    assert trial is not None
    sweep.start(trial)
    return trial


def run(seed: int, rounds: int = 14) -> tuple[FakeSweep, list[float]]:
    """Trials whose score grows by how near `lr` is to 0.8."""
    sweep = FakeSweep(seed=seed)
    sweep.is_searching = False
    scheduler = PB2(
        time_attr="training_iteration", perturbation_interval=1, synch=True, hyperparam_bounds={"lr": [0.0, 1.0]}
    )
    trials = [sweep.add({"size": 3}) for _ in range(4)]
    for trial in trials:
        scheduler.on_add(sweep, trial)
    score = dict.fromkeys(sweep.trials, 0.0)
    chosen = []
    for _ in range(rounds * len(trials)):
        trial = chosen_by(scheduler, sweep)
        before = {name: one.tag for name, one in sweep.trials.items()}
        score[trial.id] += 1 - (trial.config["lr"] - 0.8) ** 2
        sweep.report(scheduler, trial, {"training_iteration": trial.iteration + 1, "score": score[trial.id]})
        for one in sweep.trials.values():
            if one.tag != before[one.id]:
                assert one.restore_from is not None
                score[one.id] = score[one.restore_from.trial]
                chosen.append(one.config["lr"])
    return sweep, chosen


def test_choices_come_near_to_what_pays_and_stay_in_the_bounds() -> None:
    _, chosen = run(1)
    assert len(chosen) >= 10
    assert all(0 <= value <= 1 for value in chosen)
    far = sorted(abs(value - 0.8) for value in chosen[4:])
    assert far[len(far) // 2] < 0.1  # it still explores now and then; values drawn at random are 0.34 away


def test_the_same_seed_gives_the_same_and_no_global_generator_is_touched() -> None:
    random.seed(3)
    np.random.seed(3)
    before, numpy_before = random.getstate(), repr(np.random.get_state())
    first, second = run(7, 4), run(7, 4)
    assert first[1] == second[1]
    assert random.getstate() == before
    assert repr(np.random.get_state()) == numpy_before


def test_clones_of_one_round_differ_and_integers_stay_integers() -> None:
    sweep = FakeSweep()
    sweep.is_searching = False
    scheduler = PB2(
        time_attr="training_iteration", perturbation_interval=1, synch=True, quantile_fraction=0.5,
        hyperparam_bounds={"deep": {"size": [1, 100]}},
    )  # fmt: skip
    trials = [sweep.add({"deep": {"size": 10 * number + 5}}) for number in range(6)]
    for trial in trials:
        scheduler.on_add(sweep, trial)
    rng = Random(0)
    for iteration in (1, 2, 3):
        sweep.acts.clear()
        for _ in trials:
            trial = chosen_by(scheduler, sweep)
            sweep.report(scheduler, trial, {"training_iteration": iteration, "score": rng.random() * iteration})
    clones = [sweep.trials[act[1]].config["deep"]["size"] for act in sweep.acts if act[0] == "exploit"]
    assert len(clones) == 3
    assert all(isinstance(size, int) for size in clones)
    assert len(set(clones)) > 1


@pytest.mark.parametrize("bounds", [{"lr": [1, 0]}, {"lr": [1]}, {"deep": {"lr": 3}}])
def test_bad_bounds_are_named(bounds: Any) -> None:
    with pytest.raises(UsageError, match="hyperparam_bounds"):
        PB2(hyperparam_bounds=bounds)
    with pytest.raises(UsageError, match="PB2 has no hyperparam_bounds"):
        PB2()
