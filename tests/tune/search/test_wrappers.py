from __future__ import annotations

import math
from typing import Any

import pytest

from windlass.core.errors import UsageError
from windlass.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    NoSuggestion,
    Objectives,
    Repeater,
    Suggestion,
)
from windlass.tune.search.defaults import SearcherDefaults
from windlass.tune.search.optuna.samplers import TPE
from windlass.tune.search.repeater import TRIAL_INDEX
from windlass.tune.space.primitives import uniform

GOAL = Objectives(metrics=("loss",), is_max=(False,))


class Recording(SearcherDefaults):
    """Suggests its own numbers and writes down what it is told."""

    learns = True

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, Any]] = []

    def propose(self, number: int) -> Suggestion:
        return Suggestion(config={"x": number})

    def on_complete(self, number: int, result: Any) -> None:
        self.told.append((number, result))


def opened(searcher: Any, num_samples: int = -1) -> Any:
    searcher.open(space={"x": uniform(0, 1)}, objectives=GOAL, seed=1, num_samples=num_samples)
    return searcher


def start(searcher: Any, *numbers: int) -> list[dict[str, Any]]:
    configs = []
    for number in numbers:
        suggestion = searcher.suggest(number)
        assert isinstance(suggestion, Suggestion), number
        searcher.on_suggested(number, suggestion)
        configs.append(suggestion.config)
    return configs


def test_the_limiter_says_now_while_enough_are_alive() -> None:
    inner = Recording()
    searcher = opened(ConcurrencyLimiter(inner, 2))
    start(searcher, 0, 1)
    assert searcher.suggest(2) is NoSuggestion.NOT_YET
    searcher.on_complete(1, {"loss": 1})
    assert inner.told == [(1, {"loss": 1})]
    start(searcher, 2)
    assert searcher.suggest(3) is NoSuggestion.NOT_YET


def test_what_is_asked_ahead_counts_as_alive() -> None:
    searcher = opened(ConcurrencyLimiter(Recording(), 2))
    start(searcher, 0)
    assert isinstance(searcher.suggest(1), Suggestion)
    assert isinstance(searcher.suggest(1), Suggestion)
    assert searcher.suggest(2) is NoSuggestion.NOT_YET


def test_a_batch_is_told_together_and_then_comes_the_next() -> None:
    inner = Recording()
    searcher = opened(ConcurrencyLimiter(inner, 2, batch=True))
    start(searcher, 0, 1)
    searcher.on_complete(1, {"loss": 1})
    assert inner.told == []
    assert searcher.suggest(2) is NoSuggestion.NOT_YET
    searcher.on_complete(0, None)
    assert inner.told == [(1, {"loss": 1}), (0, None)]
    start(searcher, 2, 3)


def test_the_limiter_behaves_as_rays(need: Any) -> None:
    """The same calls to Ray's object and to ours: the same answers, and the same order of what is told within."""
    need("ray")
    from ray.tune.search import ConcurrencyLimiter as Rays
    from ray.tune.search import Searcher

    class Theirs(Searcher):
        def __init__(self) -> None:
            super().__init__(metric="loss", mode="min")
            self.told: list[tuple[int, Any]] = []

        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"x": int(trial_id)}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            self.told.append((int(trial_id), result))

    import random

    for seed in range(80):
        chance = random.Random(seed)
        limit, batch = chance.randint(1, 4), chance.random() < 0.5
        mine, theirs = Recording(), Theirs()
        ours, rays = opened(ConcurrencyLimiter(mine, limit, batch=batch)), Rays(theirs, limit, batch=batch)
        live: list[int] = []
        number = 0
        for _ in range(40):
            if live and chance.random() < 0.5:
                done = live.pop(chance.randrange(len(live)))
                ours.on_complete(done, {"loss": done})
                rays.on_trial_complete(str(done), {"loss": done})
            else:
                one, other = ours.suggest(number), rays.suggest(str(number))
                assert (one is NoSuggestion.NOT_YET) == (other is None)
                if isinstance(one, Suggestion):
                    ours.on_suggested(number, one)
                    live.append(number)
                    number += 1
        assert mine.told == theirs.told


def test_repeats_share_a_configuration_and_are_told_as_a_mean() -> None:
    inner = Recording()
    searcher = opened(Repeater(inner, 3), num_samples=7)
    configs = start(searcher, 0, 1, 2, 3)
    assert configs == [
        {"x": 0, TRIAL_INDEX: 0},
        {"x": 0, TRIAL_INDEX: 1},
        {"x": 0, TRIAL_INDEX: 2},
        {"x": 1, TRIAL_INDEX: 0},
    ]
    searcher.on_complete(1, {"loss": 1.0})
    searcher.on_complete(0, {"loss": math.nan})
    assert inner.told == []
    searcher.on_complete(2, {"loss": 4.0, "training_iteration": 3})
    assert inner.told == [(0, {"loss": 2.5})]
    start(searcher, 4, 5, 6)
    for number in (3, 4, 5):
        searcher.on_complete(number, None)
    assert inner.told[1:] == [(1, None)]
    assert inner.num_samples == 3


def test_repeats_without_an_index() -> None:
    assert start(opened(Repeater(BasicVariantGenerator(), 2, set_index=False), 4), 0, 1)[0].keys() == {"x"}


def test_wrappers_learn_as_what_is_within() -> None:
    assert ConcurrencyLimiter(TPE(), 2).learns
    assert not Repeater(BasicVariantGenerator(), 2).learns


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(UsageError, match="max_concurrent is 0"):
        ConcurrencyLimiter(TPE(), 0)
    with pytest.raises(UsageError, match="repeat is 0"):
        Repeater(TPE(), 0)
