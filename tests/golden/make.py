"""How each golden file is made: one function a file, from a stage to text."""

from __future__ import annotations

import json
import os
import re
import shlex
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from tests.compat.gantry.conftest import make_pushed
from tests.golden.experiments import CONVERSIONS, PLANS, RENDERS, RUNS
from tests.golden.stage import Stage, compact, to_yaml
from windlass.cli.program import windlass
from windlass.record.frames import Record
from windlass.record.journal import read_journal

__all__ = ["FOLDER", "GOLDEN"]

FOLDER = Path(__file__).parent / "files"
_TIMEOUT_S = 120.0
_TIMING = ("task-queued",)
"""Kinds of records that come or not, as processes happen to start."""
_ENDED = ("succeeded", "failed", "stopped")


def plans(stage: Stage) -> str:
    """`plan --json` of every case; the first one whole, the others without what is empty. A refusal is its message."""
    found: dict[str, Any] = {}
    for case, line in PLANS.items():
        code, out, err = stage.call("plan", "--json", *shlex.split(line))
        plan = (
            stage.normal.data(json.loads(out)) if code == 0 else {"exit code": code, "message": stage.normal.text(err)}
        )
        found[case] = compact(plan) if found else plan
    return to_yaml(found)


def renders(stage: Stage) -> str:
    """`plan --render`: the command line and the files of every job, per backend."""
    found = {}
    for case, line in RENDERS.items():
        printed = stage.normal.text(stage.output("plan", "--render", *shlex.split(line)))
        found[case] = compact(json.loads(printed)) if printed.startswith("{") else printed
    return to_yaml(found)


def helps(stage: Stage) -> str:
    """`--help` of the program, of every verb and of every command below one."""
    pages = [f"$ windlass {' '.join(path)} --help\n\n{stage.output(*path, '--help')}" for path in _commands()]
    return ("\n" + "-" * 100 + "\n").join(stage.normal.text(page.replace("  --help", " --help", 1)) for page in pages)


def _commands() -> Iterator[tuple[str, ...]]:
    def below(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                member = command.get_command(context, name)
                assert member is not None
                yield from below(member, (*path, name))
        for name, member in getattr(command, "members", {}).items():
            yield from below(member, (*path, name))

    yield from below(windlass, ())


def journals(stage: Stage) -> str:
    """Every record of a dozen runs on this machine, by writer, with the values that do not differ between two runs."""
    runs = _run_all(stage)
    found = {}
    for name, run in runs.items():
        records = read_journal(stage.root / "home" / "runs" / run / "journal")
        writers = sorted({record.writer for record in records}, key=_writer)
        found[name] = {
            _writer(writer): [
                _line(stage, record) for record in records if record.writer == writer and record.kind not in _TIMING
            ]
            for writer in writers
        }
    return to_yaml(found)


def _writer(name: str) -> str:
    return re.sub(r"(client|\.report)-[^.]*", r"\1", name)


def _line(stage: Stage, record: Record) -> dict[str, Any]:
    data = stage.normal.data(record.data)
    if record.kind == "outputs" and data["task"].startswith("data."):
        data["bytes"] = "<bytes>"  # a build's record names its folder
    return {record.kind: data}


def _run_all(stage: Stage) -> dict[str, str]:
    """Launch all of `RUNS` at once and wait for their ends; experiment -> run."""
    runs = {name: stage.data("launch", "-d", "--json", f"{name}.yaml")["run"] for name in RUNS}
    _wait(lambda: any((stage.root / "home" / "runs" / runs["stopped"] / "out").rglob("started")), "a start")
    stage.output("stop", runs["stopped"], "--reason", "enough")
    for name, run in runs.items():
        state = _end_of(stage, run)
        assert state == RUNS[name], f"{name}: {state}"
    return runs


def _end_of(stage: Stage, run: str) -> str:
    def state() -> str:
        return str(stage.data("show", run, "--json")["state"])

    _wait(lambda: state() in _ENDED, f"the end of {run}")
    return state()


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.1)


def exports(stage: Stage) -> str:
    """What a finished run is told and carried away as: `--json` of the verbs that look, and the members of its archive."""
    run = stage.data("launch", "--json", "report.yaml")["run"]
    archive = stage.root / "run.tar.gz"
    looks = {
        "ps": ["ps"],
        "show": ["show", run],
        "show --provenance": ["show", run, "--provenance"],
        "outputs ls": ["outputs", "ls", run],
        "archive export": ["archive", "export", run, "--checkpoints", "-o", str(archive)],
        "diff": ["diff", run, run],
    }
    found: dict[str, Any] = {name: stage.normal.data(stage.data(*words, "--json")) for name, words in looks.items()}
    found["archive export"].update(bytes="<bytes>", files="<files>")
    with tarfile.open(archive) as opened:
        kept = [member for member in opened.getmembers() if "/run/code/" not in member.name]
        members = {_writer(stage.normal.text(member.name)): _shape(opened, member) for member in kept}
    return to_yaml({**found, "members of the archive": members})


def _shape(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
    """The keys of a JSON file, else the kind of a member."""
    content = archive.extractfile(member) if member.isfile() else None
    if content is None:
        return "folder" if member.isdir() else "link"
    if not member.name.endswith((".json", ".jsonld")):
        return "file"
    data = json.load(content)
    return sorted(data) if isinstance(data, dict) else f"list of {len(data)}"


def conversions(stage: Stage) -> str:
    """Launches of mason and gantry, and specs of Beaker, as experiment files; experiment files as specs of Beaker."""
    make_pushed(stage.root)  # a repository whose remote is called GitHub's, as gantry wants it
    found = []
    for line in CONVERSIONS:
        os.chdir(stage.root / ("project" if line.startswith("gantry") else "code"))
        code, out, err = stage.call(*shlex.split(line))
        printed = {"command": f"windlass {line}", "exit code": code, "output": out, "notes": err}
        found.append({key: stage.normal.data(value) for key, value in printed.items() if value})
    return to_yaml(found)


GOLDEN = {
    "plans.yaml": plans,
    "renders.yaml": renders,
    "help.txt": helps,
    "journals.yaml": journals,
    "exports.yaml": exports,
    "conversions.yaml": conversions,
}
"""File -> how it is made."""
