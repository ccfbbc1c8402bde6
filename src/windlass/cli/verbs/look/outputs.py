"""`windlass outputs`: what the tasks of a run left, by digest; to bring it and to send it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from windlass.cli.completion.files import complete_folder
from windlass.cli.completion.runs import complete_tasks
from windlass.cli.finding import found_run
from windlass.cli.screen import emit_json, emit_page, table, tell
from windlass.cli.verb import Family, examples_page, json_option, run_argument, verb
from windlass.core.errors import NotFoundError
from windlass.core.phrases import count, size
from windlass.launch.run import Run
from windlass.runs.home import Home

__all__ = ["outputs_command"]


@click.group(
    cls=Family,
    name="outputs",
    epilog=examples_page("windlass outputs ls last", "windlass outputs pull last train --to results"),
)
def outputs_command() -> None:
    """List the outputs of a run with sizes and digests, bring them somewhere, send them away."""


@verb("windlass outputs ls last", "windlass outputs ls hello-7hq2mx4p train --json", name="ls")
@run_argument()
@click.argument("task", required=False, shell_complete=complete_tasks)
@json_option
def ls_command(run: str, task: str | None, is_json: bool) -> None:
    """List the files of a run's outputs as recorded when the task succeeded; of other tasks, as they are now."""
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


@verb("windlass outputs pull last", "windlass outputs pull last train --to results", name="pull")
@run_argument()
@click.argument("task", required=False, shell_complete=complete_tasks)
@click.option("--to", type=click.Path(path_type=Path), help="The folder that gets TASK/...; default: RUN here.")
@click.option("--link", is_flag=True, help="Hard links instead of copies; never edit such files.")
@json_option
def pull_command(run: str, task: str | None, to: Path | None, link: bool, is_json: bool) -> None:
    """Bring outputs to a folder, every byte checked; called again it goes on where it stopped. Print the folders."""
    found = _found(run)
    target = to or Path(found.id)
    places = {}
    for name in _tasks(found, task):
        places[name] = str(found.pull_output(name, target, link=link))
    _tell_places(found, places, is_json)


@verb("windlass outputs push last s3://bucket/results", "windlass outputs push last /archive --task train", name="push")
@run_argument()
@click.argument("to", shell_complete=complete_folder)
@click.option("--task", "-t", default=None, shell_complete=complete_tasks, help="Only the output of this task.")
@json_option
def push_command(run: str, to: str, task: str | None, is_json: bool) -> None:
    """Copy outputs to a folder or a URL (`s3://`, `gs://`, ...), as TO/RUN/TASK; the manifest of each goes last."""
    found = _found(run)
    places = {name: found.push_output(name, f"{to.rstrip('/')}/{found.id}") for name in _tasks(found, task)}
    _tell_places(found, places, is_json)


def _found(run: str) -> Run:
    home = Home.default()
    return Run(found_run(run, home), home)


def _tasks(run: Run, task: str | None) -> Iterator[str]:
    """The task that was named, else all that have an output."""
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


for _member in (ls_command, pull_command, push_command):
    outputs_command.add_command(_member)
