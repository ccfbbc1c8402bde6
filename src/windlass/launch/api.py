"""Python interface: experiments that can plan and launch themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from windlass import spec
from windlass.launch.prepare import Options, Prepared, prepare, prepare_file
from windlass.launch.run import Run
from windlass.plan import Plan

__all__ = ["Experiment", "launch", "launch_many", "load"]


class Experiment(spec.Experiment):
    """Experiment defined in Python, with the same fields as in a file.

    Relative paths are resolved against the current folder.
    """

    __slots__ = ()

    def plan(self, options: Options | None = None) -> Plan:
        """Return the plan without starting anything."""
        return prepare(spec.checked(self), Path.cwd(), options or Options(is_dry=True)).plan

    def launch(self, options: Options | None = None) -> Run:
        """Launch the experiment and return once its jobs are submitted."""
        return prepare(spec.checked(self), Path.cwd(), options).launch()


def load(path: str | Path, overrides: Sequence[str] = (), options: Options | None = None) -> Prepared:
    """Read, pin and plan an experiment file."""
    return prepare_file(Path(path), overrides, options)


def launch(prepared: Prepared, *, log: Callable[[str], None] = lambda line: None) -> Run:
    """Launch a prepared plan and return once its jobs are submitted."""
    return prepared.launch(log=log)


def launch_many(prepared: Sequence[Prepared], *, log: Callable[[str], None] = lambda line: None) -> list[Run]:
    """Launch several prepared plans; jobs with equal resources become one job array."""
    from windlass.launch.start import start_runs  # lazy: not needed for a plan

    runs = start_runs(prepared, log=log)
    return [Run(run, one.home) for run, one in zip(runs, prepared, strict=True)]
