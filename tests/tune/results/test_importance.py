from __future__ import annotations

from random import Random

import pytest

from tests.tune.results.journals import Journal, asha_journal
from windlass.tune.results import BestTrialError, MetricError, importances


def sweep(num_trials: int = 60, seed: int = 0) -> Journal:
    """The loss depends on lr, weakly on the optimiser, and not on the seed."""
    random, journal = Random(seed), Journal()
    for _ in range(num_trials):
        config = {
            "lr": random.uniform(0, 1),
            "opt": random.choice(["sgd", "adam"]),
            "seed": random.randrange(10_000),
            "fixed": 3,
        }
        trial = journal.suggest(config)
        journal.start(trial)
        noise = random.gauss(0, 0.02)
        journal.report(trial, 1, loss=(config["lr"] - 0.3) ** 2 + (0.1 if config["opt"] == "sgd" else 0) + noise)  # type: ignore[operator]
    return journal


@pytest.mark.parametrize("method", ["ranks", pytest.param("fanova", marks=pytest.mark.soak), "ped-anova"])
def test_the_parameter_that_matters_comes_first(method: str) -> None:
    if method != "ranks":
        pytest.importorskip("optuna", reason="needs optuna: run the tests with `make test`")
    shares = importances(sweep().history, method=method)
    assert next(iter(shares)) == "lr"
    assert shares["lr"] > 0.5
    assert shares["seed"] < 0.2
    assert sum(shares.values()) == pytest.approx(1.0)
    assert "fixed" not in shares


def test_what_explains_nothing_counts_as_nothing() -> None:
    """The adjustment: without it eight bins of 40 random trials explain a fifth of anything."""
    noise = [importances(sweep(40, seed).history)["seed"] for seed in range(5)]
    assert sum(noise) / len(noise) < 0.08


def test_it_sees_what_is_not_monotonic_and_ignores_outliers() -> None:
    journal = sweep()
    outlier = journal.suggest({"lr": 0.31, "opt": "adam", "seed": 1, "fixed": 3})
    journal.start(outlier)
    journal.report(outlier, 1, loss=1e9)
    assert next(iter(importances(journal.history))) == "lr"


def test_too_few_trials_and_unknown_methods_are_refused() -> None:
    with pytest.raises(BestTrialError, match="3 trials have a finite score"):
        importances(sweep(3).history)
    with pytest.raises(MetricError, match="'forest'"):
        importances(sweep().history, method="forest")
    with pytest.raises(MetricError, match="no metric"):
        importances(Journal(metrics=(), modes=()).history)


def test_more_is_better_is_the_same_question() -> None:
    history = asha_journal().history
    assert importances(history, mode="max") == pytest.approx(importances(history, mode="min"))
