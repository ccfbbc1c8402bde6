"""The same class as the standard library's, over shapes of classes and options."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from windlass.core import dataclass as module

CHEAP: Any = vars(module)["dataclass"]
Decorator = Callable[..., Any]


def plain(dataclass: Decorator, options: dict[str, Any]) -> Any:
    @dataclass(**options)
    class Point:
        """A point."""

        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list)
        hidden: int = field(default=3, repr=False, compare=False)
        limit: ClassVar[int] = 9

    return Point


def derived(dataclass: Decorator, options: dict[str, Any]) -> Any:
    @dataclass(**options)
    class Base:
        """A base."""

        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list)

    @dataclass(**options)
    class Derived(Base):
        """A class below it, with fields that are no parameters."""

        total: int = field(init=False)
        made: list[int] = field(init=False, default_factory=list)
        fixed: int = field(init=False, default=7)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

    return Derived


def own_methods(dataclass: Decorator, options: dict[str, Any]) -> Any:
    @dataclass(**options)
    class Point:  # noqa: PLW1641 - the decorator decides about `__hash__`
        """A point that compares and prints in its own way."""

        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list)

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "mine"

    return Point


OPTIONS = [
    {"frozen": frozen, "slots": slots, "kw_only": kw_only, "eq": eq, "repr": shows}
    for frozen, slots, kw_only, eq, shows in itertools.product((False, True), repeat=5)
]


def behaviour(made: Any) -> dict[str, Any]:
    """What a user of the class sees, as values that can be compared."""
    first, same, other = made(x=1), made(x=1), made(x=2, y=5, tags=["a"])

    def outcome(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except (TypeError, AttributeError) as error:
            return type(error)

    return {
        "signature": str(inspect.signature(made)),
        "fields": [(f.name, f.default, f.kw_only) for f in dataclasses.fields(made)],
        "asdict": [dataclasses.asdict(each) for each in (first, other)],
        "replaced": dataclasses.asdict(dataclasses.replace(first, x=9)),
        "repr": repr(other) if "object at" not in repr(other) else "object",
        "equal": (first == same, first == other, first != other, first == 1),
        "hash": outcome(lambda: hash(first) == hash(same)) if made.__hash__ is not object.__hash__ else "by identity",
        "set": outcome(lambda: setattr(first, "x", 3)),
        "delete": outcome(lambda: delattr(same, "x")),
        "new": isinstance(outcome(lambda: setattr(first, "unknown", 3)), type),
        "positional": outcome(lambda: made(1, 3).y),
        "missing": outcome(made),
        "unknown": outcome(lambda: made(x=1, z=1)),
        "copied": dataclasses.asdict(copy.deepcopy(other)),
        "match": made.__match_args__,
        "slots": getattr(made, "__slots__", None),
        "params": str(made.__dataclass_params__),
        "own list": made(x=1).tags is not made(x=1).tags,
        "doc": made.__doc__,
        "name": made.__init__.__qualname__.rpartition("<locals>.")[2],
    }


@pytest.mark.parametrize("shape", [plain, derived, own_methods])
def test_behaves_as_the_standard_one(shape: Callable[..., Any]) -> None:
    for options in OPTIONS:
        assert behaviour(shape(CHEAP, options)) == behaviour(shape(dataclasses.dataclass, options)), options


def test_orders_as_the_standard_one() -> None:
    def version(dataclass: Decorator) -> Any:
        @dataclass(frozen=True, order=True)
        class Version:
            """A version."""

            major: int
            minor: int = 0

        return Version

    for made in (version(CHEAP), version(dataclasses.dataclass)):
        assert made(1) < made(1, 1) <= made(2)
        assert made(2) > made(1) >= made(1)
        assert sorted([made(2), made(1, 5), made(1)]) == [made(1), made(1, 5), made(2)]
        with pytest.raises(TypeError):
            made(1) < 3  # noqa: B015


def test_standard_classes_can_derive_from_it_and_it_from_them() -> None:
    base = plain(CHEAP, {"frozen": True, "kw_only": True})
    below: Any = dataclasses.dataclass(frozen=True, kw_only=True)(
        type("Below", (base,), {"__annotations__": {"z": "int"}})
    )
    assert repr(below(x=1, z=2)) == "Below(x=1, y=2, tags=[], z=2)"
    again: Any = CHEAP(frozen=True, kw_only=True)(type("Again", (below,), {"__annotations__": {"w": "int"}}))
    assert repr(again(x=1, z=2, w=3)) == "Again(x=1, y=2, tags=[], z=2, w=3)"
    for decorator in (CHEAP, dataclasses.dataclass):
        with pytest.raises(TypeError, match="non-frozen"):
            decorator()(type("Loose", (base,), {}))


def test_a_value_that_contains_itself_prints() -> None:
    made = plain(CHEAP, {})(x=1)
    made.tags.append(made)
    assert repr(made).endswith("Point(x=1, y=2, tags=[...])")


@CHEAP(frozen=True, slots=True)
class Pickled:
    """A value that is pickled by name."""

    x: int
    y: str = "y"


def test_frozen_values_with_slots_are_pickled() -> None:
    made: Any = Pickled
    value = made(1)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value


def test_init_is_compiled_once_and_only_when_it_is_needed() -> None:
    made = plain(CHEAP, {"frozen": True})
    assert not inspect.isfunction(vars(made)["__init__"])
    made(x=1)
    compiled = vars(made)["__init__"]
    assert inspect.isfunction(compiled)
    made(x=2)
    assert vars(made)["__init__"] is compiled


def test_costs_a_fraction_of_the_standard_one_in_functions_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def execute(text: str, *names: Any) -> None:
        compiled.append(text)
        exec(text, *names)

    monkeypatch.setitem(vars(dataclasses), "exec", execute)
    plain(dataclasses.dataclass, {"frozen": True, "slots": True})
    standard = len(compiled)
    compiled.clear()
    plain(CHEAP, {"frozen": True, "slots": True})
    assert (standard >= 5, compiled) == (True, [])
