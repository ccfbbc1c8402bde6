from __future__ import annotations

import math

import pytest
import yaml

from windlass.config.document import Node, data_of_node
from windlass.config.yaml_reader.parser import compose, decode_text
from windlass.config.yaml_reader.scalars import resolve_scalar
from windlass.core.errors import SourcePlace, SpecError


@pytest.fixture(params=["libyaml", "pure"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of this file runs on both parsers of PyYAML."""
    if request.param == "pure":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    else:
        assert hasattr(yaml, "CSafeLoader")


def read(text: str) -> Node:
    node, problems = compose(text, source="a.yaml")
    assert problems == []
    assert node is not None
    return node


def said(text: str) -> list[str]:
    _, problems = compose(text, source="a.yaml")
    return [f"{problem.place}: {problem.message} [{problem.code}]" for problem in problems]


_SCALARS: list[tuple[str, object]] = [
    ("1e-6", 1e-6),
    ("1.5", 1.5),
    (".5", 0.5),
    ("5.", 5.0),
    ("+12", 12),
    ("-0", 0),
    ("0123", 123),
    ("0o17", 15),
    ("0x1f", 31),
    (".inf", math.inf),
    ("-.INF", -math.inf),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("yes", "yes"),
    ("no", "no"),
    ("on", "on"),
    ("24:00:00", "24:00:00"),
    ("1_000", "1_000"),
    ("0b11", "0b11"),
    ("-0o17", "-0o17"),
    ("tRue", "tRue"),
    ("1e", "1e"),
    (".", "."),
    ("-", "-"),
    ("1.2.3", "1.2.3"),
    ("2026-11-21", "2026-11-21"),
    ("\u0663", "\u0663"),
]


def test_plain_scalars_follow_the_core_schema() -> None:
    for text, value in _SCALARS:
        read = resolve_scalar(text)
        assert (read, type(read)) == (value, type(value)), text


def test_nan_is_a_number() -> None:
    assert math.isnan(resolve_scalar(".nan"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1e999", "9" * 5000, "0x" + "f" * 5000])
def test_numbers_that_nothing_can_hold_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="too l"):
        resolve_scalar(text)


def test_a_file_becomes_data() -> None:
    node = read(
        'a: 1\nb: [x, "2", 0x10]\nc: {d: null, "e f": |\n   one\n   two\n  }\n'.replace("|\n   one\n   two\n  ", "yes")
    )
    assert data_of_node(node) == {"a": 1, "b": ["x", "2", 16], "c": {"d": None, "e f": "yes"}}


def test_block_text_and_folding() -> None:
    assert data_of_node(read("a: >-\n  one\n  two\nb: |\n  one\n  two\n")) == {"a": "one two", "b": "one\ntwo\n"}


def test_anchors_and_aliases_share_a_value() -> None:
    assert data_of_node(read("a: &x {b: 1}\nc: *x\n")) == {"a": {"b": 1}, "c": {"b": 1}}


def test_core_tags_are_understood() -> None:
    assert data_of_node(read("a: !!str 1\nb: !!float 1\nc: ! true\nd: !!map {}\n")) == {
        "a": "1",
        "b": 1,
        "c": "true",
        "d": {},
    }


def test_keys_are_text_as_written() -> None:
    assert data_of_node(read("1: a\ntrue: b\n0x1f: c\n")) == {"1": "a", "true": "b", "0x1f": "c"}


def test_a_byte_order_mark_at_the_beginning_is_legal() -> None:
    assert data_of_node(read("\ufeffa: 1\n")) == {"a": 1}


def test_a_yaml_directive_and_document_marks_are_legal() -> None:
    assert data_of_node(read("%YAML 1.2\n---\na: 1\n...\n")) == {"a": 1}


def test_places_count_from_one_and_show_the_line() -> None:
    node = read("a: 1\nb:\n  - x\n  - {y: 2}\n")
    entries = node.entries  # type: ignore[union-attr]
    assert entries[1].place == SourcePlace("a.yaml", 2, 1, "b:")
    assert entries[1].node.items[1].entries[0].node.place == SourcePlace("a.yaml", 4, 9, "- {y: 2}")  # type: ignore[union-attr]


def test_windows_line_ends_keep_the_places() -> None:
    node = read("a: 1\r\nb: 2\r\n")
    assert node.entries[1].place == SourcePlace("a.yaml", 2, 1, "b: 2")  # type: ignore[union-attr]


def test_a_very_long_line_is_shown_around_the_column() -> None:
    found = said("{" + ", ".join(f"k{index}: 1" for index in range(100)) + ", k5: 2}")[0]
    assert found.startswith("a.yaml:1:")
    assert "k5: 2}" in found
    assert len(found) < 220


_REFUSED: list[tuple[str, str | None]] = [
    ("a: 1\na: 2\n", "a.yaml:2:1   a: 2: duplicate key `a` [yaml-syntax]"),
    ('a: 1\n"a": 2\n', 'a.yaml:2:1   "a": 2: duplicate key `a` [yaml-syntax]'),
    (
        "a: &a {x: 1}\nb: {<<: *a}\n",
        "a.yaml:2:5   b: {<<: *a}: merging with `<<` is not part of YAML 1.2 [yaml-syntax]",
    ),
    ("a:\n\tb: 1\n", "a.yaml:2:1   b: 1: a tab is used for indentation [yaml-syntax]"),
    (
        "a: [1\nb: 2\n",
        "a.yaml:1:4   a: [1: a list `[...]` or a mapping `{...}` is never closed, or lacks a comma [yaml-syntax]",
    ),
    ("a: 'b\n", "a.yaml:1:4   a: 'b: a quote is never closed [yaml-syntax]"),
    ("a: b: c\n", "a.yaml:1:5   a: b: c: unexpected `:`: a key cannot be here [yaml-syntax]"),
    ("a: 1\n b: 2\n", "a.yaml:2:3   b: 2: unexpected `:`: a key cannot be here [yaml-syntax]"),
    ("a: *b\n", "a.yaml:1:4   a: *b: unknown alias `*b` [yaml-syntax]"),
    ("a: 1\n---\nb: 2\n", "a.yaml:2:1   ---: the file contains several documents [yaml-syntax]"),
    ("a: !foo 1\n", "a.yaml:1:4   a: !foo 1: unknown tag `!foo` [yaml-syntax]"),
    ("a: !!int x\n", "a.yaml:1:4   a: !!int x: `x` does not fit its tag `!!int` [yaml-syntax]"),
    ("? [a]\n: 1\n", "a.yaml:1:3   ? [a]: a key must be text, not a list or a mapping [yaml-syntax]"),
    ("~: 1\n", "a.yaml:1:1   ~: 1: a key is missing before `:` [yaml-syntax]"),
    ("a: b\x00\n", "a.yaml:1:5   a: b\x00: the character U+0000 is not allowed in YAML [yaml-syntax]"),
    ("a: \ufeffb\n", "a.yaml:1:4   a: \ufeffb: the character U+FEFF is not allowed in YAML [yaml-syntax]"),
    ('a: "\\ud800"\n', None),
    ("a: `x`\n", "a.yaml:1:4   a: `x`: no value can begin with a backtick [yaml-syntax]"),
    ("a: 1e999\n", "a.yaml:1:4   a: 1e999: the number `1e999` is too large [invalid-value]"),
]


def test_what_is_refused_says_where_and_why() -> None:
    for text, expected in _REFUSED:
        found = said(text)
        assert len(found) == 1, text
        assert expected is None or found == [expected], text


def test_all_problems_of_the_composer_come_together() -> None:
    assert len(said("a: 1\na: 2\nb: !x 1\nc: {<<: 1}\nd: 1e999\n")) == 4


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 20_000, "a: &a [*a]", "? " * 5000])
def test_deep_and_endless_documents_are_refused_without_a_crash(text: str) -> None:
    assert said(text)[0].endswith("[yaml-limits]")


def test_depth_hidden_in_aliases_is_refused() -> None:
    text = "a0: &a0 [1]\n" + "".join(
        f"a{index}: &a{index} [[[[[[[[[[*a{index - 1}]]]]]]]]]]\n" for index in range(1, 10)
    )
    assert "nested more than 64 levels deep" in said(text)[0]


def test_exponential_aliases_are_refused_quickly() -> None:
    text = "a0: &a0 [1, 1]\n" + "".join(
        f"a{index}: &a{index} [*a{index - 1}, *a{index - 1}]\n" for index in range(1, 40)
    )
    assert "expands to more than 200000 values" in said(text)[0]


def test_bytes_that_are_not_utf8_are_named() -> None:
    with pytest.raises(SpecError) as caught:
        decode_text("a: 1\nb: caf\u00e9\n".encode("latin-1"), source="a.yaml")
    assert caught.value.render() == (
        "error: the byte 0xe9 is not UTF-8                             [yaml-syntax]\n"
        "  a.yaml:2:7   b: caf\\xe9\n"
        "hint: save the file as UTF-8"
    )


def test_utf16_is_named() -> None:
    with pytest.raises(SpecError, match="the file is UTF-16, not UTF-8"):
        decode_text("a: 1\n".encode("utf-16"), source="a.yaml")


def test_merging_is_for_files_of_other_programs() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc: {z: 3, <<: [*a, *b], w: 3}\nd: {<<: *b, x: 4}\n"
    node, problems = compose(text, source="a.yaml", merges=True)
    assert problems == []
    assert node is not None
    assert data_of_node(node) == yaml.safe_load(text)
    node, problems = compose("c: {<<: 1}", source="a.yaml", merges=True)
    assert [problem.code for problem in problems] == ["yaml-syntax"]
