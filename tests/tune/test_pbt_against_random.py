"""Population based training beats random search with the same budget: the paper's toy, and a small real network.

Trials take their steps under a virtual clock, all at once; steps of the network are real. Both searches begin with the same configurations.

Source: Jaderberg et al. 2017, "Population based training of neural networks" (arXiv 1711.09846), figure 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.tune.sweeps import quiet
from windlass import tune
from windlass.testing.virtual_trials import VirtualExecutor, VirtualWorld

pytestmark = pytest.mark.sim

NUM_SEEDS = 20


class Savable(tune.Trainable):
    """Stands for what the virtual world runs."""

    def step(self) -> dict[str, Any]:
        raise NotImplementedError

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {}


class Toy:
    """Two numbers climb a hill that they do not see: weights say how much of it each one sees."""

    def duration_s(self, config: Mapping[str, Any], iteration: int) -> float:
        return 1.0

    def step(self, state: Any, config: Mapping[str, Any], iteration: int) -> tuple[Any, dict[str, Any]]:
        a, b = state or (0.9, 0.9)
        a, b = a - 0.02 * config["h0"] * a, b - 0.02 * config["h1"] * b
        return (a, b), {"score": 1.2 - a * a - b * b}


class Network:
    """One layer of 16 units that learns to tell a ring from what it encloses, by gradient descent with momentum."""

    def __init__(self) -> None:
        np = pytest.importorskip("numpy")
        random = np.random.default_rng(7)
        self.np, points = np, random.normal(0, 1, (384, 2))
        self.x, self.y = points, (np.hypot(*points.T) + random.normal(0, 0.1, 384) > 1.2).astype(float)
        self.start = (random.normal(0, 1, (2, 16)), np.zeros(16), random.normal(0, 0.25, 16), np.zeros(1))

    def duration_s(self, config: Mapping[str, Any], iteration: int) -> float:
        return 1.0

    def step(self, state: Any, config: Mapping[str, Any], iteration: int) -> tuple[Any, dict[str, Any]]:
        np = self.np
        weights, momenta = state or (self.start, tuple(np.zeros_like(weight) for weight in self.start))
        for rows in np.array_split(np.random.default_rng(iteration).permutation(256), 8):
            x, y = self.x[rows], self.y[rows]
            hidden = np.maximum(x @ weights[0] + weights[1], 0)
            error = (1 / (1 + np.exp(-(hidden @ weights[2] + weights[3]))) - y) / len(rows)
            back = np.outer(error, weights[2]) * (hidden > 0)
            slopes = (x.T @ back, back.sum(0), hidden.T @ error, error.sum(keepdims=True))
            moved = [config["momentum"] * m - config["lr"] * g for m, g in zip(momenta, slopes, strict=True)]
            weights = tuple(w + m for w, m in zip(weights, moved, strict=True))
            momenta = tuple(moved)
        hidden = np.maximum(self.x[256:] @ weights[0] + weights[1], 0)
        scores = hidden @ weights[2] + weights[3]
        loss = np.logaddexp(0, np.where(self.y[256:] > 0, -scores, scores)).mean()
        return (weights, momenta), {"score": -float(min(loss, 9.0))}


def best(
    curve: Any, space: dict[str, Any], seed: int, folder: Path, scheduler: Any, *, trials: int, steps: int
) -> float:
    """The best last score of a sweep whose trials all run at once."""
    world = VirtualWorld(curve, [f"node/{number}" for number in range(trials)])
    config = tune.TuneConfig(
        "max", "score", num_samples=trials, seed=seed, scheduler=scheduler, executor=VirtualExecutor(world)
    )
    run = quiet(folder, f"{'random' if scheduler is None else 'pbt'}-{seed}", stop={"training_iteration": steps})
    results = tune.Tuner(Savable, param_space=space, tune_config=config, run_config=run).fit()
    assert results.num_terminated == trials
    return float(results.get_best_result().metrics["score"])


@pytest.mark.parametrize(
    ("curve", "space", "trials", "steps", "interval"),
    [
        (Toy, {"h0": tune.uniform(0, 1), "h1": tune.uniform(0, 1)}, 6, 60, 5),
        (Network, {"lr": tune.loguniform(1e-4, 1.0), "momentum": tune.uniform(0, 0.9)}, 6, 18, 3),
    ],
    ids=["toy", "network"],
)
def test_pbt_beats_random_search_with_the_same_budget(
    curve: Callable[[], Any], space: dict[str, Any], trials: int, steps: int, interval: int, tmp_path: Path
) -> None:
    pbt = tune.PBT(time_attr="training_iteration", perturbation_interval=interval, hyperparam_mutations=space)
    pairs = [
        tuple(best(curve(), space, seed, tmp_path, chosen, trials=trials, steps=steps) for chosen in (pbt, None))
        for seed in range(NUM_SEEDS)
    ]
    gain = mean(with_pbt - random for with_pbt, random in pairs)
    wins = sum(with_pbt > random for with_pbt, random in pairs)
    losses = sum(with_pbt < random for with_pbt, random in pairs)  # the rest: the best trial never needed a clone
    assert gain > 0, pairs
    assert wins >= 0.6 * NUM_SEEDS >= 6 * losses, f"{wins} of {NUM_SEEDS} won, {losses} lost: {pairs}"
