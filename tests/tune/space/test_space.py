from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from windlass.tune.errors import RecursiveDependencyError
from windlass.tune.space import Space, SpaceError
from windlass.tune.space.primitives import (
    choice,
    grid_search,
    loguniform,
    qloguniform,
    qrandint,
    randint,
    randn,
    sample_from,
    uniform,
)


def drawn(space: dict[str, Any], number: int = 0, **more: Any) -> dict[str, Any]:
    return Space(space).draw(1, number, **more)[0]


def test_nested_mappings_lists_and_tuples_keep_their_shape() -> None:
    config = drawn(
        {"a": {"b": [uniform(0, 1), {"c": randint(3, 4)}], "t": (1, choice([2]))}, "fixed": [1, {"x": None}]}
    )
    assert 0 <= config["a"]["b"][0] < 1
    assert config["a"]["b"][1] == {"c": 3}
    assert config["a"]["t"] == (1, 2)
    assert config["fixed"] == [1, {"x": None}]


def test_what_was_drawn_has_flat_names() -> None:
    _, assigned = Space({"m": {"lr": uniform(0, 1), "layers": [randint(1, 2), 7]}, "n": 3}).draw(1, 0)
    assert list(assigned) == ["m/lr", "m/layers/0"]


def test_a_trial_may_change_its_configuration() -> None:
    space = Space({"layers": [1, 2], "opt": choice([{"k": [1]}]), "x": uniform(0, 1)})
    config, _ = space.draw(1, 0)
    config["layers"].append(3)
    config["opt"]["k"].append(2)
    assert space.draw(1, 0)[0]["layers"] == [1, 2]
    assert space.draw(1, 0)[0]["opt"] == {"k": [1]}


def test_draws_follow_from_seed_number_and_name_alone() -> None:
    space = Space({"a": uniform(0, 1), "b": {"c": randn()}})
    assert space.draw(1, 5)[0]["a"] == drawn({"z": uniform(0, 1), "a": uniform(0, 1)}, 5)["a"]
    assert len({space.draw(seed, number)[0]["a"] for seed in range(9) for number in range(9)}) == 81


# -------------------------------------------------------------------------------------------------------- computed


@pytest.mark.parametrize(
    "function",
    [
        lambda config: config["x"] * 2,
        lambda config: config.x * 2,
        lambda spec: spec.config.x * 2,
        lambda spec: spec["config"]["x"] * 2,
        lambda config: config.get("x") * 2,
        lambda config: config["x"] * 2 if "y" not in config and len(config) == 2 else None,
        "config.x * 2",
        "spec.config['x'] * 2",
    ],
)
def test_computed_values_read_others_in_any_form(function: Any) -> None:
    assert drawn({"two": sample_from(function), "x": randint(3, 4)})["two"] == 6


def test_computed_values_read_computed_values_in_any_order() -> None:
    space = {
        "d": sample_from(lambda c: c.c.deep[0] + 1),
        "c": {"deep": [sample_from(lambda c: c.b * 10)]},
        "b": sample_from(lambda c: c.a + 1),
        "a": randint(1, 2),
        "none": sample_from(lambda: 9),
    }
    assert drawn(space) == {"a": 1, "b": 2, "c": {"deep": [20]}, "d": 21, "none": 9}


def test_computed_values_read_grids_choices_and_what_is_below_them() -> None:
    space = {
        "opt": choice([{"kind": "sgd", "m": randint(5, 6)}]),
        "size": grid_search([1, 2]),
        "sum": sample_from(lambda c: c.opt.m + c["size"]),
    }
    assert [Space(space).draw(1, n, grid_index=n)[0]["sum"] for n in range(2)] == [6, 7]


def test_functions_that_use_global_generators_repeat() -> None:
    space = {"x": sample_from(lambda: random.uniform(0, 1)), "y": sample_from(lambda _: random.random())}
    assert drawn(space, 3) == drawn(space, 3)
    assert drawn(space, 3) != drawn(space, 4)
    assert drawn(space, 3)["x"] != drawn(space, 3)["y"]


def test_a_circle_is_refused_by_its_names() -> None:
    space = {
        "a": sample_from(lambda c: c.b),
        "b": {"c": sample_from(lambda c: c.d)},
        "d": sample_from(lambda c: c.a),
    }
    space["a"] = sample_from(lambda c: c.b.c)
    with pytest.raises(RecursiveDependencyError, match="a -> b/c -> d -> a") as caught:
        drawn(space)
    assert caught.value.code == "invalid-space"


def test_a_failing_function_is_named_with_its_place() -> None:
    with pytest.raises(
        SpaceError, match=r"`m/x`: sample_from\(.*test_space.py:\d+\)\) failed: AttributeError"
    ) as caught:
        drawn({"m": {"x": sample_from(lambda c: c.no_such)}})
    assert caught.value.code == "user-code-failed"
    assert "no_such" in caught.value.message


# ----------------------------------------------------------------------------------------------------- conditionals


def test_a_choice_of_spaces_draws_only_the_chosen() -> None:
    space = Space({"opt": choice([{"kind": "sgd", "m": uniform(0, 1)}, {"kind": "adam", "b": uniform(2, 3)}, None])})
    seen = set()
    for number in range(40):
        config, assigned = space.draw(1, number)
        kind = config["opt"]["kind"] if config["opt"] else None
        seen.add(kind)
        assert assigned["opt"] == (f"kind={kind}" if kind else None)
        assert set(assigned) == {"opt", *({"sgd": ["opt/m"], "adam": ["opt/b"]}.get(kind or "", []))}
    assert seen == {"sgd", "adam", None}


def test_conditions_nest() -> None:
    space = Space({"a": choice([1, choice([uniform(5, 6), {"b": choice([randint(7, 8)])}])])})
    values = [space.draw(1, number)[0]["a"] for number in range(60)]
    assert 1 in values
    assert {"b": 7} in values
    assert any(isinstance(value, float) and 5 <= value < 6 for value in values)


# ------------------------------------------------------------------------------------------------------------ grids


def test_grids_turn_in_the_order_of_ray(need: Any) -> None:
    need("ray")
    from ray.tune.search.variant_generator import generate_variants

    space = {"b": grid_search([1, 2, 3]), "a": {"z": grid_search(["p", "q"]), "y": grid_search([7])}, "k": 1}
    theirs = [config for _, config in generate_variants(space)]
    ours = Space(space)
    assert ours.grid_size == 6
    assert [ours.draw(1, 0, grid_index=index)[0] for index in range(6)] == theirs


def test_a_grid_of_spaces_walks_through_all_of_them() -> None:
    space = Space(
        {
            "o": grid_search([{"k": "a", "m": grid_search([1, 2])}, {"k": "b", "x": uniform(0, 1)}]),
            "p": grid_search([0, 1]),
        }
    )
    assert space.grid_size == 6
    configs = [space.draw(1, 0, grid_index=index)[0] for index in range(6)]
    kinds = [(c["o"]["k"], c["o"].get("m"), c["p"]) for c in configs]
    assert sorted(kinds, key=str) == sorted(
        [("a", 1, 0), ("a", 1, 1), ("a", 2, 0), ("a", 2, 1), ("b", None, 0), ("b", None, 1)], key=str
    )


def test_a_grid_in_a_choice_is_refused() -> None:
    with pytest.raises(SpaceError, match="`a`: a grid within a choice"):
        Space({"a": choice([1, {"b": grid_search([1, 2])}])})


def test_an_empty_grid_in_a_plain_mapping_is_refused_with_its_place() -> None:
    with pytest.raises(SpaceError, match="`m/a`: grid_search"):
        Space({"m": {"a": {"grid_search": []}}})
    with pytest.raises(SpaceError, match="`m/a`: a grid needs a list of values, not 7"):
        Space({"m": {"a": {"grid_search": 7}}})


# ---------------------------------------------------------------------------------------------- presets and places


def test_presets_fix_what_they_name() -> None:
    space = Space(
        {"a": uniform(0, 1), "m": {"x": randint(0, 9), "y": grid_search([1, 2])}, "n": {"fixed": 1, "other": 2}}
    )
    preset = space.preset({"m": {"y": 5}, "n": {"fixed": 3}})
    assert preset.grid_size == 1
    config, _ = preset.draw(1, 0)
    assert config["m"]["y"] == 5
    assert config["n"] == {"fixed": 3, "other": 2}
    assert space.preset({"m": {"x": 3}}).grid_size == 2


def test_a_preset_of_a_conditional_takes_the_option_that_agrees() -> None:
    space = Space({"o": choice([{"k": "a", "x": uniform(0, 1)}, {"k": "b", "x": uniform(5, 6), "z": uniform(0, 1)}])})
    config, _ = space.preset({"o": {"k": "b", "x": 5.5}}).draw(1, 0)
    assert config["o"]["k"] == "b"
    assert config["o"]["x"] == 5.5
    assert 0 <= config["o"]["z"] < 1


def test_a_preset_with_a_misspelt_name_is_refused() -> None:
    with pytest.raises(SpaceError) as caught:
        Space({"m": {"lr": uniform(0, 1)}}).preset({"m": {"lrr": 1}})
    assert caught.value.message == "a point in points_to_evaluate has `m/lrr`, which the space does not have"
    assert caught.value.hint == "did you mean `m/lr`?"


LOCATED = {
    "f": uniform(0, 1), "l": loguniform(1e-3, 1), "q": qloguniform(0.1, 10, 0.1), "i": qrandint(0, 100, 5),
    "c": choice(["a", (1, 2), None, True, 1]), "n": [randn(), 3], "w": sample_from("config.i"),
    "o": choice([{"k": 1, "x": uniform(0, 1)}, {"k": 2, "y": choice([{"z": randint(0, 5)}, 4])}]),
    "g": grid_search([1, 2]),
}  # fmt: skip


def test_every_drawn_configuration_is_located_again() -> None:
    space = Space(LOCATED)
    for number, index in itertools.product(range(60), range(2)):
        config, _ = space.draw(3, number, grid_index=index)
        found = space.locate(config)
        assert found is not None
        assert found["f"] == config["f"]
        assert found["g"] == index
        option = found["o"]
        assert config["o"]["k"] == option + 1


def test_what_the_space_cannot_give_is_not_located() -> None:
    space = Space(LOCATED)
    config, _ = space.draw(3, 0)
    assert space.locate({**config, "f": 2.0}) is None
    assert space.locate({**config, "o": {"k": 3, "x": 0.5}}) is None
    assert space.locate({**config, "n": [0.0, 4]}) is None
    assert space.locate({**config, "extra": 1}) is None
    assert space.locate({name: config[name] for name in list(config)[1:]}) is None


def test_spaces_are_mappings() -> None:
    with pytest.raises(SpaceError, match="a search space is a mapping of names, not 3"):
        Space(3)  # type: ignore[arg-type]
