"""`windlass outputs`: list, fetch, pull and push the outputs of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from windlass.cli.completion.files import complete_folder
from windlass.cli.completion.runs import complete_tasks
from windlass.cli.finding import found_run
from windlass.cli.screen import emit, emit_json, emit_page, table, tell
from windlass.cli.verb import Family, examples_page, json_option, run_argument, verb
from windlass.core.errors import NotFoundError
from windlass.core.phrases import count, size
from windlass.launcher.run import Run
from windlass.runs.home import Home

__all__ = ["outputs_command"]


@click.group(
    cls=Family,
    name="outputs",
    epilog=examples_page(
        "windlass outputs ls last", "windlass outputs fetch last", "windlass outputs pull last train --to results"
    ),
)
def outputs_command() -> None:
    """List the outputs of a run, download them from a site, or copy them: ls, fetch, pull, push."""


@verb("windlass outputs ls last", "windlass outputs ls hello-7hq2mx4p train --json", name="ls")
@run_argument()
@click.argument("task", required=False, shell_complete=complete_tasks)
@json_option
def ls_command(run: str, task: str | None, is_json: bool) -> None:
    """List output files as recorded when the task succeeded, or as they are now for other tasks."""
    found = _found(run)
    listed = {name: found.list_output(name) for name in _tasks(found, task)}
    if is_json:
        content = {name: {**each.to_data(), "bytes": each.num_bytes} for name, each in listed.items()}
        emit_json("windlass.outputs/1", {"run": found.id, "outputs": content})
        return
    recorded = found.facts.outputs
    for name, manifest in listed.items():
        what = "" if name in recorded else "  not recorded: the task did not succeed"
        files = count(len(manifest.entries), "file")
        emit_page(f"{name}  {files}, {size(manifest.num_bytes)}, sha256:{manifest.digest}{what}")
        rows = [
            (each.path, size(each.size), f"-> {each.link}" if each.link else each.sha256) for each in manifest.entries
        ]
        for line in table(("file", "size", "sha256"), rows, indent="  ") if rows else ():
            emit_page(line)


@verb("windlass outputs fetch last", "windlass outputs fetch hello-7hq2mx4p --task train", name="fetch")
@run_argument()
@click.option("--task", "-t", default=None, shell_complete=complete_tasks, help="Only the outputs of this task.")
@json_option
def fetch_command(run: str, task: str | None, is_json: bool) -> None:
    """Download outputs from an ssh site into the run's folder on this machine, and print the folders.

    Files that were downloaded before are skipped; a local run has nothing to download. `windlass verify` checks the files.
    """
    found = _found(run)
    folders = {}
    for name in [task] if task is not None else list(found.facts.tasks):
        try:
            folders[name] = found.fetch_output(name)
        except NotFoundError as error:
            if task is not None or error.code == "run-gone-at-site":
                raise
            tell(f"note: task {name} has no outputs there")
    if is_json:
        content = {name: str(path) for name, path in folders.items()}
        emit_json("windlass.outputs/1", {"run": found.id, "places": content})
        return
    for name, path in folders.items():
        emit(f"{name}  {path}")


@verb("windlass outputs pull last", "windlass outputs pull last train --to results", name="pull")
@run_argument()
@click.argument("task", required=False, shell_complete=complete_tasks)
@click.option("--to", type=click.Path(path_type=Path), help="Target folder, gets TASK/... [default: ./RUN]")
@click.option("--link", is_flag=True, help="Create hard links instead of copies; never edit such files.")
@json_option
def pull_command(run: str, task: str | None, to: Path | None, link: bool, is_json: bool) -> None:
    """Copy outputs to a folder, verify every byte, and print the folders. A second call resumes."""
    found = _found(run)
    target = to or Path(found.id)
    places = {}
    for name in _tasks(found, task):
        places[name] = str(found.pull_output(name, target, link=link))
    _tell_places(found, places, is_json)


@verb("windlass outputs push last s3://bucket/results", "windlass outputs push last /archive --task train", name="push")
@run_argument()
@click.argument("to", shell_complete=complete_folder)
@click.option("--task", "-t", default=None, shell_complete=complete_tasks, help="Only the outputs of this task.")
@json_option
def push_command(run: str, to: str, task: str | None, is_json: bool) -> None:
    """Copy outputs to a folder or URL (`s3://`, `gs://`, ...) as TO/RUN/TASK, each manifest last."""
    found = _found(run)
    places = {name: found.push_output(name, f"{to.rstrip('/')}/{found.id}") for name in _tasks(found, task)}
    _tell_places(found, places, is_json)


def _found(run: str) -> Run:
    home = Home.default()
    return Run(found_run(run, home), home)


def _tasks(run: Run, task: str | None) -> Iterator[str]:
    """Yield the given task, or all tasks with outputs."""
    if task is not None:
        run.output(task)
        yield task
        return
    for name in run.facts.tasks:
        try:
            run.list_output(name)
        except NotFoundError as error:
            if error.code == "run-gone-at-site":
                raise
            tell(f"note: {error.message}")
        else:
            yield name


def _tell_places(run: Run, places: dict[str, str], is_json: bool) -> None:
    if is_json:
        emit_json("windlass.outputs/1", {"run": run.id, "places": places})
        return
    for name, place in places.items():
        emit_page(f"{name}  {place}")


for _member in (ls_command, fetch_command, pull_command, push_command):
    outputs_command.add_command(_member)
