from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.merge_patch import merge, patch_between, same

NAMED = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abcd")}, optional={"x": st.none() | st.integers(0, 3)}),
    max_size=4,
    unique_by=lambda item: item["name"],
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2) | NAMED,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "$literal", "name", "mountPath"]), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON, max_size=3)


@given(OBJECTS, st.dictionaries(st.sampled_from(["a", "b", "c", "$literal"]), JSON, max_size=3))
def test_the_patch_makes_one_of_the_other(base: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert same(merge(base, patch_between(base, wanted)), wanted)


@pytest.mark.parametrize("base", [{"a": {"$literal": None}}, {"$literal": 1}])
def test_a_literal_key_can_be_removed(base: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {key: {} for key in base if key != "$literal"}
    assert merge(base, patch_between(base, wanted)) == wanted


@given(OBJECTS)
def test_nothing_to_do_is_an_empty_patch(base: dict[str, Any]) -> None:
    assert patch_between(base, base) == {}


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        # what it cannot say
        ({"a": 1}, {"a": {"$literal": None}}, {"a": None}),
        ({"a": {"x": 1}}, {"a": {"$literal": {"y": 2}}}, {"a": {"y": 2}}),
        ([{"name": "a", "x": 1}], [{"name": "a", "y": 2}], [{"name": "a", "x": 1, "y": 2}]),
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}], [{"name": "b"}, {"name": "a"}]),
        ([{"name": "a"}, {"name": "b"}], [{"name": "c"}], [{"name": "a"}, {"name": "b"}, {"name": "c"}]),
        ([{"mountPath": "/a"}], [{"mountPath": "/a", "mode": "x"}], [{"mountPath": "/a", "mode": "x"}]),
    ],
)
def test_merging(base: Any, patch: Any, result: Any) -> None:
    assert same(merge(base, patch), result)


def test_true_is_not_one() -> None:
    assert not same(True, 1)
    assert same(4, 4.0)
