from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from tests.config.shapes import Bounds, Config, Point, Sgd
from windlass.config.loading import load_config
from windlass.config.override import parse_override
from windlass.config.path import join_path, split_path
from windlass.core.errors import SpecError


def read(text: str, *overrides: str) -> Config:
    return load_config(Config, text, source="c.yaml", overrides=overrides).value


def refusal(text: str, *overrides: str) -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        read(text, *overrides)
    problems = caught.value.problems
    assert len(problems) == 1
    assert problems[0].place is not None
    assert problems[0].place.source == "command line"
    return problems[0].message, problems[0].hint


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("a.b=1", "a.b", 1),
        ("--a.b=1", "a.b", 1),
        ("--a.b", "a.b", True),
        ("~a.b", "a.b", None),
        ("a=", "a", None),
        ("a=null", "a", None),
        ("a=x=y", "a", "x=y"),
        ("a= 1 ", "a", 1),
        ("a=[1, x]", "a", [1, "x"]),
        ("a={b: 1e-6}", "a", {"b": 1e-6}),
        ("a='1'", "a", "1"),
        ('a="x # y"', "a", "x # y"),
        ("a=x # y: z", "a", "x # y: z"),
        ("a=*.py", "a", "*.py"),
        ("a=- b", "a", "- b"),
        ("a=24:00:00", "a", "24:00:00"),
        ('a."b.c".d=1', 'a."b.c".d', 1),
        ("a.'b.c'=1", 'a."b.c"', 1),
        ('a."x=y"=1', 'a."x=y"', 1),
    ],
)
def test_an_override_is_parsed(text: str, path: str, value: object) -> None:
    found = parse_override(text)
    assert found == (path, value)
    assert type(found[1]) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "=1",
        "a..b=1",
        ".a=1",
        "a.=1",
        "--",
        "--=1",
        "~",
        "~a=1",
        '"a=1',
        "a=[1",
        "a='x' y",
        "a=1e999",
        "a=\udcff",
    ],
)
def test_what_is_no_override_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_override(text)
    assert caught.value.code in ("invalid-override", "invalid-value")
    assert caught.value.hint


@pytest.mark.parametrize(
    "parts", [("a", "b"), ("a.b",), ("a b", ""), ("x=y", '"'), ("~a",), ("--a",), ("\n", "\u2028", "'"), ("\\",)]
)
def test_paths_are_joined_and_split(parts: tuple[str, ...]) -> None:
    assert split_path(join_path(parts)) == parts


def test_later_overrides_win_and_the_file_keeps_the_rest() -> None:
    assert read("whole: 1\ntext: a\n", "whole=2", "whole=3") == Config(whole=3, text="a")


def test_a_missing_mapping_is_made_on_the_way() -> None:
    assert read("", "maybe_bounds.high=20", "points.a.x=1", "free.a.b=2") == Config(
        maybe_bounds=Bounds(high=20), points={"a": Point(x=1)}, free={"a": {"b": 2}}
    )
    assert read("maybe_bounds: null\n", "maybe_bounds.high=20").maybe_bounds == Bounds(high=20)


def test_a_short_form_is_opened_for_one_of_its_fields() -> None:
    assert read("points: {a: '3,4'}\n", "points.a.x=7").points == {"a": Point(x=7, y=4)}
    assert read("one_or_many: a\n", "one_or_many.1=b").one_or_many == ("a", "b")
    assert read("path_of_points: 3\n", "path_of_points.0.y=4").path_of_points == (Point(x=3, y=4),)


def test_a_shorthand_key_can_be_overridden_and_refined() -> None:
    assert read("origin: 3\n", "points.origin.y=4").points == {"origin": Point(x=3, y=4)}
    assert read("origin: 3\n", "origin=5").points == {"origin": Point(x=5)}
    assert read("", "origin=5").points == {"origin": Point(x=5)}
    assert read("points: {origin: 3}\n", "origin.y=1").points == {"origin": Point(x=3, y=1)}
    message, hint = refusal("points: {a: 3}\n", "origin=5")
    assert message == "`origin` cannot be set: the file has `points.a`"
    assert hint == "`origin` is short for `points.origin`"


def test_list_positions_are_set_appended_and_removed() -> None:
    assert read("words: [a, b]\n", "words.0=x", "words.2=c").words == ("x", "b", "c")
    assert read("words: [a, b]\n", "~words.0").words == ("b",)
    assert read("", "words.0=x").words == ("x",)
    assert refusal("words: [a]\n", "words.5=x") == ("`5` is not a position in `words`", "`words` has positions 0 to 1")
    assert refusal("words: [a]\n", "words.x=x")[0] == "`x` is not a position in `words`"
    assert refusal("words: [a]\n", "~words.1")[0] == "`words.1` is not set, so it cannot be removed"


def test_keys_are_removed() -> None:
    assert read("whole: 1\ntext: a\n", "~whole") == Config(text="a")
    assert refusal("whole: 1\n", "~wohle") == ("`wohle` is not set, so it cannot be removed", "did you mean `~whole`?")
    assert refusal("", "~bounds.low")[0] == "`bounds.low` is not set, so it cannot be removed"


def test_null_clears_an_optional() -> None:
    assert read("maybe: 3\n", "maybe=null").maybe is None


def test_a_bare_option_is_true_and_says_so_elsewhere() -> None:
    assert read("", "--flag").flag is True
    assert refusal("", "--whole") == ("`whole` must be a whole number, not `true`", "write `--whole=VALUE`")


def test_a_whole_mapping_can_be_set() -> None:
    assert read("optimizer: {kind: adam}\n", "optimizer={kind: sgd, momentum: 0.5}").optimizer == Sgd(momentum=0.5)


def test_a_tagged_union_is_refined_by_its_kind() -> None:
    assert read("optimizer: {kind: sgd, momentum: 0.5}\n", "optimizer.momentum=1").optimizer == Sgd(momentum=1.0)


def test_unknown_keys_name_the_nearest() -> None:
    assert refusal("", "bounds.hihg=1") == ("unknown key `hihg` in bounds", "did you mean `high`?")
    assert refusal("", "bonds.high=1") == ("unknown key `bonds` at the top level", "did you mean `bounds`?")


def test_a_scalar_has_no_keys() -> None:
    assert refusal("text: a\n", "text.x=1") == (
        "`text.x` cannot be set: `text` is the text `a`",
        "`text` takes text: write `text=VALUE`",
    )


def test_an_entry_with_a_misspelt_name_names_the_one_that_was_meant() -> None:
    assert refusal("points: {center: 1}\n", "points.cetner.y=1") == (
        "missing key `x` in points.cetner",
        "did you mean `points.center`?",
    )


def test_all_overrides_are_refused_at_once_and_after_the_file() -> None:
    with pytest.raises(SpecError) as caught:
        read("whole: x\n", "nope=1", "small=99", "b")
    assert [problem.code for problem in caught.value.problems] == [
        "invalid-value",
        "invalid-override",
        "unknown-key",
        "invalid-value",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A place with alternatives."""

    ALTERNATIVES: ClassVar[tuple[str, ...]] = ("path", "url")

    path: str = ""
    url: str = ""
    note: str = ""


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["url=u"], Source(url="u", note="n")),
        (["note=m"], Source(path="p", note="m")),
        (["url=u", "path=q"], Source(path="q", url="u", note="n")),
        (["~path"], Source(note="n")),
    ],
)
def test_an_override_replaces_the_alternatives_that_the_file_sets(overrides: list[str], expected: Source) -> None:
    assert load_config(Source, "path: p\nnote: n\n", source="f", overrides=overrides).value == expected
