"""No command line crashes: it is read, or refused in words that name what is wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from windlass.compat.gantry import Recipe
from windlass.compat.gantry.checkout import Checkout
from windlass.compat.gantry.durations import to_nanoseconds
from windlass.compat.gantry.invocation import read_command_line
from windlass.compat.gantry.options import OPTIONS, names
from windlass.compat.gantry.request import prepare
from windlass.core.errors import WindlassError

T = TypeVar("T")

HERE = Checkout(repo="a/b", url="https://github.com/a/b", ref="0" * 40, files=frozenset({"setup.py"}))
WORDS = st.one_of(
    st.sampled_from([name for name, _, _ in names()]),
    st.sampled_from(["a:/b", "a=b", "A=1", "-1", "0", "2", "1h", "--", "", "-", "ib", "/x", "a:b:/c", "low", "uv"]),
    st.sampled_from([f"{name}=1" for name, _, _ in names()]),
    st.text(max_size=8),
)


def attempt(action: Callable[[], T]) -> tuple[T | None, WindlassError | None]:
    try:
        return action(), None
    except WindlassError as error:
        return None, error


@given(st.lists(WORDS, max_size=12), st.lists(st.text(max_size=5), max_size=3))
def test_any_words_are_read_or_refused(words: list[str], command: list[str]) -> None:
    found, error = attempt(lambda: read_command_line([*words, "--", *command], environ={}, folder=Path("/nowhere")))
    if found is not None:
        check_spec(found.recipe)
    else:
        assert error is not None
        assert error.message
        assert error.hint


VALUES = {
    "text": st.sampled_from(["a", "/a", "a:/b", "1h", "2GiB", "low", ""]) | st.text(max_size=6),
    "whole": st.integers(0, 10),
    "number": st.floats(0, 10),
    "many": st.lists(st.sampled_from(["A=1", "a:/b", "c:/d", "x", "B=2"]) | st.text(max_size=6), max_size=3),
    "flag": st.booleans(),
    "switch": st.booleans(),
}
_FIELDS = {
    option.field: st.sampled_from(option.choices) if option.choices else VALUES[option.kind]
    for option in OPTIONS
    if option.field in Recipe.__dataclass_fields__
}


@given(st.fixed_dictionaries({}, optional=_FIELDS))
def test_any_recipe_is_a_spec_or_refused(settings: dict[str, object]) -> None:
    check_spec(Recipe(["x"], **{"git_repo": HERE, **settings}))  # type: ignore[arg-type]


def check_spec(recipe: Recipe) -> None:
    plain = dataclasses.replace(recipe, git_repo=HERE, remote=None)
    request, error = attempt(lambda: prepare(plain, environ={}, folder=Path("/nowhere")))
    if request is None:
        assert error is not None
        assert error.message
        return
    assert json.loads(json.dumps(request.spec)) == request.spec
    found = [each["name"] for each in request.spec["tasks"][0]["envVars"]]
    assert len(found) == len(set(found))


@given(st.integers(0, 10**5), st.sampled_from(["s", "m", "h", "d", "ms", ""]))
def test_durations_are_exact(number: int, unit: str) -> None:
    size = {"s": 10**9, "": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9, "ms": 10**6}[unit]
    assert to_nanoseconds("--x", f"{number}{unit}") == number * size


@given(st.text(max_size=12))
def test_any_duration_is_read_or_refused(text: str) -> None:
    found, error = attempt(lambda: to_nanoseconds("--x", text))
    assert found is not None or (error is not None and error.code == "invalid-value")
