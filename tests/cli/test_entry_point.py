"""The real program in a process of its own: what it loads, how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BUDGET_MODULES = 250
LAZY = (
    "yaml",
    "rich",
    "sqlite3",
    "uv",
    "pyrage",
    "windlass.config",
    "windlass.spec",
    "windlass.plan",
    "windlass.launcher",
)
PROBE = """
import io, json, sys
out, sys.stdout = sys.stdout, io.StringIO()
from windlass.cli import main
code = main(sys.argv[1:])
out.write(json.dumps({"code": code, "modules": sorted(sys.modules), "text": sys.stdout.getvalue()}))
"""


def probe(*arguments: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_a_glance_costs_little(arguments: list[str], home: Path) -> None:
    found = probe(*arguments)
    modules = found["modules"]
    assert isinstance(modules, list)
    assert found["code"] == 0
    assert len(modules) <= BUDGET_MODULES
    assert [name for name in LAZY if name in modules] == []


def test_ps_loads_no_planner(home: Path) -> None:
    modules = probe("ps")["modules"]
    assert isinstance(modules, list)
    assert [
        name for name in ("yaml", "rich", "windlass.config", "windlass.plan", "windlass.launcher") if name in modules
    ] == []


def test_what_show_says_of_a_plan_needs_no_planner() -> None:
    program = """
import sys
import windlass.cli.render.made_from
from windlass.plan.plan import Plan
Plan.from_data(Plan(name="one").to_data())
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    planner = (
        "plan.planner",
        "plan.page",
        "plan.tokens.resolve",
        "spec",
        "config.decode",
        "config.override",
        "pin.code.git",
    )
    assert [name for name in planner if f"windlass.{name}" in done.stdout.split()] == []


def test_the_console_script_ends_with_our_code(home: Path) -> None:
    script = Path(sys.executable).with_name("windlass")
    done = subprocess.run([script, "show", "nope"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error: no run 'nope'")
    assert "\x1b" not in done.stderr


def test_a_closed_pipe_is_no_error(home: Path) -> None:
    script = Path(sys.executable).with_name("windlass")
    line = f"set -o pipefail; {script} config schema | head -c 1 > /dev/null"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode in (0, 141)


def test_streams_that_are_closed_and_words_that_are_not_text_are_no_bugs(home: Path) -> None:
    script = Path(sys.executable).with_name("windlass")
    closed = subprocess.run(["sh", "-c", f"exec {script} config schema >&- 2>&-"], check=False)
    assert closed.returncode == 0
    strange = subprocess.run([str(script).encode(), b"show", b"\xff"], capture_output=True)
    assert strange.returncode == 4
    assert b"no run '\\udcff'" in strange.stderr


def test_colour_is_for_terminals(home: Path) -> None:
    script = Path(sys.executable).with_name("windlass")
    command = ["script", "--quiet", "--command", f"{script} show nope", "/dev/null"]
    try:
        coloured = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        pytest.skip("no script(1) to make a terminal with")
    assert "\x1b[1m\x1b[31merror:\x1b[0m" in coloured.stdout
    plain = subprocess.run(["env", "NO_COLOR=1", *command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert "\x1b" not in plain.stdout


def test_the_python_face_costs_nothing_until_used() -> None:
    code = "import sys, windlass; n = len([m for m in sys.modules if m.startswith('windlass')]); print(n, windlass.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    num_modules, version = done.stdout.split()
    assert int(num_modules) <= 4
    assert version == "0.1.0"


def test_the_python_face_names_what_it_has() -> None:
    import windlass

    assert windlass.Experiment.__module__ == "windlass.launcher.api"
    assert set(windlass.__all__) <= set(dir(windlass))
    assert all(hasattr(windlass, name) for name in windlass.__all__)
    assert windlass.report.__name__ == "windlass.report"
    with pytest.raises(AttributeError, match="module 'windlass' has no attribute 'Experimnt'"):
        windlass.__getattr__("Experimnt")
