"""Metrics become flat JSON values; what cannot is refused by its name."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core.errors import UsageError
from windlass.tune.trainable.metrics import check_config, flatten_metrics


class Color(StrEnum):
    RED = "red"


class Tensor:
    """What torch's tensors can do."""

    def __init__(self, *values: float) -> None:
        self._values = values

    def numel(self) -> int:
        return len(self._values)

    def size(self) -> tuple[int, ...]:
        return (len(self._values),)

    def item(self) -> float:
        return self._values[0]


def test_nested_names_become_flat() -> None:
    metrics: dict[Any, Any] = {"a": {"b": 1, "c": {"d": 2.5}}, "e": None, 3: True}
    assert flatten_metrics(metrics) == {
        "a/b": 1,
        "a/c/d": 2.5,
        "e": None,
        "3": True,
    }


def test_scalars_of_numpy_and_torch_become_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    values = {
        "float32": numpy.float32(0.5),
        "float64": numpy.float64(0.25),
        "int64": numpy.int64(7),
        "bool": numpy.bool_(True),
        "zero_dim": numpy.array(3),
        "one": numpy.array([2.0]),
        "tensor": Tensor(1.5),
        "tensor_one": Tensor(1.0),
        "nan": numpy.float64("nan"),
    }
    flat = flatten_metrics(values)
    assert math.isnan(flat.pop("nan"))
    plain = {"float32": 0.5, "float64": 0.25, "int64": 7, "bool": True}
    assert flat == plain | {"zero_dim": 3, "one": 2.0, "tensor": 1.5, "tensor_one": 1.0}
    assert {type(value) for value in flat.values()} == {float, int, bool}


def test_lists_tuples_and_enums_are_kept() -> None:
    assert flatten_metrics({"a": (1, [2, "x"]), "b": Color.RED}) == {"a": [1, [2, "x"]], "b": "red"}


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        ({"a": object()}, "`a`"),
        ({"a": {"b": {1, 2}}}, "`a/b`"),
        ({"a": [1, b"x"]}, "`a`[1]"),
        ({"a": 1j}, "`a`"),
        ({"a": Tensor(1.0, 2.0)}, "`a`"),
    ],
)
def test_other_values_are_refused_by_name(metrics: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError) as refused:
        flatten_metrics(metrics)
    assert name in refused.value.message
    assert refused.value.code == "not-serialisable"


def test_arrays_are_refused_with_what_to_do() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(UsageError) as refused:
        flatten_metrics({"curve": numpy.zeros(3)})
    assert "`curve`" in refused.value.message
    assert ".tolist()" in refused.value.hint


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(UsageError, match=r"reported 0\.5, not a mapping"):
        flatten_metrics(0.5)  # type: ignore[arg-type]


def test_a_configuration_is_checked_as_a_whole() -> None:
    assert check_config({"a": {"b": (1, 2)}}) == {"a": {"b": [1, 2]}}
    with pytest.raises(UsageError, match=r"config\['model'\]\['act'\]"):
        check_config({"model": {"act": print}})


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@settings(max_examples=40)
@given(st.dictionaries(st.text(min_size=1), st.recursive(VALUES, st.lists, max_leaves=8)))
def test_what_comes_out_is_what_json_gives_back(metrics: dict[str, Any]) -> None:
    flat = flatten_metrics(metrics)
    assert json.loads(json.dumps(flat)) == flat == metrics
