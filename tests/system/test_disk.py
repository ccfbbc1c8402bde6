from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.stage import Stage
from windlass.record.state import State
from windlass.runs.home import Home

pytestmark = pytest.mark.system

CHECKPOINT = """
import json, os, sys, time
from windlass import report
found = report.latest_checkpoint()
print("found", (found / "state").read_text() if found else None, flush=True)
with report.checkpoint_dir(step=7) as folder:
    (folder / "state").write_text("seven")
"""


@pytest.fixture
def small_stage(tmp_path: Path, home: Path, need: Callable[[str], None]) -> Iterator[Stage]:
    """A stage whose runs lie on a file system of 4 MiB; the archives stay outside."""
    need("tmpfs")
    runs = home / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(runs)], check=True)
    stage = Stage(tmp_path, Home(home))
    try:
        yield stage
        stage.close()
    finally:
        subprocess.run(["umount", "--lazy", str(runs)], check=True)


def check(stage: Stage, text: str) -> None:
    spec = stage.python(CHECKPOINT + text) | {"retry": {"failed": 0}}
    run = stage.launch(spec)
    assert stage.end(run, timeout_s=300) is State.FAILED, stage.story(run)
    assert stage.causes(run) == ["disk-full"], stage.story(run)
    assert run.facts.cause == "disk-full"
    assert (run.folder.checkpoints("main") / "step-7/state").read_text() == "seven"
    assert stage.survivors(run) == {}


def test_filled_by_the_output(small_stage: Stage) -> None:
    text = "open(report.place().out / 'much', 'wb').write(bytes(8 << 20))"
    check(small_stage, text)


def test_filled_by_the_output_with_the_error_swallowed(small_stage: Stage) -> None:
    text = """
try:
    open(report.place().out / 'much', 'wb').write(bytes(8 << 20))
except OSError:
    sys.exit(3)
"""
    check(small_stage, text)


def test_filled_by_the_log(small_stage: Stage) -> None:
    check(small_stage, "while True: sys.stdout.write('x' * 99 + '\\n')")


def test_room_again_lets_the_log_go_on(small_stage: Stage) -> None:
    text = """
with open(report.place().out / 'much', 'wb', buffering=0) as file:
    try:
        while True: file.write(bytes(4096))
    except OSError: pass
for number in range(20000): print("line", number)
os.unlink(report.place().out / 'much')
"""
    run = small_stage.launch(small_stage.python(CHECKPOINT + text))
    assert small_stage.end(run, timeout_s=300) is State.SUCCEEDED, small_stage.story(run)
    lines = [line for line in small_stage.log(run).splitlines() if line.startswith("line")]
    assert lines == [f"line {number}" for number in range(20000)]
