"""Retention on real runs: exactly the right checkpoints stay, and a stopped run goes on from the newest."""

from __future__ import annotations

import os
import signal

import pytest

from tests.launcher.deadly import killed_at
from tests.system.stage import Stage, until
from windlass import Run
from windlass.cli.program import main
from windlass.launcher.verify.verify import verify
from windlass.record.state import State

pytestmark = pytest.mark.system

# Runs to `$LIMIT` steps, saving each; the loss is smallest at step 2. Then waits for its end, but for attempt 2.
PROGRAM = """
import os, sys, time
from pathlib import Path
from windlass import report
out = Path(sys.argv[1])
latest = report.latest_checkpoint()
step = int((latest / "step").read_text()) if latest else 0
print("begins at", step, flush=True)
while step < (6 if latest is None else 8):
    step += 1
    report.metrics({"loss": (step - 2) ** 2}, step=step)
    with report.checkpoint_dir(step=step) as folder:
        (folder / "step").write_text(str(step))
if latest is None:
    print("waits", flush=True)
    time.sleep(600)
(out / "result").write_text(str(step))
"""


def started(stage: Stage) -> Run:
    spec = stage.python(PROGRAM)
    spec["tasks"]["main"]["run"].append("${out}")
    spec["retain"] = {"checkpoints": {"last": 1, "best": {"metric": "loss"}}}
    run = stage.launch(spec)
    stage.wait_for_line(run, "waits")
    return run


def steps(run: Run) -> list[str]:
    return sorted(path.name for path in run.folder.checkpoints("main").iterdir())


def test_what_a_run_needs_stays_and_it_resumes(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    run = started(stage)
    assert main(["gc", "--yes"]) == 0
    assert len(steps(run)) == 6, "a run in motion was touched"
    run.stop()
    assert stage.end(run) is State.STOPPED
    until(lambda: not stage.survivors(run, timeout_s=0.0), "its processes are gone")
    assert main(["gc"]) == 0
    assert len(steps(run)) == 6, "telling removed something"
    assert "run `windlass gc --yes`" in capsys.readouterr().err
    assert main(["gc", "--yes"]) == 0
    assert steps(run) == ["step-2", "step-6"]
    run.resume()
    assert stage.end(run) is State.SUCCEEDED
    assert "begins at 6" in stage.log(run, attempt=2)
    assert (run.output("main") / "result").read_text() == "8"
    until(lambda: not stage.survivors(run, timeout_s=0.0), "its processes are gone")
    assert main(["gc", "--yes"]) == 0
    assert steps(run) == ["step-2", "step-8"]
    assert "failed" not in {finding.status for finding in verify(run.folder)}


def test_a_killed_gc_leaves_no_half_checkpoint(stage: Stage) -> None:
    run = started(stage)
    run.stop()
    assert stage.end(run) is State.STOPPED
    until(lambda: not stage.survivors(run, timeout_s=0.0), "its processes are gone")
    codes = []
    for number in (1, 2, 3, 5):
        codes.append(killed_at(number, ("rename", "replace", "unlink", "rmdir"), "gc", "--yes"))
        for name in steps(run):
            if not name.startswith("."):
                assert sorted(os.listdir(run.folder.checkpoints("main") / name)) == ["manifest.json", "step"]
        assert {"step-2", "step-6"} <= set(steps(run))
    assert codes[0] == -signal.SIGKILL
    assert set(codes) <= {-signal.SIGKILL, 0}
    assert main(["gc", "--yes"]) == 0
    assert main(["gc", "--yes"]) == 0
    assert steps(run) == ["step-2", "step-6"]
