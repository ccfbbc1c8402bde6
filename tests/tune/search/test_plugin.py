from __future__ import annotations

from typing import Any

import pytest

from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.search import NoSuggestion, Objectives, Suggestion
from windlass.tune.search.registry import as_searcher, own_objectives, searcher_from, searcher_settings
from windlass.tune.search.searcher import Searcher
from windlass.tune.space.primitives import uniform

GOAL = Objectives(metrics=("loss",), is_max=(False,))


class Counting:
    """The least a plug-in can be: it counts, wants a result before the third, and has five."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.number = 0

    def suggest(self, trial_id: str) -> Any:
        if self.number == 5:
            return "FINISHED"
        if self.number == 2 and not any(call[0] == "complete" for call in self.calls):
            return None
        self.number += 1
        self.calls.append(("suggest", trial_id))
        return {"x": self.number}

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        self.calls.append(("result", trial_id, result["loss"]))

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.calls.append(("complete", trial_id, result, error))


class Learning(Searcher):
    def __init__(self) -> None:
        super().__init__()
        self.known: list[Any] = []
        self.taken: Any = None

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        self.taken = (metric, mode, list(config))
        return True

    def suggest(self, trial_id: str) -> Any:
        return {"x": -1}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...

    def add_evaluated_point(self, parameters: Any, value: Any) -> None:
        self.known.append((parameters, value))


def opened(plugin: Any, space: Any = None, num_samples: int = -1) -> Any:
    searcher = as_searcher(plugin)
    searcher.open(space=space or {}, objectives=GOAL, seed=0, num_samples=num_samples)
    return searcher


def test_three_methods_make_a_searcher() -> None:
    plugin = Counting()
    searcher = opened(plugin, {"constant": 7})
    assert not searcher.learns
    for number in range(2):
        suggestion = searcher.suggest(number)
        assert searcher.suggest(number) == suggestion
        assert suggestion.config == {"constant": 7, "x": number + 1}
        searcher.on_suggested(number, suggestion)
    assert searcher.suggest(2) is NoSuggestion.NOT_YET
    searcher.on_result(0, {"loss": 3.0})
    searcher.on_complete(0, {"loss": 2.0})
    searcher.on_complete(1, None)
    assert plugin.calls[2:] == [
        ("result", "00000", 3.0), ("complete", "00000", {"loss": 2.0}, False), ("complete", "00001", None, True),
    ]  # fmt: skip
    for number in range(2, 5):
        searcher.on_suggested(number, searcher.suggest(number))
    assert searcher.suggest(5) is NoSuggestion.FINISHED


def test_a_plug_in_gets_metric_mode_and_space() -> None:
    plugin = Learning()
    opened(plugin, {"x": uniform(0, 1)})
    assert plugin.taken == ("loss", "min", ["x"])


def test_a_restored_plug_in_is_asked_again() -> None:
    plugin = Counting()
    searcher = opened(plugin)
    for number in range(2):
        searcher.on_suggested(number, Suggestion(config={"x": number + 1}))
    searcher.on_complete(0, {"loss": 1.0})
    assert plugin.calls == [("suggest", "00000"), ("suggest", "00001"), ("complete", "00000", {"loss": 1.0}, False)]


def test_one_that_answers_otherwise_is_told_the_points() -> None:
    plugin = Learning()
    searcher = opened(plugin, {"x": uniform(0, 1)})
    searcher.on_suggested(0, Suggestion(config={"x": 0.5}))
    searcher.on_result(0, {"loss": 2.0})
    searcher.on_complete(0, {"loss": 1.0})
    assert plugin.known == [({"x": 0.5}, 1.0)]


def test_num_samples_counts() -> None:
    assert opened(Counting(), num_samples=1).suggest(1) is NoSuggestion.FINISHED


def test_a_searcher_object_of_ray_is_one(need: Any) -> None:
    need("ray")
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    theirs: Any = OptunaSearch({"x": optuna.distributions.FloatDistribution(0, 1)}, metric="loss", mode="min", seed=1)
    assert own_objectives(as_searcher(theirs)) == GOAL
    searcher = opened(theirs)
    for number in range(20):
        suggestion = searcher.suggest(number)
        searcher.on_suggested(number, suggestion)
        searcher.on_result(number, {"loss": 1.0, "training_iteration": 1})
        searcher.on_complete(number, {"loss": suggestion.config["x"]})
    assert len(theirs._ot_study.trials) == 20
    assert theirs._ot_study.best_value < 0.3


def test_what_suggests_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="invalid search_alg 3: it has no `suggest`"):
        as_searcher(3)
    with pytest.raises(UsageError, match="search_alg is the class Counting"):
        as_searcher(Counting)


def test_a_plug_in_must_be_given_again() -> None:
    settings = searcher_settings(as_searcher(Counting()))
    with pytest.raises(PreconditionError) as caught:
        searcher_from(settings)
    assert "cannot recreate the searcher of this sweep, tests.tune.search.test_plugin:Counting" in caught.value.message
    assert caught.value.code == "module-not-found"


def test_an_answer_that_is_no_configuration_is_told() -> None:
    class Odd(Searcher):
        def suggest(self, trial_id: str) -> Any:
            return 5

    with pytest.raises(UsageError, match=r"Odd\.suggest returned 5, which is not a configuration"):
        opened(Odd()).suggest(0)
