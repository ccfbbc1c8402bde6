"""From an old run to a plan that can be launched again: the same pins, and overrides of what is not pinned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from windlass import config
from windlass.core.errors import UsageError
from windlass.launch.prepare import Options, Prepared
from windlass.plan import Plan, make_plan
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.spec import Experiment

__all__ = ["prepare_rerun"]

_PINNED = ("code", "data", "env.image", "env.uv", "env.python", "env.groups", "env.extras")


def prepare_rerun(run: RunFolder, home: Home, overrides: tuple[str, ...] = ()) -> Prepared:
    """The plan of a run, ready to be launched anew.

    Raises:
        UsageError: an override changes what is pinned.
        SpecError: an override is refused.
        PreconditionError: the plan is of another version, or broken.
    """
    plan = Plan.from_data(run.plan())
    experiment = config.from_data(Experiment, dict(plan.experiment), source=run.id)
    if overrides:
        _check_pinned(overrides)
        text = config.to_yaml(experiment)
        loaded = config.load(Experiment, text, source=f"the experiment of {run.id}", overrides=overrides)
        experiment = loaded.value
        plan = make_plan(
            experiment,
            plan.pins,
            plan.site,
            overrides=(*plan.overrides, *overrides),
            is_debug=plan.is_debug,
            best_effort=plan.is_best_effort,
            origins=loaded.origins,
        )
    plan = replace(plan, notes=(*plan.notes, f"rerun of {run.id}"))
    base = Path(str(run.provenance().get("base", ".")))
    return Prepared(experiment=experiment, plan=plan, base=base, home=home, options=Options())


def _check_pinned(overrides: tuple[str, ...]) -> None:
    for override in overrides:
        path, _ = config.parse_override(override)
        for pinned in _PINNED:
            if path == pinned or path.startswith(pinned + "."):
                raise UsageError(
                    f"`{override}` changes what a rerun keeps: {pinned} is pinned",
                    hint="windlass launch FILE makes a run with new pins",
                    code="rerun-pinned",
                )
