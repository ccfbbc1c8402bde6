from __future__ import annotations

import subprocess
import sys
from itertools import count
from typing import Any

import pytest

from windlass.core.errors import UsageError
from windlass.tune.search import BasicVariantGenerator, NoSuggestion, Objectives, Suggestion
from windlass.tune.search.quasi_random import QuasiRandom
from windlass.tune.space.primitives import choice, grid_search, loguniform, randint, sample_from, uniform

SPACE = {"a": grid_search([1, 2]), "b": randint(0, 1000), "c": {"d": uniform(0, 1)}}


def opened(searcher: Any, space: dict[str, Any] | None = None, *, num_samples: int = 4, seed: int = 1) -> Any:
    searcher.open(space=SPACE if space is None else space, objectives=Objectives(), seed=seed, num_samples=num_samples)
    return searcher


def suggested(searcher: Any) -> list[Suggestion]:
    made: list[Suggestion] = []
    for number in count():
        suggestion = searcher.suggest(number)
        if suggestion is NoSuggestion.FINISHED:
            return made
        assert isinstance(suggestion, Suggestion)
        searcher.on_suggested(number, suggestion)
        made.append(suggestion)
    raise AssertionError


def configs(searcher: Any, number: int) -> list[dict[str, Any]]:
    return [searcher.suggest(index).config for index in range(number)]


def test_the_grid_is_walked_for_every_sample() -> None:
    made = suggested(opened(BasicVariantGenerator()))
    assert [one.config["a"] for one in made] == [1, 2] * 4
    assert len({one.config["b"] for one in made}) > 5
    assert list(made[0].assigned) == ["a", "b", "c/d"]


def test_a_constant_grid_keeps_what_was_drawn() -> None:
    made = suggested(opened(BasicVariantGenerator(constant_grid_search=True)))
    assert [made[2 * k].config["b"] == made[2 * k + 1].config["b"] for k in range(4)] == [True] * 4
    assert len({one.config["b"] for one in made}) == 4


def test_presets_come_first_and_replace_samples() -> None:
    """Ray Tune's documentation has this example: one, one, two and two trials from four samples."""
    space = {"a": grid_search([1, 2]), "b": randint(0, 3)}
    points: list[dict[str, Any]] = [{"a": 2, "b": 2}, {"a": 1}, {"b": 2}]
    made = [one.config for one in suggested(opened(BasicVariantGenerator(points), space))]
    assert made[0] == {"a": 2, "b": 2}
    assert made[1]["a"] == 1
    assert [one["a"] for one in made[2:]] == [1, 2, 1, 2]
    assert [one["b"] for one in made[2:4]] == [2, 2]
    assert len(made) == 6


def test_presets_stand_in_assigned() -> None:
    made = suggested(opened(BasicVariantGenerator([{"c": {"d": 0.5}}])))
    assert made[0].assigned["c/d"] == 0.5


@pytest.mark.parametrize("make", [BasicVariantGenerator, lambda: QuasiRandom("sobol"), lambda: QuasiRandom("halton")])
def test_trials_follow_from_seed_and_number_in_any_order(make: Any) -> None:
    space = {
        **SPACE,
        "lr": loguniform(1e-4, 1),
        "o": choice([{"x": uniform(0, 1)}, 3]),
        "w": sample_from("config.b * 2"),
    }
    expected = configs(opened(make(), space, num_samples=-1), 100)
    backwards = opened(make(), space, num_samples=-1)
    assert [backwards.suggest(index).config for index in reversed(range(100))] == expected[::-1]
    restored = opened(make(), space, num_samples=-1)
    restored.on_suggested(0, Suggestion(config={}))
    restored.on_complete(0, None)
    assert restored.suggest(57).config == expected[57]
    assert configs(opened(make(), space, num_samples=-1, seed=2), 9) != expected[:9]


def test_a_seed_of_its_own_wins() -> None:
    assert configs(opened(BasicVariantGenerator(random_state=5), seed=1), 3) == configs(
        opened(BasicVariantGenerator(random_state=5), seed=2), 3
    )


def test_samples_may_be_unbounded_and_extended() -> None:
    endless = opened(BasicVariantGenerator(), num_samples=-1)
    assert isinstance(endless.suggest(10**9), Suggestion)
    assert configs(opened(BasicVariantGenerator(), num_samples=50), 8) == configs(opened(BasicVariantGenerator()), 8)


def test_not_more_than_so_many_at_once() -> None:
    searcher = opened(BasicVariantGenerator(max_concurrent=2))
    for number in range(2):
        searcher.on_suggested(number, searcher.suggest(number))
    assert searcher.suggest(2) is NoSuggestion.NOT_YET
    searcher.on_complete(0, None)
    assert isinstance(searcher.suggest(2), Suggestion)


def test_random_search_learns_nothing_and_says_so() -> None:
    searcher = opened(BasicVariantGenerator())
    searcher.add_known([], [])
    with pytest.raises(UsageError, match="does not learn from 1 known point"):
        searcher.add_known([{}], [{}])


def test_no_library_is_loaded_for_random_search() -> None:
    code = """if True:
        import sys
        from windlass.tune.search import BasicVariantGenerator, Objectives
        from windlass.tune import loguniform, grid_search, choice
        searcher = BasicVariantGenerator()
        space = {"x": loguniform(1, 2), "y": grid_search([1]), "z": choice([1, 2])}
        searcher.open(space=space, objectives=Objectives(), seed=0, num_samples=2)
        searcher.suggest(1)
        heavy = {"numpy", "pandas", "optuna", "scipy", "ray", "cloudpickle", "statistics"}
        sys.exit(f"loaded {heavy & set(sys.modules)}" if heavy & set(sys.modules) else 0)"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_quasi_random_points_are_spread_more_evenly() -> None:
    """Each of 64 cells of a square gets just one of 64 Sobol points (in base 2), and about one of Halton's."""
    space = {"x": uniform(0, 1), "y": uniform(0, 1)}
    for sequence, least in (("sobol", 64), ("halton", 48)):
        searcher = opened(QuasiRandom(sequence), space, num_samples=-1)
        cells = {(int(one["x"] * 8), int(one["y"] * 8)) for one in configs(searcher, 64)}
        assert len(cells) >= least, sequence
    drawn = configs(opened(BasicVariantGenerator(), space, num_samples=-1), 64)
    assert len({(int(one["x"] * 8), int(one["y"] * 8)) for one in drawn}) < 48


def test_there_are_two_sequences() -> None:
    with pytest.raises(UsageError, match="unknown sequence 'sobel'"):
        QuasiRandom("sobel")
