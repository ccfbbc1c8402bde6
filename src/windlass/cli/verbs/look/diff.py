"""`windlass diff`: differences between two runs, by cause."""

from __future__ import annotations

from itertools import groupby

from windlass.cli.screen import emit_json, emit_page, paint, printable, tell
from windlass.cli.verb import json_option, run_argument, verb
from windlass.core.phrases import brief
from windlass.launcher.verify.difference import explained
from windlass.runs.compare.run_differences import difference_text
from windlass.runs.home import Home
from windlass.runs.store import find

__all__ = ["diff_command"]

_WIDTH = 200
_STYLES = {"+": "green", "-": "red"}


@verb("windlass diff hello-7hq2mx4p last", "windlass diff hello-7hq2mx4p last --json", name="diff")
@run_argument("a")
@run_argument("b")
@json_option
def diff_command(a: str, b: str, is_json: bool) -> None:
    """Compare two runs by cause: code, environment, data, parameters, resources, hardware, outputs.

    Each difference is shown once, at its origin: code by file and line, environments by package and image, data by entry
    and file. Ids, times and other values that differ between any two runs are left out.
    """
    home = Home.default()
    first, second = find(home, a), find(home, b)
    found = explained(first, second, home)
    if is_json:
        changes = [
            {
                "cause": str(each.cause),
                "path": each.path,
                "before": each.before,
                "after": each.after,
                "details": list(each.details),
                "files": list(each.files),
            }
            for each in found
        ]
        emit_json("windlass.diff/1", {"a": first.id, "b": second.id, "differences": changes})
        return
    if not found:
        tell(f"{first.id} and {second.id} have the same inputs")
        return
    emit_page(f"- {first.id}")
    emit_page(f"+ {second.id}")
    for cause, differences in groupby(found, key=lambda difference: difference.cause):
        emit_page(paint(str(cause), "bold"))
        for difference in differences:
            line = printable(brief(difference_text(difference), _WIDTH))
            style = _STYLES.get(line[0])
            emit_page(f"  {paint(line, style) if style else line}")
            for detail in difference.details:
                emit_page(f"      {printable(detail)}")
