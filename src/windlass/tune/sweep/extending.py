"""Extension of a declared sweep with new limits, stop conditions and bounds on its space."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.tune.controller.restore import Extension, SweepOrigin, read_origin
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.folder import SweepFolder
from windlass.tune.space.space import check_same_names
from windlass.tune.stopper.limits import MetricStopper
from windlass.tune.stopper.protocol import stopper_settings
from windlass.tune.sweep.declared import declared_space
from windlass.tune.sweep.record import SweepRecord, read_record

__all__ = ["as_extended", "make_extension", "unchanged_by"]


def make_extension(
    folder: Path, settings: Mapping[str, Any], *, space: Mapping[str, Any], stop: Mapping[str, float]
) -> Extension:
    """Return the extension for the sweep in a folder.

    Args:
        settings: fields of `SweepSettings` with new values.
        space: new distributions by name, as in a file; other names are unchanged.
        stop: new bounds of metrics, which replace the old ones; empty to keep them.

    Raises:
        PreconditionError: the sweep was not declared in a file.
        UsageError: a name or a word of the space is unknown, or a bound is not a number.
    """
    record = read_record(folder)
    sweep = as_extended(record, _beginning(folder), None).sweep
    stopper = MetricStopper(stop, waits=not sweep.trainable) if stop else None
    whole = dict(sweep.space) | dict(space)
    if space:
        before, now = declared_space(sweep), declared_space(dataclasses.replace(sweep, space=whole))
        check_same_names(before, now)
    return Extension(
        settings=settings,
        space=whole if space else None,
        stopper=None if stopper is None else stopper_settings(stopper),
    )


def unchanged_by(folder: Path, more: Extension) -> str:
    """Return a message if an extension would change nothing, else an empty string."""
    beginning = _beginning(folder)
    return beginning.unchanged(more) if beginning is not None else ""


def as_extended(record: SweepRecord, beginning: SweepOrigin | None, more: Extension | None) -> SweepRecord:
    """Return the declared sweep with all earlier extensions and one more."""
    sweep = record.sweep
    for one in (beginning, more):
        if one is not None and one.space is not None:
            sweep = dataclasses.replace(sweep, space=one.space)
        if one is not None and one.stopper is not None:
            sweep = dataclasses.replace(sweep, stop=one.stopper["bounds"])
    return dataclasses.replace(record, sweep=sweep)


def _beginning(folder: Path) -> SweepOrigin | None:
    return read_origin(SweepFolder(folder), SweepSettings(name=folder.name))
