"""`windlass launch --each KEY=A,B`: submit one run per value and return."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.cli.screen import emit, emit_json, tell
from windlass.core.errors import UsageError

if TYPE_CHECKING:
    from windlass.launcher.prepare import Options

__all__ = ["launch_each"]


def launch_each(path: Path, overrides: Sequence[str], each: Sequence[str], options: Options, *, is_json: bool) -> int:
    """Launch one run for each combination of values and print the run ids, one per line."""
    from windlass.launcher.api import launch_many  # lazy: after the cheap checks
    from windlass.launcher.prepare import prepare_file

    prepared = [prepare_file(path, (*overrides, *point), options, log=tell) for point in combinations(each)]
    runs = launch_many(prepared, log=tell)
    if is_json:
        emit_json("windlass.launch-each/1", {"runs": [run.id for run in runs]})
        return 0
    for run, point in zip(runs, combinations(each), strict=True):
        emit(run.id)
        tell(f"  {' '.join(point)}")
    tell(f"  windlass ps {prepared[0].plan.name} | windlass stop RUN")
    return 0


def combinations(each: Sequence[str]) -> list[tuple[str, ...]]:
    """Expand `["a=1,2", "b=x"]` to `[("a=1", "b=x"), ("a=2", "b=x")]`; raise UsageError for a missing value."""
    axes = []
    for text in each:
        key, equals, values = text.partition("=")
        found = [value for value in values.split(",") if value]
        if not (key and equals and found):
            raise UsageError(f"no values in `--each {text}`", hint="--each params.seed=1,2,3", code="usage")
        axes.append([f"{key}={value}" for value in found])
    return list(itertools.product(*axes))
