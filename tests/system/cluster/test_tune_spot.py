"""examples/tune-spot on virtual machines: a spot node is taken away, with a notice and with none.

How short a notice may be depends on how busy the machine is: six seconds, which suffice on a quiet one, are left to soak.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.lab.components import COMPONENTS, is_present
from tests.lab.hosts import REPO
from tests.system.cluster.scaling_lab import ScalingLab, scaling_lab
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.commands import ClusterNode, find_head
from windlass.core.errors import NotFoundError
from windlass.supervise.node.commands import PYTHON, NodeCommand
from windlass.tune.controller.journal.history import History, TrialHistory, read_history
from windlass.tune.folder import SweepFolder
from windlass.tune.trial import TrialStatus

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not is_present("ssh"), reason=f"needs ssh: {COMPONENTS['ssh'].remedy}"),
    pytest.mark.skipif(not is_present("ray"), reason=f"needs ray: {COMPONENTS['ray'].remedy}"),
]

EXAMPLE = REPO / "examples" / "tune-spot"
EVERY = 4
"""Epochs between two checkpoints of the example."""
EPOCH_S, LEFT = 1.2, 10
"""Seconds of an epoch, and how many epochs a trial must still have, so that it cannot end before its node is gone."""


def _file() -> str:
    """The example's file, with the Python of this test and small object stores, as braces of a format."""
    lines = [line for line in (EXAMPLE / "cluster.yaml").read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("{", "{{").replace("}", "}}")
    for cpus in ("CPU: 0", "CPU: 1"):
        text = text.replace(cpus, f"{cpus}, GPU: 0, object_store_memory: 80000000")
    return f"{text}\npython: {{python}}\n"


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tune_spot", EXAMPLE / "tune.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _undisturbed() -> dict[float, float]:
    """The loss of each learning rate, in this process."""
    module = _example()
    found = {}
    for rate in module.RATES:
        trial = module.Classifier({"lr": rate, "epoch_s": 0.0})
        for _ in range(module.NUM_EPOCHS):
            result = trial.train()
        found[rate] = result["loss"]
    return found


class Output:
    """Collects what the script prints."""

    def __init__(self) -> None:
        self.text = b""

    def output(self, piece: bytes) -> None:
        self.text += piece

    def errors(self, piece: bytes) -> None:
        self.text += piece

    def note(self, text: str) -> None:
        self.text += text.encode()


class Sweep:
    """The sweep of the example, seen from here."""

    def __init__(self, lab: ScalingLab, folder: Path) -> None:
        self.lab, self.folder, self.host = lab, folder, ""
        self.head: ClusterNode = find_head(lab.home, lab.place, lab.archive)
        there = self.head.store_script("tune.py", (EXAMPLE / "tune.py").read_bytes())
        self.head.start("rates", NodeCommand((PYTHON, there, "--epoch-s", str(EPOCH_S), "--storage", "/tmp/sweeps")))

    def history(self) -> History:
        journal = SweepFolder(self.folder).head_journal
        journal.parent.mkdir(parents=True, exist_ok=True)
        answer = self.lab.host.shell.run_bytes(["sh", "-c", "cat /tmp/sweeps/rates/journal/head.wj || true"])
        journal.write_bytes(answer.out[: answer.out.rfind(b"\n") + 1])
        try:
            return read_history(self.folder)
        except NotFoundError:
            return History()

    def find_host_at_work(self) -> bool:
        """Return whether a trial has a checkpoint, has done more since, and is far from its end; `host` is where it runs."""
        last = _example().NUM_EPOCHS - LEFT
        running = [t for t in self.history().trials.values() if t.status is TrialStatus.RUNNING]
        self.host = next((trial.host for trial in running if EVERY < trial.iteration <= last), "")
        return bool(self.host)

    def end(self) -> str:
        output = Output()
        code = self.head.follow("rates", output)
        assert code == 0, output.text.decode()
        return output.text.decode()


def _take_away(lab: ScalingLab, machine: Machine, notice_s: float | None) -> None:
    if notice_s is None:
        lab.provider.call("lab.power-cut", ids=[machine.id])
    else:
        lab.provider.call("lab.notice", id=machine.id, kind="terminate", at=time.time() + notice_s)


def _repeated(trial: TrialHistory) -> int:
    reached = [report.iteration for report in trial.reports if report.attempt == 1][-1]
    restore = trial.attempts[1].restore
    return reached - (0 if restore is None else restore.iteration)


@pytest.mark.parametrize(
    "notice_s",
    [30.0, pytest.param(6.0, marks=pytest.mark.soak), None],
    ids=["notice", "short-notice", "none"],
)
def test_the_trial_of_a_node_that_is_taken_away_goes_on_elsewhere(notice_s: float | None, tmp_path: Path) -> None:
    with scaling_lab(tmp_path / "lab", _file()) as lab:
        lab.up()
        sweep = Sweep(lab, tmp_path / "sweep")
        lab.until(sweep.find_host_at_work, "a trial at work")
        _take_away(lab, next(each for each in lab.workers() if each.id == sweep.host), notice_s)
        printed = sweep.end()
        history = sweep.history()
        lab.down()
        assert lab.workers() == []
    losses: dict[float, Any] = {t.config["lr"]: (t.last or {}).get("loss") for t in history.trials.values()}
    assert losses == _undisturbed()
    best = min(losses, key=lambda rate: losses[rate])
    assert f"best lr {best:g} loss {losses[best]:.6f}" in printed
    (moved,) = [trial for trial in history.trials.values() if len(trial.attempts) > 1]
    assert moved.num_failures == 0
    assert moved.attempts[1].host != moved.attempts[0].host
    if notice_s is None:
        assert (moved.attempts[0].how, moved.num_interruptions) == ("lost", 1)
        assert _repeated(moved) <= EVERY
    else:
        assert (moved.attempts[0].how, moved.num_interruptions) == ("halted", 0)
        assert _repeated(moved) == 0
