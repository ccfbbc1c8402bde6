from __future__ import annotations

import collections
import json
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from windlass.tune.space import Space, SpaceError
from windlass.tune.space.grammar import describe, read_space
from windlass.tune.space.primitives import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from windlass.tune.space.values import from_json, to_json


def half(config: Any) -> Any:
    return config["n"] / 2


WHOLE = {
    "lr": loguniform(1e-5, 1e-1), "u": uniform(0, 1), "q": quniform(0, 1, 0.1),
    "ql": qloguniform(1, 10, 0.5), "n": randint(1, 9), "qn": qrandint(0, 10, 5),
    "ln": lograndint(1, 100), "qln": qlograndint(2, 100, 2), "g": randn(1, 2),
    "qg": qrandn(0, 1, 0.5), "c": choice(["a", None, 1.5, (1, 2)]),
    "grid": grid_search([1, "b"]), "e": sample_from("config.n * 2"), "f": sample_from(half),
    "o": choice([{"k": "sgd", "m": uniform(0, 1)}, {"k": "adam"}]),
    "nested": {"list": [1, uniform(2, 3), {"t": (randint(0, 3), 4)}]},
    "init": {"uniform": [-1, 1]}, "betas": {"betas": [0.9, 0.999]}, "class": choice([collections.OrderedDict]),
    "near": {"choices": [1, 2]}, "eval": {"eval": "config.n"}, "keys": {1: 2}, "path": PurePosixPath("a/b"),
}  # fmt: skip


def test_a_space_is_read_back_from_json_and_yaml() -> None:
    described = describe(WHOLE)
    for read in (read_space(json.loads(json.dumps(described))), read_space(yaml.safe_load(yaml.safe_dump(described)))):
        assert describe(read) == described
        for number in range(30):
            assert Space(read).draw(1, number) == Space(WHOLE).draw(1, number)


def test_a_person_writes_short_words() -> None:
    text = """
        lr: {loguniform: [1.0e-5, 0.1]}
        layers: {choice: [2, 4, 8]}
        model: {grid: [small, large]}
        width: {eval: "config.layers * 64"}
        wd: {uniform: {lower: 0, upper: 0.1}}
        init: {fixed: {uniform: [-1, 1]}}
        opt: {choice: [{kind: sgd, momentum: {uniform: [0, 1]}}, {kind: adam}]}
        """
    made = Space(read_space(yaml.safe_load(text)))
    config, _ = made.draw(1, 0)
    assert made.grid_size == 2
    assert config["width"] == config["layers"] * 64
    assert config["init"] == {"uniform": [-1, 1]}


@pytest.mark.parametrize(
    ("data", "message", "hint", "code"),
    [
        ({"lr": {"loguniforn": [1, 2]}}, "`lr`: unknown distribution `loguniforn`", "did you mean `loguniform`? Write `fixed: {loguniforn: ...}` for a plain mapping", "invalid-space"),
        ({"a": [{"lr": {"loguniform": [0, 1]}}]}, "`a/0/lr`: loguniform(0.0, 1.0): a log scale needs a lower bound above 0", "give the bounds themselves, not their logarithms", "invalid-space"),
        ({"lr": {"uniform": 3}}, "`lr`: uniform needs its arguments in a list, not 3", "uniform: [lower, upper]", "invalid-space"),
        ({"lr": {"uniform": [1]}}, "`lr`: uniform does not take [1]", "uniform: [lower, upper]", "invalid-space"),
        ({"lr": {"uniform": {"low": 1}}}, "`lr`: uniform does not take {'low': 1}", "uniform: [lower, upper]", "invalid-space"),
        ({"lr": {"choice": 3}}, "`lr`: choice needs a list of values, not 3", "choice: [3]", "invalid-space"),
        ({"lr": {"choice": []}}, "`lr`: choice([]) has no values", "list at least one", "invalid-space"),
        ({"lr": {"eval": 3}}, "`lr`: eval needs an expression in text, not 3", "", "invalid-space"),
        ({"lr": {"sample_from": "no_such_module:f"}}, "`lr`: cannot import 'no_such_module:f': No module named 'no_such_module'", "make it importable, or pass param_space again", "module-not-found"),
        ({"lr": {"sample_from": "<lambda> (a.py:3)"}}, "`lr` is computed by <lambda> (a.py:3), which cannot be imported", "pass param_space again, or define the function at the top level of a module", "module-not-found"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_the_value_and_its_place(data: Any, message: str, hint: str, code: str) -> None:
    with pytest.raises(SpaceError) as caught:
        read_space(data)
    assert (caught.value.message, caught.value.hint, caught.value.code) == (message, hint, code)


def test_lambdas_are_shown_and_not_read_back() -> None:
    described = describe({"x": sample_from(lambda c: 1)})
    assert "<lambda> (test_grammar.py:" in described["x"]["sample_from"]
    with pytest.raises(SpaceError):
        read_space(described)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3)
        | st.lists(below, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 3) | st.just("$tuple"), below, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_values_go_to_json_and_back_without_loss(value: Any) -> None:
    back = from_json(json.loads(json.dumps(to_json(value))))
    assert back == value
    assert repr(back) == repr(value)


def test_plain_configurations_are_their_own_form() -> None:
    plain = {"a": [1, 2.5, None], "b": {"c": "d"}}
    assert to_json(plain) == plain


def test_objects_are_named_or_refused_at_once() -> None:
    assert to_json(np.float64(1.5)) == 1.5
    assert type(to_json(np.int64(3))) is int
    assert from_json(to_json(collections.OrderedDict)) is collections.OrderedDict
    with pytest.raises(SpaceError) as caught:
        to_json({"a": [{"b": object()}]})
    assert caught.value.message.startswith("`config/a/0/b` is <object object at ")
    assert caught.value.code == "not-serialisable"
