"""Completion of runs, sweeps, and their tasks, attempts and metrics.

Each function is a click `shell_complete` callback. Only the local disk is read, never a site.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.completion.files import beginning, complete_file, override_words

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from windlass.runs.store import RunFolder
    from windlass.tune.sweep.handle import SweepHandle

__all__ = [
    "complete_attempts",
    "complete_experiments",
    "complete_file_or_run",
    "complete_metrics",
    "complete_replicas",
    "complete_run_overrides",
    "complete_runs",
    "complete_sweeps",
    "complete_tasks",
    "complete_trials",
]

_MAX_RUNS = 200


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete run ids, then names of experiments, then `last`."""
    from windlass.runs.store import experiment_of  # lazy: here and below, only a shell that completes needs it

    ids = _run_ids()
    words = dict.fromkeys([*ids, *map(experiment_of, ids), "last"])
    return beginning(words, incomplete)[:_MAX_RUNS]


def complete_file_or_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str] | list[CompletionItem]:
    """Complete runs or, if no run matches, files."""
    return complete_runs(context, parameter, incomplete) or complete_file(context, parameter, incomplete)


def complete_experiments(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of experiments that have runs."""
    from windlass.runs.store import experiment_of  # lazy: see above

    return beginning(dict.fromkeys(map(experiment_of, _run_ids())), incomplete)


def _run_ids() -> list[str]:
    from windlass.runs.home import Home  # lazy: see above
    from windlass.runs.store import run_ids

    return run_ids(Home.default())


def complete_tasks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the tasks of the run given earlier on the line, or of the newest run."""
    return beginning(_run(context).facts().tasks, incomplete)


def complete_attempts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete `all` and the attempt numbers of the run given earlier on the line."""
    numbers = {number for task in _run(context).facts().tasks.values() for number in task.attempts}
    return beginning([*map(str, sorted(numbers)), "all"], incomplete)


def complete_replicas(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the ranks of the task given earlier on the line, or of the largest task."""
    tasks = _run(context).facts().tasks
    chosen = [tasks[name] for name in tasks if context.params.get("task") in (None, name)]
    return beginning(map(str, range(max((task.num_replicas for task in chosen), default=0))), incomplete)


def complete_run_overrides(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the override paths of the run's experiment."""
    experiment = _run(context).plan().get("experiment")
    return override_words(experiment if isinstance(experiment, Mapping) else None, incomplete)


def _run(context: click.Context) -> RunFolder:
    from windlass.runs.home import Home  # lazy: see above
    from windlass.runs.store import find

    return find(Home.default(), context.params.get("run") or "last")


def complete_sweeps(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete `last` and the names of sweeps."""
    from windlass.runs.home import Home  # lazy: see above
    from windlass.tune.sweep.finding import sweep_names

    return beginning([*sweep_names(Home.default()), "last"], incomplete)


def complete_trials(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the trials of the sweep given earlier on the line."""
    return beginning(_sweep(context).history.trials, incomplete)


def complete_metrics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the metrics that the sweep's trials reported."""
    reported: dict[str, Any] = {}
    for trial in _sweep(context).history.trials.values():
        reported |= trial.last or {}
    return beginning((name for name, value in reported.items() if isinstance(value, int | float)), incomplete)


def _sweep(context: click.Context) -> SweepHandle:
    from windlass.tune.sweep.handle import SweepHandle  # lazy: see above

    return SweepHandle.find(context.params.get("sweep") or "last")
