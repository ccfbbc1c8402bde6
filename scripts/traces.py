"""What command lines go through, and how long pytest takes to collect: each measured in a process of its own."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.tree import ROOT

__all__ = ["collection", "traces"]

_TRACER = """
import sys, threading
seen = set()
def hear(frame, event, argument):
    if event == "call":
        seen.add(frame.f_code)
sys.setprofile(hear); threading.setprofile(hear)
from windlass.cli import main
code = main(sys.argv[2:])
sys.setprofile(None)
with open(sys.argv[1], "w") as file:
    for code_object in seen:
        file.write(f"{code_object.co_filename}\\t{code_object.co_firstlineno}\\t{code_object.co_name}\\n")
sys.exit(code)
"""
_EXPERIMENT = "{name: one, run: 'true'}\n"


def traces() -> dict[str, str]:
    """Functions and files of windlass that a launch of one line on this machine goes through, and `show` of its run.

    The calling process alone: what guard and supervisor do in theirs is not counted.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = folder / "code"
        code.mkdir()
        (code / "one.yaml").write_text(_EXPERIMENT)
        person = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
        for words in (["init", "-q"], ["add", "-A"], [*person, "commit", "-qm", "all"]):
            subprocess.run(["git", *words], cwd=code, check=True)
        environ = {key: value for key, value in os.environ.items() if not key.startswith("WINDLASS_")}
        environ |= {"WINDLASS_HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}
        _trace(folder, environ, ["launch", "one.yaml"])  # makes the home and the archive
        launch = _trace(folder, environ, ["launch", "one.yaml"])
        show = _trace(folder, environ, ["show", "last"])
    return {
        "functions called by `windlass launch` of one line": f"{launch[0]:,}",
        "files they are in": f"{launch[1]:,}",
        "functions called by `windlass show`": f"{show[0]:,}",
        "files those are in": f"{show[1]:,}",
    }


def _trace(folder: Path, environ: Mapping[str, str], words: Sequence[str]) -> tuple[int, int]:
    """(functions, files) of windlass that a command line calls."""
    listing = folder / "called.txt"
    command = [sys.executable, "-c", _TRACER, str(listing), *words]
    subprocess.run(command, cwd=folder / "code", env=environ, check=True, capture_output=True)
    return count_called(listing.read_text(), str(ROOT / "src" / "windlass"))


def count_called(listing: str, source: str) -> tuple[int, int]:
    """(functions, files) below `source` in lines of file, line and name; bodies of modules and comprehensions left out."""
    rows = {tuple(line.split("\t")) for line in listing.splitlines()}
    ours = {row for row in rows if row[0].startswith(source + os.sep) and not row[2].startswith("<")}
    return len(ours), len({row[0] for row in ours})


def collection() -> dict[str, str]:
    """The number of tests that pytest finds, and the seconds of CPU that takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = re.search(r"^(\d+) tests collected", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"pytest could not collect the tests:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {"test ids": f"{int(found[1]):,}", "seconds of CPU to collect them": f"{seconds:.0f}"}
