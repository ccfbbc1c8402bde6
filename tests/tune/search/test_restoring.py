"""What was told before says the next suggestion: a restored searcher goes on as the old one would have."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import optuna
import pytest

from windlass.tune.search import ConcurrencyLimiter, NoSuggestion, Objectives, Repeater, Suggestion
from windlass.tune.search.optuna.bohb import BOHB
from windlass.tune.search.optuna.optuna_search import OptunaSearch
from windlass.tune.search.optuna.samplers import CMAES, GP, NSGA2, NSGA3, TPE
from windlass.tune.search.registry import searcher_from, searcher_settings
from windlass.tune.space.primitives import (
    choice,
    loguniform,
    qloguniform,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from windlass.tune.space.values import is_same

SPACE: dict[str, Any] = {
    "x": uniform(-5, 5), "y": loguniform(1e-3, 1), "k": randint(1, 9), "q": quniform(0, 1, 0.1), "n": randn(),
    "z": qloguniform(0.1, 10, 0.1), "w": sample_from("config.k * 2"), "c": choice(["a", (1, 2), None]),
    "o": choice([{"kind": "sgd", "m": uniform(0, 1)}, {"kind": "adam", "b": uniform(0.5, 1)}]),
}  # fmt: skip
GOAL = Objectives(metrics=("loss",), is_max=(False,))
TWO = Objectives(metrics=("loss", "size"), is_max=(False, True))


def loss(config: dict[str, Any]) -> dict[str, Any]:
    found = config["x"] ** 2 + config["y"] + config["k"] + abs(config["n"]) + config["o"].get("m", 0.5)
    return {"loss": found, "size": config["k"] * config["q"], "training_iteration": 1 + config["k"] % 3}


def define_by_run(trial: Any) -> dict[str, Any]:
    x = trial.suggest_float("x", -5, 5)
    if x > 0:
        trial.suggest_float("deep/y", 1e-3, 1, log=True)
    return {"constant": 1}


MAKERS: dict[str, Callable[[], Any]] = {
    "tpe": lambda: TPE(n_startup_trials=5),
    "fixed": lambda: TPE(n_startup_trials=5, fixed={"x": 1.0, "c": (1, 2)}),
    "points": lambda: TPE(n_startup_trials=5, points_to_evaluate=[{"x": 0.0}, {"k": 1, "o": {"kind": "adam"}}]),
    "cmaes": lambda: CMAES(popsize=4),
    "nsga2": lambda: NSGA2(population_size=4),
    "nsga3": lambda: NSGA3(population_size=4),
    "bohb": lambda: BOHB(random_fraction=0.2, min_points_in_model=4),
    "limited": lambda: ConcurrencyLimiter(TPE(n_startup_trials=5), 3),
    "batched": lambda: ConcurrencyLimiter(NSGA2(population_size=4), 3, batch=True),
    "repeated": lambda: Repeater(TPE(n_startup_trials=5), 3),
    "sampler": lambda: OptunaSearch(sampler=optuna.samplers.NSGAIISampler(population_size=4)),
}


def opened(make: Callable[[], Any], space: dict[str, Any], objectives: Objectives = GOAL, seed: int = 3) -> Any:
    searcher = make()
    searcher.open(space=space, objectives=objectives, seed=seed, num_samples=-1)
    return searcher


Story = list[tuple[str, int, Any]]


def live(searcher: Any, num_trials: int, seed: int, score: Callable[[dict[str, Any]], Any]) -> Story:
    """A sweep of three slots, asked ahead now and then, with failures; returns what was told."""
    chance = random.Random(seed)
    told: Story = []
    running: dict[int, dict[str, Any]] = {}
    number = 0
    while number < num_trials:
        suggestion = searcher.suggest(number) if len(running) < 3 else NoSuggestion.NOT_YET
        if isinstance(suggestion, Suggestion):
            if chance.random() < 0.5:
                searcher.suggest(number + 1)
            if chance.random() < 0.3:
                assert searcher.suggest(number) == suggestion
            searcher.on_suggested(number, suggestion)
            note = json.loads(json.dumps(suggestion.note))
            config = json.loads(json.dumps(suggestion.config))  # as the journal has it: tuples are lists
            told.append(("suggested", number, Suggestion(config=config, note=note)))
            running[number] = suggestion.config
            number += 1
        else:
            done = chance.choice(sorted(running))
            result = None if chance.random() < 0.1 else score(running.pop(done))
            running.pop(done, None)
            searcher.on_complete(done, result)
            told.append(("complete", done, result))
    return told


def retell(searcher: Any, story: Story) -> None:
    for what, number, value in story:
        (searcher.on_suggested if what == "suggested" else searcher.on_complete)(number, value)


def check_exact(
    make: Callable[[], Any], space: dict[str, Any], objectives: Objectives, score: Any, *, num: int = 30
) -> None:
    story = live(opened(make, space, objectives), num, 7, score)
    asks = [index for index, (what, *_) in enumerate(story) if what == "suggested"]
    for cut in asks[:: max(len(asks) // 5, 1)]:
        restored = opened(make, space, objectives)
        retell(restored, story[:cut])
        for what, number, value in story[cut : cut + 9]:
            if what == "suggested":
                again = restored.suggest(number)
                assert isinstance(again, Suggestion)
                assert is_same(again.config, value.config), (cut, number)
                restored.on_suggested(number, again)
            else:
                restored.on_complete(number, value)


@pytest.mark.parametrize("name", MAKERS)
def test_a_restored_searcher_goes_on_exactly(name: str) -> None:
    check_exact(MAKERS[name], SPACE, GOAL, loss)


@pytest.mark.parametrize("name", ["tpe", "nsga2", "nsga3"])
def test_also_with_two_goals(name: str) -> None:
    check_exact(MAKERS[name], SPACE, TWO, loss)


def test_also_when_a_function_of_a_trial_is_the_space() -> None:
    def make() -> Any:
        return OptunaSearch(define_by_run, sampler=optuna.samplers.TPESampler(n_startup_trials=5))

    check_exact(make, {"base": 1}, GOAL, lambda config: {"loss": config["x"] ** 2})


def test_asking_ahead_changes_nothing() -> None:
    """What is asked and not used leaves no trace: with and without it the same trials follow."""
    plain, asked = (opened(MAKERS["tpe"], SPACE) for _ in range(2))
    for number in range(20):
        one = plain.suggest(number)
        for ahead in range(3):
            asked.suggest(number + ahead)
        other = asked.suggest(number)
        assert one.config == other.config
        for searcher in (plain, asked):
            searcher.on_suggested(number, one)
            searcher.on_complete(number, loss(one.config))


def test_another_seed_is_another_search() -> None:
    firsts = {opened(MAKERS["tpe"], SPACE, seed=seed).suggest(0).config["x"] for seed in range(9)}
    assert len(firsts) == 9


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "sampler"])
def test_a_searcher_is_made_again_from_its_settings(name: str) -> None:
    settings = json.loads(json.dumps(searcher_settings(MAKERS[name]())))
    again = searcher_from(settings)
    assert searcher_settings(again) == settings
    assert opened(lambda: again, SPACE).suggest(2).config == opened(MAKERS[name], SPACE).suggest(2).config


@pytest.mark.soak
def test_also_a_gaussian_process() -> None:
    check_exact(lambda: GP(n_startup_trials=5), SPACE, GOAL, loss, num=14)


@pytest.mark.soak
@pytest.mark.parametrize("name", MAKERS)
def test_restoring_over_many_stories(name: str) -> None:
    for seed in range(20):
        story = live(opened(MAKERS[name], SPACE), 60, seed, loss)
        for cut in range(0, len(story), 5):
            restored = opened(MAKERS[name], SPACE)
            retell(restored, story[:cut])
            upcoming = next(((n, v) for what, n, v in story[cut:] if what == "suggested"), None)
            if upcoming and story[cut][0] == "suggested":
                again = restored.suggest(upcoming[0])
                assert is_same(again.config, upcoming[1].config), f"seed {seed}, cut {cut}"
