"""`windlass gantry run --on SITE`: convert the launch to an experiment, then print or run it."""

from __future__ import annotations

from pathlib import Path

from windlass.cli.screen import emit, emit_page, tell
from windlass.compat.gantry.invocation import Invocation
from windlass.compat.gantry.request import prepare
from windlass.compat.gantry.to_experiment.experiment import to_experiment
from windlass.compat.to_experiment.destination import destination_at
from windlass.compat.to_experiment.diagnostics import with_options
from windlass.core.errors import SpecError, UsageError
from windlass.runs.home import Home

__all__ = ["run_at_site"]

_LIMITS = ("start_timeout_s", "inactive_timeout_s", "inactive_soft_timeout_s")


def run_at_site(invocation: Invocation) -> int:
    """Print the experiment or its plan, or run and follow it, depending on the options."""
    folder = Path.cwd()
    on = invocation.on or "local"
    converted = to_experiment(prepare(invocation.recipe), destination_at(on, Home.default().path), folder=folder)
    for note in (*converted.notes, *_unused(invocation)):
        tell(f"note: {note}")
    if invocation.emit == "spec":
        from windlass.config.emit import to_yaml  # lazy: only for this option

        emit(to_yaml(converted.experiment).rstrip("\n"))
        return 0
    from windlass.launcher.api import launch
    from windlass.launcher.prepare import Options  # lazy: planning costs 0.1 s to import
    from windlass.launcher.prepare import prepare as plan

    is_dry = invocation.emit == "plan" or invocation.is_dry
    options = Options(on=on, dry_run=is_dry, allow_dirty=invocation.recipe.allow_dirty)
    try:
        prepared = plan(converted.experiment, folder, options, log=tell)
    except SpecError as error:
        raise with_options(error, {"nodes": "--replicas", "gpus": "--gpus"}) from error
    if is_dry:
        from windlass.plan.page import plan_page  # lazy: only to print it

        emit_page(plan_page(prepared.plan).rstrip("\n"))
        return 0
    run = launch(prepared, log=tell)
    tell(f"{run.id}  {run.folder.path}")
    if not invocation.following.is_wanted:
        emit(run.id)
        tell(f"  windlass logs {run.id} --follow | windlass show {run.id} | windlass stop {run.id}")
        return 0
    from windlass.cli.following import Following, follow_to_verdict  # lazy: only when following

    return follow_to_verdict(Following(run.folder, prepared.home, logs_to_stderr=False))


def _unused(invocation: Invocation) -> list[str]:
    """Return notes on following options that have no effect here."""
    following = invocation.following
    if invocation.recipe.save_spec:
        hint = "`--emit spec` prints the experiment, `--emit beaker` without `--on` what Beaker gets"
        raise UsageError("`--save-spec` writes a spec of Beaker", hint=hint, code="conflicting-options")
    notes = [
        f"--{name.removesuffix('_s').replace('_', '-')} has no effect: use `stall` in an experiment file"
        for name in _LIMITS
        if getattr(following, name) is not None
    ]
    if following.timeout_s:
        notes.append("--timeout has no effect: Ctrl-C detaches, and --task-timeout ends the run")
    return notes
