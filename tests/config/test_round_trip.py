from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.config.shapes import Adam, Bounds, Color, Config, Node, Point, Sgd
from windlass.config.difference import diff
from windlass.config.document import text_of
from windlass.config.emit import to_yaml, yaml_of_data
from windlass.config.encode import to_data
from windlass.config.loading import from_data, load_config
from windlass.config.path import join_path
from windlass.core.errors import Problem, SpecError

TEXT = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.sampled_from(["", "no", "1e-6", "0o17", "null", "~", "- a", "a: b", "a #b", "<<", "=", "*a", "&a", "!a", "a\nb\n", " a", "a ", "a\n b\n\n", "\t", "---", "...", "${x.y}", "'", '"', "\\", "\u2028", "\x85", "\ufeff", "24:00:00", "{a}", "[a]", "a,b", "x" * 1100]),
)  # fmt: skip
FINITE = st.floats(allow_nan=False)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**30), 10**30), FINITE, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
DURATIONS = st.integers(0, 10**12).map(lambda milliseconds: milliseconds / 1000)
SIZES = st.one_of(st.integers(1, 2**53), st.integers(1, 2**13).map(lambda count: count << 40))
POINTS = st.builds(Point, x=st.integers(0, 99), y=st.integers(-5, 99))
BOUNDS = st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(lambda pair: Bounds(low=min(pair), high=max(pair)))


def flow(value: object) -> str:
    """A value in one line, quoted throughout."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"? {flow(key)} : {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"'
    assert value is None or isinstance(value, bool | int | float)
    return text_of(value)


CONFIGS = st.builds(
    Config,
    text=TEXT,
    whole=st.integers(-(10**40), 10**40),
    small=st.integers(1, 9),
    real=FINITE,
    ratio=st.floats(0, 1, exclude_min=True),
    flag=st.booleans(),
    maybe=st.none() | st.integers(),
    maybe_text=st.none() | TEXT,
    maybe_bounds=st.none() | BOUNDS,
    level=st.sampled_from(["low", "high", 3, True]),
    color=st.sampled_from(Color),
    path=st.sampled_from([Path(), Path("a b"), Path("/x/1e3"), Path("7")]),
    wait=DURATIONS,
    maybe_wait=st.none() | DURATIONS,
    memory=SIZES,
    name=st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?", fullmatch=True),
    version=st.from_regex(r"v[0-9]+", fullmatch=True),
    class_=TEXT,
    words=st.lists(TEXT, max_size=4).map(tuple),
    one_or_many=st.lists(TEXT, max_size=3).map(tuple),
    grid=st.lists(st.lists(st.integers(), max_size=3).map(tuple), max_size=3).map(tuple),
    listed=st.lists(st.integers(), max_size=3),
    environment=st.dictionaries(TEXT, TEXT, max_size=3),
    points=st.dictionaries(TEXT, POINTS, max_size=3),
    path_of_points=st.lists(POINTS, max_size=3).map(tuple),
    number=st.one_of(st.integers(), FINITE),
    command=st.one_of(TEXT, st.lists(TEXT, max_size=3).map(tuple)),
    optimizer=st.one_of(
        st.builds(Adam, beta=FINITE),
        st.builds(Sgd, momentum=st.floats(0, 1), kind=st.sampled_from(["sgd", "plain"])),
    ),
    bounds=BOUNDS,
    tree=st.builds(Node, label=TEXT, children=st.lists(st.builds(Node, label=TEXT), max_size=2).map(tuple)),
    free=st.dictionaries(TEXT, JSON, max_size=3),
)


@given(CONFIGS)
@settings(max_examples=150, deadline=None)
def test_a_value_survives_yaml(config: Config) -> None:
    text = to_yaml(config)
    found = load_config(Config, text, source="c.yaml").value
    assert found == config
    assert repr(found) == repr(config)
    assert to_yaml(found) == text


@given(CONFIGS)
@settings(max_examples=80, deadline=None)
def test_a_value_survives_plain_data_and_json(config: Config) -> None:
    assert from_data(Config, to_data(config)) == config
    assert from_data(Config, to_data(config, keep_defaults=True)) == config
    assert from_data(Config, json.loads(json.dumps(to_data(config)))) == config
    assert to_data(Config()) == {}


@given(CONFIGS, st.booleans())
@settings(max_examples=40, deadline=None)
def test_overrides_equal_editing_the_file(config: Config, is_option: bool) -> None:
    data = to_data(config)
    overrides = [f"{'--' if is_option else ''}{join_path((key,))}={flow(value)}" for key, value in data.items()]
    assert load_config(Config, "", source="c.yaml", overrides=overrides).value == config
    assert (
        load_config(
            Config,
            to_yaml(Config(text="other", small=5)),
            source="c.yaml",
            overrides=["~small", "text=default", *overrides],
        ).value
        == config
    )


@given(CONFIGS, CONFIGS)
@settings(max_examples=40, deadline=None)
def test_differences_are_none_to_oneself_and_mirror_each_other(first: Config, second: Config) -> None:
    assert diff(first, first) == []
    forth, back = diff(first, second), diff(second, first)
    assert {(change.path, repr(change.before), repr(change.after)) for change in forth} == {
        (change.path, repr(change.after), repr(change.before)) for change in back
    }
    assert (forth == []) == (repr(first) == repr(second))


@given(st.one_of(st.text(max_size=200), st.text("ab:-[]{}&*!|>'\"#%@`,? \n\t.<0e", max_size=60)))
@example("? ? ? a")
@example("a: &b *b")
@example("%TAG ! x\n---\n!a b")
@example("\ufeff")
@example("- |9\n a")
@settings(max_examples=400, deadline=None)
def test_no_text_raises_anything_but_a_spec_error(text: str) -> None:
    problems: Sequence[Problem] = ()
    try:
        load_config(Config, text, source="c.yaml")
    except SpecError as error:
        problems = error.problems
    assert all(problem.message and problem.code and problem.place is not None for problem in problems)


@given(st.lists(st.one_of(st.text(max_size=30), st.text("abpoints.=~-\"'[]{}0123 ", max_size=20)), max_size=3))
@settings(max_examples=300, deadline=None)
def test_no_override_raises_anything_but_a_spec_error(overrides: list[str]) -> None:
    problems: Sequence[Problem] = ()
    try:
        load_config(Config, "origin: 3\nwords: [a]\n", source="c.yaml", overrides=overrides)
    except SpecError as error:
        problems = error.problems
    assert all(problem.message and problem.code and problem.place is not None for problem in problems)


@given(CONFIGS, st.data())
@settings(max_examples=40, deadline=None)
def test_a_mutilated_file_is_refused_or_read_whole(config: Config, data: st.DataObject) -> None:
    text = to_yaml(config)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    try:
        found = load_config(Config, text[:start] + text[end:], source="c.yaml").value
    except SpecError:
        return
    assert load_config(Config, to_yaml(found), source="c.yaml").value == found


@given(st.dictionaries(TEXT, JSON, max_size=4))
@example({"": ["0?"]})
@settings(max_examples=100, deadline=None)
def test_both_parsers_read_the_same(data: dict[str, object]) -> None:
    text = yaml_of_data({"free": data})
    fast = load_config(Config, text, source="c.yaml").value
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(yaml, "CSafeLoader", raising=False)
        assert load_config(Config, text, source="c.yaml").value == fast == Config(free=data)  # type: ignore[arg-type]


def test_yaml_looks_as_a_person_would_write_it() -> None:
    config = Config(
        text="it's 5 o'clock: time to go",
        real=1e-6,
        maybe_bounds=Bounds(high=20),
        color=Color.BLUE,
        wait=5400.0,
        memory=16 << 30,
        class_="no",
        words=("a b", "c,d"),
        one_or_many=("only",),
        environment={"A": "1", "B": "x"},
        points={"a": Point(x=3), "b": Point(x=3, y=-4)},
        command="echo one\necho two\n",
        optimizer=Sgd(momentum=0.5),
        tree=Node(children=(Node(label="leaf"), Node())),
        free={"lr": 1e-06, "deep": {"list": [1, [2, {"a": None}]]}, "empty": {}},
    )
    assert to_yaml(config) == (
        "text: \"it's 5 o'clock: time to go\"\n"
        "real: 1e-6\n"
        "maybe_bounds:\n"
        "  high: 20\n"
        "color: blue\n"
        "wait: 1h30m\n"
        "memory: 16GiB\n"
        'class: "no"\n'
        'words: [a b, "c,d"]\n'
        "one_or_many: only\n"
        "environment:\n"
        '  A: "1"\n'
        "  B: x\n"
        "points:\n"
        "  a: 3\n"
        "  b:\n"
        "    x: 3\n"
        "    y: -4\n"
        "command: |\n"
        "  echo one\n"
        "  echo two\n"
        "optimizer:\n"
        "  momentum: 0.5\n"
        "  kind: sgd\n"
        "tree:\n"
        "  children:\n"
        "    - label: leaf\n"
        "    - {}\n"
        "free:\n"
        "  lr: 1e-6\n"
        "  deep:\n"
        "    list:\n"
        "      - 1\n"
        "      - - 2\n"
        "        - a: null\n"
        "  empty: {}\n"
    )
    assert load_config(Config, to_yaml(config), source="c.yaml").value == config


def test_an_untidy_python_value_is_put_in_order() -> None:
    untidy = dataclasses.replace(Config(), words=["a"], real=1, points={"a": Point(x=1)}, path=Path("x"))  # type: ignore[arg-type]
    assert from_data(Config, to_data(untidy)) == Config(
        words=("a",), real=1.0, points={"a": Point(x=1)}, path=Path("x")
    )


def test_what_cannot_be_written_exactly_is_refused_when_read() -> None:
    for wait in (-1.0, 0.00012345, float("nan"), float("inf")):
        with pytest.raises(SpecError, match="wait"):
            from_data(Config, to_data(dataclasses.replace(Config(), wait=wait)))
    with pytest.raises(SpecError, match="real"):
        from_data(Config, {"real": 10**400})
