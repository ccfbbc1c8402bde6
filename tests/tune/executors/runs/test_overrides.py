from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.config.loading import load_config
from windlass.core.errors import UsageError
from windlass.spec import Experiment
from windlass.tune.executors.runs.trial_template import check_name, overrides_of, path_of

_TEXT = """\
name: x
params: {lr: 0.1, model: {layers: 2}}
tasks:
  train: {run: "python t.py --lr ${params.lr}", gpus: 1}
"""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("lr", "params.lr"),
        ("params.lr", "params.lr"),
        ("model.layers", "params.model.layers"),
        ("tasks.train.gpus", "tasks.train.gpus"),
        ("tasks", "params.tasks"),
        ("limit.time", "limit.time"),
    ],
)
def test_short_names_are_parameters(name: str, path: str) -> None:
    assert path_of(name) == path


@pytest.mark.parametrize("name", ["code.x", "env.image", "data.corpus", "where.0"])
def test_what_is_pinned_once_cannot_vary(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_name(name)
    assert caught.value.code == "invalid-space"


def test_no_path_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a setting"):
        check_name("a..b")


def test_nested_configurations_are_paths() -> None:
    found = overrides_of({"lr": 1e-5, "model": {"layers": 4}, "tasks.train.gpus": 2, "flag": True, "none": None})
    assert found == (
        "params.lr=1e-05",
        "params.model.layers=4",
        "tasks.train.gpus=2",
        "params.flag=true",
        "params.none=null",
    )


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats()
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(_VALUES)
def test_every_value_arrives_as_it_was(value: Any) -> None:
    (override,) = overrides_of({"lr": value})
    found = load_config(Experiment, _TEXT, source="x", overrides=[override]).value.params["lr"]
    assert _same(found, value), (override, found)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        overrides_of({"lr": object()})
    assert caught.value.code == "not-serialisable"
