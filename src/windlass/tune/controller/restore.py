"""Restore of a sweep: how the sweep was created, and what a new head may change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.core.version import VERSION
from windlass.record.frames import HEADER, Record, read_frames
from windlass.tune.controller.journal import records
from windlass.tune.controller.requests import changed
from windlass.tune.controller.settings import SweepSettings, objectives_to_data
from windlass.tune.errors import BadValueError
from windlass.tune.folder import SweepFolder
from windlass.tune.schedulers.protocol import SweepScheduler
from windlass.tune.search.protocol import Objectives, SearchAlgorithm

__all__ = ["Extension", "SweepOrigin", "creation", "describe", "fill_in_metric", "read_origin"]

_REQUESTED = f' {{"kind":"{records.SWEEP_REQUESTED}",'.encode("ascii")
"""Start of a request's line, after its length and checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """Changes with which a sweep is extended.

    Attributes:
        settings: fields of `SweepSettings` with new values: `{"num_samples": 200, "time_budget_s": 0}`.
        space: JSON of the new space, for readers; None if unchanged.
        stopper: JSON of the new stopper; None if unchanged.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    space: Any = None
    stopper: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOrigin:
    """Origin of a sweep, as recorded in its journal.

    Attributes:
        created: data of the first record.
        original: the settings at creation.
        settings: the settings after all extensions.
        space, stopper: their JSON after all extensions.
    """

    created: Mapping[str, Any]
    original: SweepSettings
    settings: SweepSettings
    space: Any
    stopper: Any

    def extended(self, extension: Extension) -> SweepSettings:
        """Return the settings after one more extension."""
        return changed(self.settings, extension.settings)

    def unchanged(self, extension: Extension) -> str:
        """Return a message if an extension would change nothing, else an empty string."""
        now = (self.extended(extension), extension.space or self.space, extension.stopper or self.stopper)
        if now != (self.settings, self.space, self.stopper):
            return ""
        words = [f"{name}={value}" for name, value in extension.settings.items()]
        words += ["this space"] if extension.space is not None else []
        words += ["this stop condition"] if extension.stopper is not None else []
        return f"{self.settings.name} has {' and '.join(words) or 'all of that'} already: nothing changes"

    def check(self, scheduler: SweepScheduler, searcher: SearchAlgorithm) -> None:
        """Check that the scheduler and searcher match those the sweep was started with.

        Raises:
            PreconditionError: one of them differs (`sweep-differs`).
        """
        for what, part in (("scheduler", scheduler), ("searcher", searcher)):
            before, now = self.created[what], describe(part)
            if json.dumps(before, sort_keys=True) != json.dumps(now, sort_keys=True):
                raise PreconditionError(
                    f"the sweep was started with the {what} {json.dumps(before)}, not {json.dumps(now)}",
                    hint=f"restore it with the old {what}, or start a sweep with another name",
                    code="sweep-differs",
                )


def read_origin(folder: SweepFolder, given: SweepSettings) -> SweepOrigin | None:
    """Read how the sweep in a folder was created; return None if the folder contains no sweep.

    Args:
        given: settings whose `resources` are used if the journal has only a function's name.
    """
    try:
        content = folder.head_journal.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    first = read_frames(content[: content.find(b"\n") + 1])[0]
    if not first or first[0].kind != records.SWEEP_CREATED:
        return None
    created = first[0].data
    original = SweepSettings.from_data(created["name"], created["objectives"], created["settings"])
    if isinstance(created["settings"]["resources"], str):
        original = replace(original, resources=given.resources)
    settings, space, stopper = original, created["space"], created["stopper"]
    for record in _requests(content):
        if record.data["what"] == "extend":
            settings = changed(settings, record.data["settings"])
            space = space if record.data["space"] is None else record.data["space"]
            stopper = stopper if record.data["stopper"] is None else record.data["stopper"]
    return SweepOrigin(created=created, original=original, settings=settings, space=space, stopper=stopper)


def _requests(content: bytes) -> Iterator[Record]:
    """Find the requests in a journal without parsing reports, of which there may be 100,000."""
    place = content.find(_REQUESTED)
    while place >= 0:
        begin, end = place - HEADER + 1, content.find(b"\n", place) + 1
        if content[begin - 1 : begin] == b"\n":  # otherwise the text is part of some configuration
            yield from read_frames(content[begin:end])[0]
        place = content.find(_REQUESTED, place + 1)


def creation(
    settings: SweepSettings,
    scheduler: SweepScheduler,
    searcher: SearchAlgorithm,
    stopper: Any,
    described: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the fields for the record `sweep-created`."""
    return {
        "name": settings.name,
        "objectives": objectives_to_data(settings.objectives),
        "settings": settings.to_data(),
        "space": described.get("space"),
        "scheduler": describe(scheduler),
        "searcher": describe(searcher),
        "stopper": described.get("stopper", None if stopper is None else describe(stopper)),
        "trainable": described.get("trainable") or {},
        "version": VERSION,
    }


def describe(part: Any) -> dict[str, Any]:
    """Return the type and the settings of a scheduler, searcher or stopper as JSON."""
    settings = getattr(part, "settings", None)
    found = dict(settings()) if callable(settings) else {}
    return {"type": type(part).__name__, **found}


def fill_in_metric(scheduler: SweepScheduler, objectives: Objectives) -> None:
    """Pass the sweep's metric and mode to the scheduler.

    Raises:
        UsageError: it has a different metric or mode (`conflicting-options`).
    """
    if not objectives.metrics:
        return
    metric, mode = objectives.metrics[0], "max" if objectives.is_max[0] else "min"
    for name, own, wanted in (("metric", scheduler.metric, metric), ("mode", scheduler.mode, mode)):
        if own is not None and own != wanted:
            raise BadValueError(
                f"the sweep's {name} is `{wanted}`, but its scheduler's is `{own}`",
                hint="set metric and mode only once, in the sweep",
                code="conflicting-options",
            )
    scheduler.metric, scheduler.mode = metric, mode


def sweep_exists(folder: SweepFolder) -> PreconditionError:
    """Return the error for starting a sweep in a folder that already contains one."""
    return PreconditionError(
        f"{folder.path} already holds a sweep",
        hint="restore it (`Tuner.restore`, `windlass sweep resume`), or choose another name",
        code="already-exists",
    )
