from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from tests.config.shapes import Adam, Bounds, Color, Config, Node, Point, Sgd
from windlass.config import Doc, Range
from windlass.config.loading import from_data, load_config
from windlass.core.errors import SourcePlace, SpecError


def read(text: str, *overrides: str) -> Config:
    return load_config(Config, text, source="c.yaml", overrides=overrides).value


def refusals(text: str, *overrides: str) -> list[tuple[str, str, str]]:
    with pytest.raises(SpecError) as caught:
        read(text, *overrides)
    return [(problem.code, problem.message, problem.hint) for problem in caught.value.problems]


_FIELDS: list[tuple[str, str, object]] = [
    ("text: yes", "text", "yes"),
    ('text: ""', "text", ""),
    ("whole: 0x1f", "whole", 31),
    ("real: 1", "real", 1.0),
    ("real: 1e-6", "real", 1e-6),
    ("real: .inf", "real", float("inf")),
    ("flag: true", "flag", True),
    ("maybe: null", "maybe", None),
    ("maybe: 5", "maybe", 5),
    ("maybe_bounds: {high: 20}", "maybe_bounds", Bounds(high=20)),
    ("level: high", "level", "high"),
    ("level: 3", "level", 3),
    ("level: true", "level", True),
    ("color: blue", "color", Color.BLUE),
    ("path: a/b", "path", Path("a/b")),
    ("wait: 1h30m", "wait", 5400.0),
    ("wait: 7ms", "wait", 0.007),
    ("maybe_wait: null", "maybe_wait", None),
    ("memory: 1.5 GiB", "memory", 3 << 29),
    ("class: x", "class_", "x"),
    ("words: [a, b]", "words", ("a", "b")),
    ("words: []", "words", ()),
    ("one_or_many: a", "one_or_many", ("a",)),
    ("one_or_many: [a, b]", "one_or_many", ("a", "b")),
    ("grid: [[1], [2, 3]]", "grid", ((1,), (2, 3))),
    ("listed: [1]", "listed", [1]),
    (
        "environment: {A: 1, B: 1e-6, C: true, D: 007, E: x}",
        "environment",
        {"A": "1", "B": "1e-6", "C": "true", "D": "007", "E": "x"},
    ),
    ("points: {a: 3, b: '3,4', c: {x: 5}}", "points", {"a": Point(x=3), "b": Point(x=3, y=4), "c": Point(x=5)}),
    ("origin: 3", "points", {"origin": Point(x=3)}),
    ("path_of_points: 3", "path_of_points", (Point(x=3),)),
    ("number: 1", "number", 1),
    ("number: 1.0", "number", 1.0),
    ("command: a b", "command", "a b"),
    ("command: [a, b]", "command", ("a", "b")),
    ("optimizer: {kind: sgd, momentum: 1}", "optimizer", Sgd(momentum=1.0)),
    ("optimizer: {kind: adam}", "optimizer", Adam()),
    (
        "tree: {children: [{label: a, children: [{label: b}]}]}",
        "tree",
        Node(children=(Node(label="a", children=(Node(label="b"),)),)),
    ),
    ("free: {a: [1, {b: null}], c: 1.5}", "free", {"a": [1, {"b": None}], "c": 1.5}),
]


def test_a_field_is_read() -> None:
    for text, field, value in _FIELDS:
        found = getattr(read(text), field)
        assert (found, type(found)) == (value, type(value)), text


def test_an_empty_file_is_fine_where_everything_has_a_default() -> None:
    assert read("") == Config()
    assert read("# nothing\n") == Config()


_WRONG_FIELDS: list[tuple[str, str, str, str]] = [
    ("text: 5", "invalid-value", "`text` must be text, not the number `5`", 'quote it: "5"'),
    ("text: [a]", "invalid-value", "`text` must be text, not a list", ""),
    ("flag: 1", "invalid-value", "`flag` must be `true` or `false`, not the number `1`", ""),
    ("flag: on", "invalid-value", "`flag` must be `true` or `false`, not the text `on`", "write `true`"),
    ("whole: true", "invalid-value", "`whole` must be a whole number, not `true`", ""),
    ("whole: 1.0", "invalid-value", "`whole` must be a whole number, not the number `1.0`", ""),
    ("real: '1'", "invalid-value", "`real` must be a number, not the text `1`", "remove the quotes: 1"),
    ("ratio: .nan", "invalid-value", "`ratio` is `.nan`, which is out of range", "it must be above 0 and at most 1"),
    ("small: 10", "invalid-value", "`small` is `10`, which is out of range", "it must be between 1 and 9"),
    ("level: 4", "invalid-value", "`level` cannot be the number `4`", "it must be one of low, high, 3, true"),
    ("level: 1", "invalid-value", "`level` cannot be the number `1`", "it must be one of low, high, 3, true"),
    (
        "color: bleu",
        "invalid-value",
        "`color` cannot be the text `bleu`",
        "did you mean `blue`? it must be one of red, blue",
    ),
    (
        "color: null",
        "invalid-value",
        "`color` must be one of red, blue, not nothing (null)",
        "write a value, or remove `color`",
    ),
    ("wait: 0.1ms", "invalid-value", "`wait` is `0.1ms`, finer than a millisecond", "the finest unit is `1ms`"),
    (
        "wait: 99999999999999999w",
        "invalid-value",
        "`wait` is `99999999999999999w`, which is out of range",
        "it must be shorter than that",
    ),
    (
        "memory: '64'",
        "invalid-value",
        "`memory` is `64`, which has no unit",
        "a size is a number with a unit: 512MiB, 16GiB, 1.5TB",
    ),
    ("memory: 9PiB", "invalid-value", "`memory` is `9PiB`, which is out of range", "it must be at most 8PiB"),
    ("memory: 0B", "invalid-value", "`memory` is `0B`, which is out of range", "it must be at least 1B"),
    ("version: 1.2", "invalid-value", "`version` must be text, not the number `1.2`", 'quote it: "1.2"'),
    ("version: x", "invalid-value", "`version` cannot be the text `x`", "a version is `v` and a number"),
    ("words: a", "invalid-value", "`words` must be a list, not the text `a`", ""),
    ("one_or_many: 5", "invalid-value", "`one_or_many` must be text, not the number `5`", 'quote it: "5"'),
    (
        "one_or_many: {a: 1}",
        "invalid-value",
        "`one_or_many` must be text, not a mapping",
        "put quotes around text that contains `: `",
    ),
    (
        "environment: {A: null}",
        "invalid-value",
        "`environment.A` must be text, not nothing (null)",
        'write a value, or remove `A`; empty text is `""`',
    ),
    ("points: {a: 3;4}", "invalid-value", "`points.a` cannot be the text `3;4`", "a point is `3` or `3,4`"),
    ("points: {a: -1}", "invalid-value", "`points.a.x` is `-1`, which is out of range", "it must be at least 0"),
    (
        "points: {a: 1.5}",
        "invalid-value",
        "`points.a` must be a whole number, text or a mapping, not the number `1.5`",
        "",
    ),
    (
        "command: {a: 1}",
        "invalid-value",
        "`command` must be text or a list, not a mapping",
        "put quotes around text that contains `: `",
    ),
    (
        "optimizer: {momentum: 1}",
        "missing-key",
        "missing key `kind` in optimizer",
        "it must be one of adam, sgd, plain",
    ),
    (
        "optimizer: {kind: sdg, momentum: 1}",
        "invalid-value",
        "`optimizer.kind` cannot be the text `sdg`",
        "did you mean `sgd`? it must be one of adam, sgd, plain",
    ),
    ("optimizer: {kind: sgd}", "missing-key", "missing key `momentum` in optimizer", "add `momentum:`"),
    ("bounds: {low: 11}", "conflicting-options", "low is above high", "swap them"),
    (
        "bounds:",
        "invalid-value",
        "`bounds` must be a mapping, not nothing (null)",
        "indent what belongs to `bounds` below it, or remove `bounds`",
    ),
    ("bounds: {lwo: 1}", "unknown-key", "unknown key `lwo` in bounds", "did you mean `low`?"),
    (
        "momentum: 1",
        "unknown-key",
        "unknown key `momentum` at the top level",
        "`momentum` belongs elsewhere: `optimizer.momentum`",
    ),
    ("bounds: {zzz: 1}", "unknown-key", "unknown key `zzz` in bounds", "the keys here are: low, high"),
    ('text: "a\\0b"', "invalid-value", "`text` contains a NUL character", "remove it"),
    (
        "origin: 3\npoints: {}",
        "conflicting-options",
        "both `origin` and `points` are set",
        "`origin` is short for `points.origin`; keep one of them",
    ),
]


def test_a_wrong_field_is_refused() -> None:
    for text, code, message, hint in _WRONG_FIELDS:
        assert refusals(text) == [(code, message, hint)], text


def test_all_problems_come_together_in_the_order_of_the_file() -> None:
    found = refusals("whole: x\ntext: 5\nbounds: {low: 20}\nnope: 1\nwait: 5\n", "small=0", "real=x")
    assert [code for code, _, _ in found] == [
        "invalid-value",
        "invalid-value",
        "conflicting-options",
        "unknown-key",
        "invalid-value",
        "invalid-value",
        "invalid-value",
    ]


def test_a_check_is_silent_about_what_is_broken_anyway() -> None:
    assert [code for code, _, _ in refusals("bounds: {low: x, high: -5}")] == ["invalid-value"]


def test_origins_say_where_every_value_was_written() -> None:
    loaded = load_config(Config, "whole: 1\npoints:\n  a: 3\n", source="c.yaml", overrides=["bounds.high=5"])
    assert loaded.origins["whole"] == SourcePlace("c.yaml", 1, 8, "whole: 1")
    assert loaded.origins["points.a.x"] == SourcePlace("c.yaml", 3, 6, "a: 3")
    assert loaded.origins["bounds.high"] == SourcePlace("command line", excerpt="bounds.high=5")
    assert "text" not in loaded.origins


def test_control_characters_never_reach_the_terminal() -> None:
    with pytest.raises(SpecError) as caught:
        read('"\\e[31mred": 1\nwhole: "\\e[0m"\n')
    assert "\x1b" not in caught.value.render()
    assert "unknown key `\\x1b[31mred` at the top level" in caught.value.render()


def test_python_data_is_checked_like_a_file() -> None:
    assert from_data(Config, {"whole": 2, "words": ("a",), "color": Color.BLUE}) == Config(
        whole=2, words=("a",), color=Color.BLUE
    )
    with pytest.raises(SpecError) as caught:
        from_data(Config, {"bounds": {"low": "x"}})
    assert caught.value.render() == (
        "error: `bounds.low` must be a whole number, not the text `x`  [invalid-value]\n  <python>   bounds.low = 'x'"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"free": {"a": object}}, "free.a: a type cannot be written to a file"),
        ({"free": {1: 2}}, "free: the key 1 is not text"),
        ({"text": "\udcff"}, "text: '\\udcff' is not Unicode text"),
        ({"whole": 10**1001}, "whole: a number of more than 1000 digits is too long"),
        ([1], "the file must be a mapping, not a list"),
    ],
)
def test_python_data_that_no_file_could_hold_is_refused(data: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_data(Config, data)
    assert caught.value.message == message


def test_python_data_that_holds_itself_is_refused() -> None:
    data: dict[str, Any] = {}
    data["free"] = data
    with pytest.raises(SpecError, match="nested more than 64 levels deep"):
        from_data(Config, data)


def test_a_dataclass_that_cannot_be_read_is_a_programming_error() -> None:
    @dataclass(frozen=True)
    class Odd:
        thing: complex = 0j

    with pytest.raises(TypeError, match=r"Odd\.thing: complex cannot be written to a file"):
        load_config(Odd, "thing: 1", source="c.yaml")


def test_an_ambiguous_union_of_dataclasses_is_a_programming_error() -> None:
    @dataclass(frozen=True)
    class Odd:
        thing: Bounds | Point = Bounds()

    with pytest.raises(TypeError, match="needs a field `kind`"):
        load_config(Odd, "", source="c.yaml")


def test_a_refusal_of_the_constructor_gets_its_place() -> None:
    @dataclass(frozen=True)
    class Even:
        number: Annotated[int, Doc("Even."), Range(min=0)]

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError("the number is odd")

    with pytest.raises(SpecError) as caught:
        load_config(Even, "number: 3\n", source="c.yaml")
    assert str(caught.value.problems[0]).splitlines()[0].startswith("error: the file: the number is odd")
    assert [field.name for field in dataclasses.fields(Even)] == ["number"]
