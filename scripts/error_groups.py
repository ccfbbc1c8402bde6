"""The groups of error codes that `windlass explain` lists, by the part of windlass that says a code first.

    python -m scripts.error_groups --write

A code that is in no group yet is listed under "Other".
"""

from __future__ import annotations

import sys

from scripts.check_docs import error_pages, used_slugs
from scripts.tree import ROOT
from windlass.record.causes import Cause

__all__ = ["TARGET", "groups", "text"]

TARGET = ROOT / "src" / "windlass" / "cli" / "error_groups.toml"
_SOURCES = {
    "How runs end": (),
    "Command line": ("cli", "core"),
    "Experiment files and plans": ("config", "spec", "plan"),
    "Code": ("pin/code", "pin"),
    "Environments": ("pin/environment",),
    "Images": ("pin/image",),
    "Data": ("pin/data", "store"),
    "Secrets": ("secrets",),
    "Runs": ("launch", "runs", "record", "report", "supervise", "testing"),
    "Sites": ("sites", "backends"),
    "Beaker, mason and gantry": ("compat", "backends/beaker"),
    "Sweeps": ("tune",),
    "Training": ("train",),
}
"""Group, and the folders of src/windlass whose codes are in it; the longest that fits counts."""


def groups() -> dict[str, list[str]]:
    """Every code that a place of the source says, by group; what ends runs is a group of its own."""
    found: dict[str, list[str]] = {group: [] for group in _SOURCES}
    causes = {str(cause) for cause in Cause}
    used = used_slugs()
    for code in error_pages():
        group = "How runs end" if code in causes else _group_of(used.get(code, ""))
        if group:
            found[group].append(code)
    return found


def _group_of(place: str) -> str:
    path = place.removeprefix("src/windlass/")
    fitting = [
        (len(source), group)
        for group, sources in _SOURCES.items()
        for source in sources
        if path.startswith(source + "/")
    ]
    return max(fitting)[1] if fitting else ""


def text() -> str:
    """The file."""
    lines = ["# Made by `python -m scripts.error_groups --write`."]
    for group, codes in groups().items():
        lines += [f'"{group}" = [', *(f'    "{code}",' for code in codes), "]"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    TARGET.write_text(text(), encoding="utf-8")
