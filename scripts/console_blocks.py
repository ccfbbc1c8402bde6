"""Run the console blocks of a page and compare what they print with what the page shows.

A block that begins with ```console exec is run. Lines with `$ ` are commands, the lines below a command are what
it must print (stdout and stderr together), and `...` stands for anything; `> ` continues a command, and `>` alone is
an empty line of it. The blocks of one page share one scratch folder and one WINDLASS_HOME and continue where the last
one stood; a command that fails must show `(exit N)` last. ```console exec train marks blocks that need torch: they run in the development environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.tree import ROOT

__all__ = ["run_page"]

BLOCK = re.compile(r"^```console exec(?P<train> train)?\n(?P<lines>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
CONTINUED = re.compile(r"\A>( |\Z)")
EXIT = re.compile(r"\(exit (\d+)\)\Z")
TIMEOUT_S = 300
WITH_TORCH = {"PATH": f"{ROOT / '.venv-dev' / 'bin'}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@dataclass
class Step:
    """One command of a page and what it must print."""

    command: str
    line: int
    needs_torch: bool = False
    shown: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit code the page shows; 0 unless it says otherwise."""
        found = EXIT.match(self.shown[-1]) if self.shown else None
        return int(found.group(1)) if found else 0

    def matches(self, printed: str) -> bool:
        """Whether the output is what the page shows."""
        shown = self.shown[:-1] if self.exit_code else self.shown
        wanted = strip_lines("\n".join(shown))
        if not wanted:
            return True
        pattern = "".join(line_pattern(line) for line in wanted.splitlines())
        return re.fullmatch(pattern, strip_lines(printed) + "\n", re.DOTALL) is not None


def line_pattern(line: str) -> str:
    """What one shown line stands for; a line of `...` alone stands for any number of lines, or none."""
    if line.strip() == "...":
        return r"(?:.*\n)?"
    return ".*?".join(re.escape(part) for part in line.split("...")) + r"\n"


def run_page(page: Path) -> tuple[int, list[str]]:
    """Run a page's blocks; returns the number of commands and what went wrong."""
    steps = list(read_steps(page.read_text()))
    if not steps:
        return 0, []
    with tempfile.TemporaryDirectory(prefix="windlass-docs-") as scratch:
        folder = Path(scratch, "work")
        folder.mkdir()
        env = {**os.environ, "WINDLASS_HOME": f"{scratch}/home", "XDG_CACHE_HOME": f"{scratch}/cache", "NO_COLOR": "1"}
        for count, step in enumerate(steps, 1):
            folder, code, printed = run_step(step, folder, env | WITH_TORCH if step.needs_torch else env)
            if code != step.exit_code or not step.matches(printed):
                where = f"{page.relative_to(ROOT)}:{step.line}"
                return count, [f"{where}: `{step.command}` exited with {code} and printed:\n{printed.rstrip()}"]
    return len(steps), []


def read_steps(text: str) -> Iterator[Step]:
    """The commands of all blocks of a page, in order."""
    for block in BLOCK.finditer(text):
        first_line = text.count("\n", 0, block.start("lines")) + 1
        step: Step | None = None
        for number, line in enumerate(block["lines"].splitlines(), first_line):
            if line.startswith("$ "):
                if step is not None:
                    yield step
                step = Step(command=line[2:], line=number, needs_torch=block["train"] is not None)
            elif step is not None and not step.shown and (step.command.endswith("\\") or CONTINUED.match(line)):
                step.command += "\n" + CONTINUED.sub("", line)
            elif step is not None:
                step.shown.append(line.rstrip())
        if step is not None:
            yield step


def run_step(step: Step, folder: Path, env: dict[str, str]) -> tuple[Path, int, str]:
    """Run one command; returns the folder it ended in, its exit code and what it printed."""
    marker = Path(env["WINDLASS_HOME"]).with_name("cwd")
    script = f"trap 'pwd > {marker}' EXIT\n{step.command}\n"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
    )
    return Path(marker.read_text().strip()), done.returncode, done.stdout


def strip_lines(text: str) -> str:
    """Text without trailing blanks on any line or at the end."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()
