"""`windlass logs`: the output of a run's processes, by replica or merged by time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial

import click

from windlass.cli.completion.runs import complete_attempts, complete_replicas, complete_tasks
from windlass.cli.exit_codes import EXIT_INTERRUPTED
from windlass.cli.finding import found_run, fresh_logs, reconciled
from windlass.cli.render.log_merge import merged_lines
from windlass.cli.screen import emit, paint, tell, write_raw
from windlass.cli.times import as_moment
from windlass.cli.verb import run_argument, verb
from windlass.core.errors import NotFoundError
from windlass.core.names import nearest
from windlass.record.state import RunFacts
from windlass.runs import logs
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, find

__all__ = ["logs_command"]


def _as_attempt(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse the value of `--attempt`; 0 stands for all attempts."""
    if value is None or value == "all":
        return None if value is None else 0
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"invalid attempt `{value}`: use a number from 1, or `all`", context, parameter)


@verb(
    "windlass logs last",
    "windlass logs last --follow",
    "windlass logs hello-7hq2mx4p --task train --replica 1 --attempt 2",
    "windlass logs last --attempt all --since 10m",
    name="logs",
)
@run_argument()
@click.option("--task", "-t", default=None, shell_complete=complete_tasks, help="Only this task.")
@click.option(
    "--replica",
    "-r",
    "rank",
    type=click.IntRange(min=0),
    shell_complete=complete_replicas,
    help="Only this replica (its rank).",
)
@click.option(
    "--attempt",
    callback=_as_attempt,
    metavar="K|all",
    shell_complete=complete_attempts,
    help="Attempt. Default: each task's newest.",
)
@click.option("--since", metavar="WHEN", callback=as_moment, help="Only lines since then: `10m`, `2026-11-21T05:04`.")
@click.option("--follow", "-f", is_flag=True, help="Follow until the run ends; Ctrl-C detaches.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per line, with a versioned schema.")
def logs_command(
    run: str,
    task: str | None,
    rank: int | None,
    attempt: int | None,
    since: float,
    follow: bool,
    is_json: bool,
) -> int:
    """Print the output of a run's processes.

    The log of a single replica is printed unchanged. Several logs are merged by time, each line prefixed with
    `task.rank | `.
    """
    home = Home.default()
    folder = find(home, run) if follow else found_run(run, home)
    if follow:
        reconciled(folder, home)  # following reconciles the run
    facts = folder.facts()
    _check_choice(folder, facts, task, rank)
    if follow and not facts.state.is_terminal:
        try:
            _follow(folder, home, task=task, rank=rank, attempt=attempt, since=since, is_json=is_json)
        except KeyboardInterrupt:
            tell()
            tell(f"{folder.id} continues: windlass logs {folder.id} --follow | windlass stop {folder.id}")
            return EXIT_INTERRUPTED
        return 0
    fresh_logs(folder, home)
    found = _chosen(logs.list_logs(folder, task=task, rank=rank, attempt=attempt or None), is_newest=attempt is None)
    if not found:
        _say_nothing(folder, facts, attempt)
    elif len(found) == 1 and not is_json:
        only = found[0]
        for piece in logs.read(folder, task=only.task, rank=only.rank, attempt=only.attempt, since=since):
            write_raw(piece)
    else:
        _print_merged(found, since, is_numbered=attempt == 0, is_json=is_json)
    _tell_of_earlier(folder, found, attempt)
    return 0


def _check_choice(run: RunFolder, facts: RunFacts, task: str | None, rank: int | None) -> None:
    if task is not None and facts.tasks and task not in facts.tasks:
        close = nearest(task, facts.tasks)
        hint = f"did you mean `{close}`?" if close else f"its tasks: {', '.join(facts.tasks)}"
        raise NotFoundError(f"run {run.id} has no task `{task}`", hint=hint, code="unknown-task")
    chosen = [facts.tasks[task]] if task in facts.tasks else list(facts.tasks.values())
    if rank is not None and chosen and all(rank >= each.num_replicas for each in chosen):
        most = max(each.num_replicas for each in chosen)
        raise NotFoundError(
            f"run {run.id} has no replica {rank}", hint=f"replicas are 0 to {most - 1}", code="not-found"
        )


def _chosen(found: list[logs.LogFile], *, is_newest: bool) -> list[logs.LogFile]:
    if not is_newest:
        return found
    newest: dict[str, int] = {}
    for log in found:
        newest[log.task] = max(newest.get(log.task, 0), log.attempt)
    return [log for log in found if log.attempt == newest[log.task]]


def _say_nothing(run: RunFolder, facts: RunFacts, attempt: int | None) -> None:
    if attempt and any(attempt in task.attempts for task in facts.tasks.values()):
        tell(f"attempt {attempt} of {run.id} printed nothing")
        return
    if attempt:
        known = sorted({number for task in facts.tasks.values() for number in task.attempts})
        hint = f"its attempts: {', '.join(map(str, known))}" if known else "nothing has been started yet"
        raise NotFoundError(f"run {run.id} has no attempt {attempt}", hint=hint, code="not-found")
    reasons = [f"{name}: {task.reason}" for name, task in facts.tasks.items() if task.reason]
    tell(f"{run.id} has printed nothing yet; it is {facts.state}" + (f" ({reasons[0]})" if reasons else ""))


def _print_merged(found: list[logs.LogFile], since: float, *, is_numbered: bool, is_json: bool) -> None:
    for log, text in merged_lines(found, since):
        line = logs.LogLine(task=log.task, rank=log.rank, attempt=log.attempt, text=text)
        _print_line(line, is_labelled=True, is_numbered=is_numbered, is_json=is_json)


def _print_line(line: logs.LogLine, *, is_labelled: bool, is_numbered: bool = False, is_json: bool = False) -> None:
    if is_json:
        emit(json.dumps({"schema": "windlass.logs/1", **asdict(line)}, ensure_ascii=False))
        return
    label = f"{line.attempt}/" * is_numbered + f"{line.task}.{line.rank} | "
    emit((paint(label, "dim") if is_labelled else "") + line.text)


def _tell_of_earlier(run: RunFolder, found: list[logs.LogFile], attempt: int | None) -> None:
    """Print which attempt is shown, and the command for earlier ones."""
    newest = max((log.attempt for log in found), default=0)
    if attempt is None and newest > 1:
        text = f"-- attempt {newest}; for earlier ones: windlass logs {run.id} --attempt all"
        tell(paint(text, "dim", stream=sys.stderr))


def _follow(
    run: RunFolder,
    home: Home,
    *,
    task: str | None,
    rank: int | None,
    attempt: int | None,
    since: float,
    is_json: bool,
) -> None:
    """Print existing lines, then new ones until the run ends."""
    from windlass.launcher.follow import look_until_end  # lazy: only with --follow

    facts = run.facts()
    first = {name: max(each.attempts, default=1) for name, each in facts.tasks.items()}
    num_replicas = sum(each.num_replicas for name, each in facts.tasks.items() if task in (None, name))
    follower = logs.LogFollower(run, task=task, rank=rank, attempt=attempt or None, since=since)

    def look(is_over: bool) -> Iterable[logs.LogLine]:
        sys.stdout.flush()
        return follower.rest() if is_over else follower.poll()

    for line in look_until_end(run, home, look, reconcile=partial(reconciled, run, home)):
        if attempt is not None or line.attempt >= first.get(line.task, 1):
            _print_line(line, is_labelled=rank is None and num_replicas > 1, is_json=is_json)
    sys.stdout.flush()
    tell(paint(f"-- {run.id} {run.facts().state}", "dim", stream=sys.stderr))
