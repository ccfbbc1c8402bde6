"""What a shell may complete of runs and sweeps: their names, and what is in the one that was named before.

Each function is a `shell_complete` of click. Nothing asks a site: what is on disk here is what is offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.completion.files import beginning, complete_file, override_words

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from windlass.runs.store import RunFolder
    from windlass.tune.sweep import SweepHandle

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
    """Ids of runs that begin so, then experiments and `last`."""
    from windlass.runs.store import experiment_of  # lazy: here and below, only a shell that completes needs it

    ids = _run_ids()
    words = dict.fromkeys([*ids, *map(experiment_of, ids), "last"])
    return beginning(words, incomplete)[:_MAX_RUNS]


def complete_file_or_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str] | list[CompletionItem]:
    """Runs that begin so; where there is none, files."""
    return complete_runs(context, parameter, incomplete) or complete_file(context, parameter, incomplete)


def complete_experiments(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of experiments that have runs."""
    from windlass.runs.store import experiment_of  # lazy: see above

    return beginning(dict.fromkeys(map(experiment_of, _run_ids())), incomplete)


def _run_ids() -> list[str]:
    from windlass.runs.home import Home  # lazy: see above
    from windlass.runs.store import run_ids

    return run_ids(Home.default())


def complete_tasks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Tasks of the run that was named before; of the newest where none was."""
    return beginning(_run(context).facts().tasks, incomplete)


def complete_attempts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Numbers of the attempts of the run that was named before, and `all`."""
    numbers = {number for task in _run(context).facts().tasks.values() for number in task.attempts}
    return beginning([*map(str, sorted(numbers)), "all"], incomplete)


def complete_replicas(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ranks of the task that was named before, or of the largest."""
    tasks = _run(context).facts().tasks
    chosen = [tasks[name] for name in tasks if context.params.get("task") in (None, name)]
    return beginning(map(str, range(max((task.num_replicas for task in chosen), default=0))), incomplete)


def complete_run_overrides(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Override paths of the experiment that the run was made from."""
    experiment = _run(context).plan().get("experiment")
    return override_words(experiment if isinstance(experiment, Mapping) else None, incomplete)


def _run(context: click.Context) -> RunFolder:
    from windlass.runs.home import Home  # lazy: see above
    from windlass.runs.store import find

    return find(Home.default(), context.params.get("run") or "last")


def complete_sweeps(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of sweeps, and `last`."""
    from windlass.runs.home import Home  # lazy: see above
    from windlass.tune.sweep.finding import sweep_names

    return beginning([*sweep_names(Home.default()), "last"], incomplete)


def complete_trials(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Trials of the sweep that was named before."""
    return beginning(_sweep(context).history.trials, incomplete)


def complete_metrics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Numbers that the trials of the sweep reported."""
    reported: dict[str, Any] = {}
    for trial in _sweep(context).history.trials.values():
        reported |= trial.last or {}
    return beginning((name for name, value in reported.items() if isinstance(value, int | float)), incomplete)


def _sweep(context: click.Context) -> SweepHandle:
    from windlass.tune.sweep import SweepHandle  # lazy: see above

    return SweepHandle.find(context.params.get("sweep") or "last")
