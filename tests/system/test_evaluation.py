"""Tasks with `evaluate:`: each selected checkpoint is evaluated once, and training does not notice."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest

from tests.system.stage import PYTHON, Stage, until
from windlass.core.process import send_signal
from windlass.launcher.verify.verify import verify
from windlass.record import events
from windlass.record.state import Attempt, State
from windlass.runs import metrics
from windlass.runs.provenance.graph import NodeKind, provenance_graph

pytestmark = pytest.mark.system

TRAIN = """
import os, shutil, sys, time
from windlass import report
pause_s, keep = float(sys.argv[2]), int(sys.argv[3])
saved = []
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(pause_s)
    while step == 2 and len(sys.argv) > 4 and not os.path.exists(sys.argv[4]):  # a file that lets it go on
        time.sleep(0.1)
    report.metrics({"loss": abs(step - 3.2)}, step=step)
    with report.checkpoint_dir(step=step) as folder:
        (folder / "state").write_text(str(step))
    saved.append(report.place().checkpoints / f"step-{step}")
    held = report.held_checkpoints()
    for path in [each for each in saved[:-keep] if str(each) not in held]:
        shutil.rmtree(path)
        saved.remove(path)
print("trained", flush=True)
"""

EVALUATE = """
import os, sys, time
from pathlib import Path
from windlass import report
checkpoint, step = Path(os.environ["WINDLASS_CHECKPOINT"]), int(os.environ["WINDLASS_CHECKPOINT_STEP"])
time.sleep(float(sys.argv[1]))
if str(step) in sys.argv[2:]:
    sys.exit("cannot read step %d" % step)
report.metrics({"eval/score": 10.0 * float((checkpoint / "state").read_text())})
with open(report.place().out / "scores", "a") as file:
    file.write("%d\\n" % step)
"""


def spec(stage: Stage, train: str, evaluate: str, rule: dict[str, Any], **settings: Any) -> dict[str, Any]:
    stage.write("train.py", TRAIN)
    stage.write("evaluate.py", EVALUATE)
    tasks = {
        "train": {"run": f"{PYTHON} train.py {train}", "grace": "1s"},
        "quality": {
            "run": f"{PYTHON} evaluate.py {evaluate}",
            "evaluate": {"of": "train", **rule},
            "grace": "1s",
            **settings,
        },
    }
    return {"tasks": tasks}


def done(stage: Stage, run: Any) -> list[int]:
    attempts = stage.attempts(run, "quality")
    return [each.evaluates.step for each in attempts if each.end is not None and each.end.cause == "ok"]


def test_every_best_and_last(stage: Stage) -> None:
    run = stage.launch(spec(stage, "6 0.05 9", "0", {"every": 2, "best": "loss", "last": True}))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert sorted(done(stage, run)) == [2, 3, 4, 6]
    points = {point.step: point.value for point in metrics.series(run.folder, "eval/score")}
    assert points == {2: 20.0, 3: 30.0, 4: 40.0, 6: 60.0}
    assert sorted((run.output("quality") / "scores").read_text().split()) == ["2", "3", "4", "6"]


def test_the_value_is_joined_to_the_checkpoint(stage: Stage) -> None:
    run = stage.launch(spec(stage, "2 0.05 9", "0", {"every": 2}))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    graph = provenance_graph(run.folder)
    (checkpoint,) = [node for node in graph.nodes if node.kind is NodeKind.CHECKPOINT]
    (metric,) = [node for node in graph.nodes if node.kind is NodeKind.METRIC]
    assert (checkpoint.title, metric.title, metric.details[:2]) == ("train: step 2", "eval/score", ("20", "at step 2"))
    assert checkpoint.digest.startswith("sha256:")
    before = {(edge.before, edge.after) for edge in graph.edges}
    assert ("attempt.train.1", checkpoint.id) in before
    assert (checkpoint.id, metric.id) in before
    assert ("attempt.quality.1", metric.id) in before
    what = "checkpoint train step 2, evaluated by quality"
    assert [found.status for found in verify(run.folder) if found.what == what] == ["ok"]
    state = run.folder.checkpoints("train") / "step-2" / "state"
    state.chmod(0o644)
    state.write_text("3")
    assert [found.status for found in verify(run.folder) if found.what == what] == ["failed"]


def test_training_succeeds_although_an_evaluation_fails(stage: Stage) -> None:
    run = stage.launch(spec(stage, "3 0.05 9", "0 2", {"every": 1}))
    assert stage.end(run) is State.FAILED
    facts = run.folder.facts()
    assert facts.task("train").state is State.SUCCEEDED
    assert done(stage, run) == [1, 3]
    end = facts.task("quality").end
    assert end is not None
    assert end[:2] == (State.FAILED, "user-error")
    assert end[2].startswith("1 of 3 evaluations failed (step 2): exit code 1")


def test_slow_evaluations_do_not_slow_down_training(stage: Stage) -> None:
    """Training ends long before the evaluations, and what waits too long is skipped, counted and shown."""
    run = stage.launch(spec(stage, "12 0.1 1", "2", {"every": 1, "max_waiting": 2}))
    until(lambda: run.folder.facts().task("train").state is State.SUCCEEDED, "trained", story=lambda: stage.story(run))
    at = time.time()
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    facts = run.folder.facts()
    (trained,) = facts.task("train").attempts.values()
    assert trained.ended_at < at
    skipped = stage.records(run, events.EVALUATION_SKIPPED)
    assert skipped
    assert {record.data["reason"] for record in skipped} == {"more than 2 checkpoints waited"}
    found = done(stage, run)
    assert sorted([*found, *(record.data["step"] for record in skipped)]) == list(range(1, 13))
    assert found == sorted(found)
    assert found[-1] == 12


def test_resources_are_free_while_nothing_is_to_be_evaluated(stage: Stage) -> None:
    """The evaluator leases CPUs for its attempts only: another run gets all of them between two checkpoints."""
    cpus = os.cpu_count() or 1
    go = stage.code / "go"
    run = stage.launch(spec(stage, f"2 0 9 {go}", "0", {"every": 1}, cpus=cpus))
    until(lambda: len(done(stage, run)) == 1, "the first evaluation", story=lambda: stage.story(run))
    other = stage.launch(stage.task("true", cpus=cpus), name="other")
    assert stage.end(other) is State.SUCCEEDED, stage.story(other)
    assert run.folder.facts().task("quality").end is None
    go.touch()
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert done(stage, run) == [1, 2]


def _victims(stage: Stage, run: Any) -> list[int]:
    """The living ones of the evaluator's user process, supervisor and guard."""
    found = [
        stage.user(run, task="quality"),
        *(stage.ours(run, what, task="quality") for what in ("supervisor", "guard")),
    ]
    return [pid for pid in found if pid]


@pytest.mark.parametrize("seed", range(6))
def test_kills_at_random_moments(stage: Stage, seed: int) -> None:
    """Each checkpoint is evaluated once, from files that are still there; training keeps its one attempt."""
    rng = random.Random(seed)
    run = stage.launch(spec(stage, "8 0.3 1", "0.3", {"every": 2, "last": True, "best": "loss"}))
    for _ in range(3):
        time.sleep(rng.uniform(0.1, 1.2))
        victims = _victims(stage, run)
        for victim in rng.sample(victims, min(len(victims), rng.choice((1, 2, 3)))):
            send_signal(victim, signal.SIGKILL)
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    found = done(stage, run)
    assert sorted(found) == [2, 3, 4, 6, 8], stage.story(run)
    assert stage.records(run, events.EVALUATION_SKIPPED) == []
    attempts: list[Attempt] = stage.attempts(run, "train")
    assert [each.end.cause for each in attempts if each.end is not None] == ["ok"]
    points = {point.step: point.value for point in metrics.series(run.folder, "eval/score")}
    assert points == {step: 10.0 * step for step in (2, 3, 4, 6, 8)}
