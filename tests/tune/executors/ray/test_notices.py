"""Sweeps on a real Ray of two nodes, of which one is taken away: with a notice, and with none.

How short a notice may be depends on how busy the machine is: six seconds, which suffice on a quiet one, are left to soak.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.ray import LocalRay
from tests.tune.executors.ray.test_on_ray import _wait_until_dead
from tests.tune.executors.ray.trials import Climbs, Forgets
from windlass.tune.controller.controller import Controller
from windlass.tune.controller.journal import records
from windlass.tune.controller.journal.history import History, TrialHistory, read_history
from windlass.tune.controller.journal.stream import JournalStream
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.executors.protocol import Work
from windlass.tune.executors.ray import RayExecutor
from windlass.tune.folder import SweepFolder
from windlass.tune.schedulers.fifo import FIFO
from windlass.tune.search.basic_variant import BasicVariantGenerator
from windlass.tune.search.protocol import Objectives
from windlass.tune.space.primitives import grid_search
from windlass.tune.trial import Resources

pytestmark = pytest.mark.system

RATES = (0.05, 0.1, 0.2, 0.3, 0.4)
NOTICE_S, SHORT_S = 30.0, 6.0
EVERY = Climbs.HOLD - 1
LICENCE = Resources(bundles=({"licence": 1.0},))
"""The first node has room for one trial, the spot node for two."""


@pytest.fixture
def spot(ray_lab: LocalRay, ray: Any, tmp_path: Path) -> Iterator[SpotNode]:
    node = SpotNode(ray_lab, ray, tmp_path / "spot")
    try:
        yield node
    finally:
        node.end()


class SpotNode:
    """A node of Ray that can be taken away, and the part of its agent that matters here."""

    def __init__(self, lab: LocalRay, ray: Any, folder: Path) -> None:
        self.lab, self.ray, self.folder = lab, ray, folder
        self.is_up, self.notice_s = True, NOTICE_S
        self.gate = folder.with_name("gate")
        folder.mkdir()
        lab.add("spot", num_cpus=2, resources='{"licence": 2}', env={"WINDLASS_NODE_FOLDER": str(folder)})
        deadline = time.monotonic() + 300
        while not self._id():
            assert time.monotonic() < deadline, "the node has not joined"
            time.sleep(0.05)

    def _id(self) -> str:
        alive = (node for node in self.ray.nodes() if node["Alive"] and node["NodeName"] == "spot")
        return next((str(node["NodeID"]) for node in alive), "")

    def write_notice(self) -> None:
        fresh = self.folder / "notice.new"
        fresh.write_text(json.dumps({"at": time.time() + self.notice_s, "kind": "terminate"}))
        fresh.rename(self.folder / "notice.json")

    def drain(self) -> None:
        reasons = importlib.import_module("ray.core.generated.autoscaler_pb2").DrainNodeReason
        client = importlib.import_module("ray._raylet").GcsClient(address=self.lab.address)
        until_ms = int((time.time() + self.notice_s) * 1000)
        reason = reasons.Value("DRAIN_NODE_REASON_PREEMPTION")
        assert client.drain_node(self._id(), reason, "taken away", until_ms)[0]

    def end(self) -> None:
        if self.is_up:
            self.is_up = False
            self.lab.kill("spot")
            _wait_until_dead(self.ray, "spot")


class Taken:
    """Takes the node away once two trials are at work there; then kills it, when they have left or the notice is over.

    Without `begin` it is killed at once. Until then all trials hold, so that none is over before.
    """

    def __init__(self, spot: SpotNode, begin: Callable[[], None] | None) -> None:
        self.spot, self.begin = spot, begin
        self.began_at: float | None = None
        self.left_at: float | None = None

    def look(self, controller: Controller) -> None:
        running = controller.core.sweep.running.values()
        on_spot = [t for t in running if (t.last or {}).get("node") == "spot"]
        if self.began_at is None:
            if sum(trial.iteration >= Climbs.HOLD for trial in on_spot) == 2:
                self.began_at = time.monotonic()
                (self.begin or self.spot.end)()
                self.spot.gate.touch()
            return
        if self.left_at is None and not on_spot:
            self.left_at = time.monotonic()
        if self.spot.is_up and (self.left_at or time.monotonic() - self.began_at >= self.spot.notice_s):
            self.spot.end()


def _run(folder: Path, taken: Taken, trainable: type = Climbs) -> History:
    space = {"rate": grid_search(list(RATES)), "sleep_s": 0.5, "gate": str(taken.spot.gate)}
    outcome = Controller(
        settings=SweepSettings(
            name="notices",
            objectives=Objectives(metrics=("height",), is_max=(True,)),
            num_samples=1,
            max_failures=0,
            resources=LICENCE,
        ),
        space=space,
        searcher=BasicVariantGenerator(),
        scheduler=FIFO(),
        executor=RayExecutor(),
        work=Work(
            trainable=trainable,
            name="notices",
            folder=str(folder),
            storage=str(SweepFolder(folder).checkpoints),
            checkpoint_every=EVERY if trainable is Climbs else 0,
        ),
        folder=folder,
        on_turn=taken.look,
    ).run()
    assert outcome.is_over
    history = read_history(folder)
    assert {trial.status.value for trial in history.trials.values()} == {"TERMINATED"}
    assert all(trial.num_failures == 0 for trial in history.trials.values())
    heights = {trial.config["rate"]: trial.last["height"] for trial in history.trials.values() if trial.last}
    assert heights == {rate: _undisturbed(rate) for rate in RATES}
    return history


def _undisturbed(rate: float) -> float:
    height = 0.0
    for _ in range(Climbs.NUM_STEPS):
        height += rate * (10.0 - height)
    return height


def _moved(history: History) -> list[TrialHistory]:
    return [trial for trial in history.trials.values() if len(trial.attempts) > 1]


def _repeated(trial: TrialHistory) -> int:
    """How many iterations that counted were done again."""
    reached = [report.iteration for report in trial.reports if report.attempt == 1][-1]
    restore = trial.attempts[1].restore
    return reached - (0 if restore is None else restore.iteration)


def _starts_after_the_notice(folder: Path) -> set[str]:
    """On which nodes attempts ran that began after the notice."""
    found = JournalStream(SweepFolder(folder)).poll()
    noticed = next(number for number, record in enumerate(found) if record.kind == records.SLOT_NOTICED)
    later = found[noticed:]
    begun = {(r.data["trial"], r.data["attempt"]) for r in later if r.kind == records.TRIAL_STARTED}
    told = [r.data for r in later if r.kind == records.TRIAL_REPORTED]
    return {data["metrics"]["node"] for data in told if (data["trial"], data["attempt"]) in begun}


@pytest.mark.parametrize("notice_s", [NOTICE_S, pytest.param(SHORT_S, marks=pytest.mark.soak)])
def test_a_notice_moves_trials_from_a_checkpoint_of_this_moment(
    spot: SpotNode, tmp_path: Path, notice_s: float
) -> None:
    def begin() -> None:
        spot.write_notice()
        spot.drain()

    spot.notice_s, taken = notice_s, Taken(spot, begin)
    history = _run(tmp_path / "sweep", taken)
    assert not spot.is_up
    moved = _moved(history)
    assert len(moved) == 2
    assert [_repeated(trial) for trial in moved] == [0, 0]
    assert all((trial.attempts[0].how, trial.num_interruptions) == ("halted", 0) for trial in moved)
    assert _starts_after_the_notice(tmp_path / "sweep") == {"first"}
    assert taken.began_at is not None
    assert taken.left_at is not None
    assert taken.left_at - taken.began_at < notice_s, "it took longer than the notice"


def test_the_notice_of_the_agent_alone_suffices(spot: SpotNode, tmp_path: Path) -> None:
    history = _run(tmp_path / "sweep", Taken(spot, spot.write_notice))
    moved = _moved(history)
    assert len(moved) == 2
    assert [_repeated(trial) for trial in moved] == [0, 0]
    assert all(trial.num_interruptions == 0 for trial in moved)


def test_a_node_that_ray_drains_suffices(spot: SpotNode, tmp_path: Path) -> None:
    history = _run(tmp_path / "sweep", Taken(spot, spot.drain))
    moved = _moved(history)
    assert len(moved) == 2
    assert [_repeated(trial) for trial in moved] == [0, 0]
    assert all(trial.num_interruptions == 0 for trial in moved)
    assert _starts_after_the_notice(tmp_path / "sweep") == {"first"}


def test_a_class_that_cannot_save_begins_again_elsewhere(spot: SpotNode, tmp_path: Path) -> None:
    def begin() -> None:
        spot.write_notice()
        spot.drain()

    history = _run(tmp_path / "sweep", Taken(spot, begin), Forgets)
    moved = _moved(history)
    assert len(moved) == 2
    assert all(trial.attempts[1].restore is None for trial in moved)
    assert all((trial.num_failures, trial.num_interruptions) == (0, 0) for trial in moved)


def test_without_a_notice_trials_go_on_from_their_last_checkpoints(spot: SpotNode, tmp_path: Path) -> None:
    history = _run(tmp_path / "sweep", Taken(spot, None))
    moved = _moved(history)
    assert len(moved) == 2
    assert all(_repeated(trial) < EVERY for trial in moved)
    assert all((trial.attempts[0].how, trial.num_interruptions) == ("lost", 1) for trial in moved)
