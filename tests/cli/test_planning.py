from __future__ import annotations

import click
import pytest

from windlass.cli.completion.files import complete_experiment, experiment_keys
from windlass.cli.one_command import experiment_of, name_of
from windlass.cli.verbs.run.launch import launch_command
from windlass.core.errors import SpecError, UsageError


def parsed(*arguments: str) -> tuple[str | None, tuple[str, ...], object]:
    """(FILE, overrides, command behind `--`) of a launch."""
    context = launch_command.make_context("launch", list(arguments))
    return context.params["file"], context.params["overrides"], context.meta.get("windlass.command")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["e.yaml"], ("e.yaml", (), None)),
        (["e.yaml", "a.b=1", "-d", "--params.lr=2"], ("e.yaml", ("a.b=1", "--params.lr=2"), None)),
        (["--params.lr=2", "e.yaml"], ("e.yaml", ("--params.lr=2",), None)),
        (
            ["e.yaml", "~limit.time", "--context.preemptible"],
            ("e.yaml", ("~limit.time", "--context.preemptible"), None),
        ),
        (["--why=x", "e.yaml", "--on", "local"], ("e.yaml", ("--why=x",), None)),
        (["--", "python", "-d", "--json"], (None, (), ("python", "-d", "--json"))),
        (["--gpus", "1", "limit.time=1h", "--", "true"], (None, ("limit.time=1h",), ("true",))),
        (["--", "a", "--", "b"], (None, (), ("a", "--", "b"))),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_words_of_a_launch(arguments: list[str], expected: tuple[object, ...]) -> None:
    assert parsed(*arguments) == expected


@pytest.mark.parametrize(
    ("option", "near"),
    [("--snapsht", "--snapshot"), ("--parms.lr=1", "--params"), ("-x", ""), ("--task.train=1", "--tasks")],
)
def test_a_mistyped_option_is_no_override(option: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed("e.yaml", option)
    assert caught.value.message == f"`launch` has no option `{option.partition('=')[0]}`"
    assert caught.value.hint == (f"did you mean `{near}`?" if near else "run `launch --help` for its options")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train"),
        (["python3.11", "-u", "src/eval_loop.py", "--x"], "eval_loop"),
        (["./run.sh"], "run"),
        (["sh", "-c", "echo hi; exit 3"], "echo"),
        (["python", "-c", "print(1)"], "command"),
        (["python train.py && true"], "train"),
        (["torchrun", "--nproc-per-node=2", "Train.py"], "train"),
        (["A=1"], "command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_names_of_commands(command: list[str], name: str) -> None:
    assert name_of(tuple(command)) == name


def test_a_command_is_an_experiment_of_one_task() -> None:
    made = experiment_of(("python", "a b.py"), ("limit.time=1h",), name="", gpus="2 x gh200", nodes=3, env_uv="proj")
    task = made.tasks["main"]
    assert (list(task.run), task.nodes) == (["python", "a b.py"], 3)
    assert task.gpus is not None
    assert (task.gpus.count, task.gpus.type) == (2, "gh200")
    assert (made.name, made.env.uv, made.limit.time) == ("a", "proj", 3600.0)


def test_one_word_with_spaces_is_a_shell_line() -> None:
    made = experiment_of(("echo a | wc -l",), (), name="count", gpus="", nodes=None, env_uv="")
    assert made.tasks["main"].run == "echo a | wc -l"
    assert made.name == "count"


def test_what_a_command_cannot_be() -> None:
    with pytest.raises(UsageError, match="invalid name `Bad Name`"):
        experiment_of(("true",), (), name="Bad Name", gpus="", nodes=None, env_uv="")
    with pytest.raises(SpecError) as caught:
        experiment_of(("true",), ("tasks.main.nodez=2",), name="", gpus="", nodes=None, env_uv="")
    assert caught.value.message == "unknown key `nodez` in tasks.main"
    with pytest.raises(SpecError):
        experiment_of(("true",), (), name="", gpus="many", nodes=None, env_uv="")


def test_keys_and_paths_complete() -> None:
    assert {"name", "params", "tasks", "run"} <= set(experiment_keys())
    context = click.Context(launch_command)
    found = complete_experiment(context, launch_command.params[1], "tasks.NAME.no")
    assert found == ["tasks.NAME.nodes="]
    assert complete_experiment(context, launch_command.params[1], "--limit.ti") == ["--limit.time="]
