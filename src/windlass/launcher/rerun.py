"""Plan for a rerun: the old run's pins, at the same site or another."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from windlass.config.emit import to_yaml
from windlass.config.loading import from_data, load_config
from windlass.config.override import parse_override
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, SourcePlace, UsageError, WindlassError
from windlass.launcher.archive.plan import plan_here
from windlass.launcher.prepare import Options, Prepared, check_added, find_place
from windlass.launcher.verify.image_as_run import image_as_run
from windlass.pin.code.checkouts import checkout
from windlass.plan.pins import Pins
from windlass.plan.placement import choose_site
from windlass.plan.plan import Plan
from windlass.plan.planner import make_plan
from windlass.plan.site import Site
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.spec import Experiment

__all__ = ["Rerun", "prepare_rerun"]

_PINNED = ("code", "data", "env.image", "env.uv", "env.python", "env.groups", "env.extras")
_OF_THE_ENVIRONMENT = ("env.image", "env.uv", "env.python", "env.groups", "env.extras")
_OUR_NOTES = ("rerun of ", "verification of ", "the image of ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """Options of a rerun: how it may differ from the old run.

    Attributes:
        on: another place; the old run's if empty.
        overrides: overrides of unpinned settings, and of the environment if the kind of place differs.
        best_effort, reshape: see `Options`.
        note: text that precedes the old run's id in the new run's record.
    """

    on: str = ""
    overrides: tuple[str, ...] = ()
    best_effort: bool = False
    reshape: bool = False
    note: str = "rerun of"


def prepare_rerun(
    run: RunFolder,
    home: Home,
    overrides: tuple[str, ...] = (),
    how: Rerun | None = None,
    *,
    log: Callable[[str], None] = lambda line: None,
) -> Prepared:
    """Plan a run again with its pins, ready to be launched.

    Args:
        overrides: shorthand for `Rerun(overrides=...)`.
        log: called with a line before a registry or a site is queried.

    Raises:
        UsageError: an override changes a pinned setting, or there is no such place.
        SpecError: an override is invalid, or the other place lacks a feature that the run needs.
        PreconditionError: the plan is damaged or was made by another version of windlass, or its code cannot be moved to another place.
    """
    how = how or Rerun()
    how = replace(how, overrides=(*overrides, *how.overrides))
    old = plan_here(run)
    base = Path(str(run.provenance().get("base", ".")))
    experiment, origins = _experiment(run, old, how.overrides)
    site = _site(old, experiment, how, home, origins)
    changed = _changed_environment(how.overrides, old, site)
    if how.on:
        _check_can_move(run, old, site)
    pins = _pins(run, old, experiment, site, base, home, log) if changed else old.pins
    if pins.builds:
        from windlass.launcher.stage.prepared_data import with_built  # lazy: most experiments build no data

        pins = with_built(experiment, pins, site, home, code_folder=None, origins=origins)
    plan = old
    if how.overrides or how.on or pins is not old.pins:
        plan = make_plan(
            experiment,
            pins,
            site,
            overrides=(*old.overrides, *how.overrides),
            is_debug=old.is_debug,
            best_effort=old.is_best_effort or how.best_effort,
            reshape=how.reshape,
            origins=origins,
        )
    notes = [note for note in plan.notes if not note.startswith(_OUR_NOTES)]
    plan = replace(plan, notes=(*notes, f"{how.note} {run.id}", *_image_notes(run, old, plan)))
    return Prepared(experiment=experiment, plan=plan, base=base, home=home, options=Options(on=how.on))


def _image_notes(run: RunFolder, old: Plan, new: Plan) -> tuple[str, ...]:
    """Return a note if the old run's image no longer exists."""
    if new.pins.image != old.pins.image or new.site.name != old.site.name:
        return ()
    try:
        used = image_as_run(run, old)
    except WindlassError:
        return ()  # the engine cannot be reached; the launch reports that
    if used is None or used.state not in ("rebuilt", "missing"):
        return ()
    again = "is built again" if used.state == "missing" and old.pins.image.kind == "built" else "is used instead"
    what = "it" if used.state == "missing" else used.now
    return (f"the image of {run.id}, {used.used}, is no longer in {used.engine}: {what} {again} and may differ",)


def _experiment(run: RunFolder, old: Plan, overrides: tuple[str, ...]) -> tuple[Experiment, Mapping[str, SourcePlace]]:
    experiment = from_data(Experiment, dict(old.experiment), source=run.id)
    if not overrides:
        return experiment, {}
    text = to_yaml(experiment)
    loaded = load_config(Experiment, text, source=f"the experiment of {run.id}", overrides=overrides)
    return loaded.value, loaded.origins


def _site(old: Plan, experiment: Experiment, how: Rerun, home: Home, origins: Mapping[str, SourcePlace]) -> Site:
    if not how.on:
        return old.site
    place = find_place(how.on, home)
    check_added(place, home)
    return choose_site(experiment, [place], best_effort=how.best_effort, reshape=how.reshape, origins=origins)


def _changed_environment(overrides: tuple[str, ...], old: Plan, site: Site) -> list[str]:
    """Return the environment overrides, which are valid only at another kind of site.

    Refuse overrides of other pinned keys.
    """
    is_elsewhere = site.backend != old.site.backend
    changed = []
    for override in overrides:
        path, _ = parse_override(override)
        pinned = next((each for each in _PINNED if path == each or path.startswith(each + ".")), "")
        if pinned in _OF_THE_ENVIRONMENT and is_elsewhere:
            changed.append(override)
        elif pinned:
            hint = "to pin again, start a new run: windlass launch FILE"
            hint += "; a rerun `--on` another kind of place may change it" if pinned in _OF_THE_ENVIRONMENT else ""
            message = f"`{override}` cannot change {pinned}: a rerun keeps the pins of the old run"
            raise UsageError(message, hint=hint, code="rerun-pinned")
    return changed


def _check_can_move(run: RunFolder, old: Plan, site: Site) -> None:
    """Raise if code that ran in place would be moved to another site, since it was never pinned."""
    if old.pins.code.kind != "in-place" or site.backend == old.site.backend:
        return
    raise PreconditionError(
        f"cannot rerun {run.id} on `{site.name}`: its code ran in place and was not pinned",
        hint=f"commit the code and `windlass launch FILE --on {site.name}`, or pin it as it is with --snapshot",
        code="code-not-pinned",
    )


def _pins(
    run: RunFolder,
    old: Plan,
    experiment: Experiment,
    site: Site,
    base: Path,
    home: Home,
    log: Callable[[str], None],
) -> Pins:
    """Return the old pins, with the environment and image pinned again from the run's code."""
    from windlass.launcher.prepare import pin_environment_of, pin_image_of  # lazy: most reruns change no environment

    image = pin_image_of(experiment, old.pins.code, base / experiment.code, site, home, log)
    with _pinned_code(run, old, experiment, base, home) as folder:
        return replace(old.pins, environment=pin_environment_of(experiment, folder, site, log), image=image)


@contextmanager
def _pinned_code(run: RunFolder, old: Plan, experiment: Experiment, base: Path, home: Home) -> Iterator[Path]:
    """Yield a folder with the run's code: its checkout, or a temporary one if that was removed."""
    pin, own = old.pins.code, base / experiment.code
    with tempfile.TemporaryDirectory(prefix="windlass-code-") as temporary:
        place = run.code if run.code.is_dir() else Path(temporary) / "code"
        yield checkout(pin, own, place, store=home.cache / "code.git")
