from __future__ import annotations

import inspect
from collections.abc import Mapping

import click
import pytest

from tests.cli.conftest import Windlass
from windlass.cli.catalogue import SECTIONS
from windlass.cli.program import windlass as program

ENTRIES = [entry for entries in SECTIONS.values() for entry in entries]


def command(name: str) -> click.Command:
    found = program.get_command(click.Context(program), name)
    assert found is not None
    return found


def leaves(name: str, found: click.Command) -> list[tuple[str, click.Command]]:
    own = [] if isinstance(found, click.Group) else [(name, found)]
    return own + [leaf for key, member in members(found).items() for leaf in leaves(f"{name} {key}", member)]


def members(found: click.Command) -> Mapping[str, click.Command]:
    """The verbs below a group, or in place of a verb's first argument."""
    return found.commands if isinstance(found, click.Group) else getattr(found, "members", {})


LEAVES = [leaf for entry in ENTRIES for leaf in leaves(entry.name, command(entry.name))]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_verb_of_the_table_exists_under_its_name(entry: object) -> None:
    name = getattr(entry, "name")  # noqa: B009
    assert command(name).name == name


@pytest.mark.parametrize(("name", "verb"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_help_page_has_an_example_that_names_the_verb(name: str, verb: click.Command, windlass: Windlass) -> None:
    result = windlass(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    examples = result.out.partition("Examples:\n")[2]
    assert f"windlass {name}" in examples
    assert "-v, --verbose" in result.out


@pytest.mark.parametrize(("name", "verb"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_verb_and_option_says_what_it_does(name: str, verb: click.Command) -> None:
    assert inspect.getdoc(verb.callback)
    options = [param for param in verb.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


READING = (
    "ps",
    "show",
    "logs",
    "plan",
    "diff",
    "verify",
    "doctor",
    "explain",
    "gc",
    "secret ls",
    "site ls",
    "site show",
    "train",
    "train samples",
    "ckpt ls",
    "ckpt verify",
    "ckpt diff",
    "ckpt compare-loss",
)


@pytest.mark.parametrize("name", READING)
def test_every_reading_verb_has_json(name: str) -> None:
    found = dict(LEAVES)[name]
    assert "--json" in [option for param in found.params for option in param.opts]


def test_help_lists_every_verb_with_its_line(windlass: Windlass) -> None:
    lines = windlass("--help").out.splitlines()
    for entry in ENTRIES:
        assert any(line.split(None, 1) == [entry.name, entry.summary] for line in lines), entry.name


def test_without_a_verb_the_help_page_is_the_answer(windlass: Windlass) -> None:
    assert windlass() == windlass("--help")
    assert windlass("secret").out == windlass("secret", "--help").out


def test_a_word_that_is_no_verb_is_answered_with_the_nearest(windlass: Windlass) -> None:
    result = windlass("lauch", "experiment.yaml")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "error: unknown command `lauch`                                [unknown-command]\nhint: did you mean `windlass launch`?\n"
        "more: windlass explain unknown-command\n"
    )


def test_a_file_without_a_verb_is_recognised(windlass: Windlass) -> None:
    assert "hint: did you mean `windlass launch experiment.yaml`?" in windlass("experiment.yaml").err


def test_a_word_like_nothing_leads_to_the_list(windlass: Windlass) -> None:
    assert "hint: run `windlass --help` for a list" in windlass("zzz").err
    assert "hint: did you mean `windlass secret ls`?" in windlass("secret", "lst").err
