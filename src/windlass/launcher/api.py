"""Python interface: define, plan and launch experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from windlass import spec
from windlass.launcher.prepare import Options, Prepared, prepare, prepare_file
from windlass.launcher.run import Run
from windlass.plan.plan import Plan
from windlass.spec.load import checked

__all__ = ["Experiment", "launch", "launch_many", "load"]


class Experiment(spec.Experiment):
    """Experiment defined in Python, with the same fields as in a file.

    Relative paths are resolved against the current folder.
    """

    __slots__ = ()

    def plan(self, options: Options | None = None) -> Plan:
        """Plan the experiment without starting anything."""
        return prepare(checked(self), Path.cwd(), options or Options(dry_run=True)).plan


def load(path: str | Path, overrides: Sequence[str] = (), options: Options | None = None) -> Prepared:
    """Read, pin and plan an experiment file, to inspect the plan before `launch`.

    Args:
        overrides: changes to the file, such as `params.lr=1e-2`.
        options: how to prepare it, such as the site.

    Raises:
        WindlassError: the file, a pin or the plan is refused; no files are left behind.
    """
    return prepare_file(Path(path), overrides, options)


def launch(
    experiment: spec.Experiment | Prepared | str | Path,
    overrides: Sequence[str] = (),
    *,
    options: Options | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Run:
    """Launch an experiment, and return the run once its jobs are submitted.

        run = windlass.launch("experiment.yaml", ["params.lr=1e-2"])

    Args:
        experiment: the path of an experiment file, an experiment, or what `load` returned.
        overrides: changes to a file, such as `params.lr=1e-2`.
        options: how to prepare it; a prepared plan has its own, so that both together are an error.
        log: called with each line about progress, for example of environment builds.

    Raises:
        ValueError: options were given with a prepared plan, or overrides with anything but a file.
        WindlassError: the file, a pin or the plan is refused, or the site cannot be reached.
    """
    from windlass.launcher.start import start_run  # lazy: not needed for a plan

    if overrides and isinstance(experiment, spec.Experiment | Prepared):
        raise ValueError("overrides apply to a file; change the experiment, or pass overrides to load()")
    if isinstance(experiment, Prepared):
        if options is not None:
            raise ValueError("a prepared plan already has its options; pass options to load()")
        prepared = experiment
    elif isinstance(experiment, spec.Experiment):
        prepared = prepare(checked(experiment), Path.cwd(), options)
    else:
        prepared = prepare_file(Path(experiment), overrides, options)
    return Run(start_run(prepared, log=log), prepared.home)


def launch_many(prepared: Sequence[Prepared], *, log: Callable[[str], None] = lambda line: None) -> list[Run]:
    """Launch several prepared plans; jobs with equal resources become one job array."""
    from windlass.launcher.start import start_runs  # lazy: not needed for a plan

    runs = start_runs(prepared, log=log)
    return [Run(run, one.home) for run, one in zip(runs, prepared, strict=True)]
