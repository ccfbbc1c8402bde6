"""`windlass diff`: why two runs may differ, by cause."""

from __future__ import annotations

import json
from itertools import groupby

from windlass.cli.phrases import brief
from windlass.cli.screen import emit, emit_json, paint, printable, tell
from windlass.cli.verb import json_option, run_argument, verb
from windlass.runs.compare import Difference, diff
from windlass.runs.home import Home
from windlass.runs.store import find

__all__ = ["diff_command"]

_WIDTH = 120


@verb("windlass diff hello-7hq2mx4p last", "windlass diff hello-7hq2mx4p last --json", name="diff")
@run_argument("a")
@run_argument("b")
@json_option
def diff_command(a: str, b: str, is_json: bool) -> None:
    """Compare two runs: code, environment, data, parameters, resources, hardware, outputs."""
    home = Home.default()
    first, second = find(home, a), find(home, b)
    found = diff(first, second)
    if is_json:
        changes = [{"cause": str(d.cause), "path": d.path, "before": d.before, "after": d.after} for d in found]
        emit_json("windlass.diff/1", {"a": first.id, "b": second.id, "differences": changes})
        return
    if not found:
        tell(f"{first.id} and {second.id} were made from the same")
        return
    emit(f"- {first.id}")
    emit(f"+ {second.id}")
    for cause, differences in groupby(found, key=lambda difference: difference.cause):
        emit(paint(str(cause), "bold"))
        for difference in differences:
            emit(f"  {_line(difference)}")


def _line(difference: Difference) -> str:
    before, after = _shown(difference.before), _shown(difference.after)
    if difference.before is None:
        return paint(f"+ {difference.path}: {after}", "green")
    if difference.after is None:
        return paint(f"- {difference.path}: {before}", "red")
    return f"~ {difference.path}: {before} -> {after}"


def _shown(value: object) -> str:
    return printable(brief(json.dumps(value, ensure_ascii=False), _WIDTH))
