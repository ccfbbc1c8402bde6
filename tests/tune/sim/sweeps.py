"""Whole sweeps under the virtual clock: with heads that are killed at a record of the journal, and workers at any time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.record.frames import Record
from windlass.testing.virtual_trials import Curve, VirtualExecutor, VirtualTrialError, VirtualWorld
from windlass.tune.controller.controller import Controller, HeadOutcome
from windlass.tune.controller.journal.stream import JournalStream
from windlass.tune.controller.journal.writer import HeadJournal
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.executors.protocol import Work
from windlass.tune.folder import SweepFolder
from windlass.tune.schedulers import FIFO, SweepScheduler
from windlass.tune.search.basic_variant import BasicVariantGenerator
from windlass.tune.search.protocol import Objectives, SearchAlgorithm
from windlass.tune.space.primitives import uniform
from windlass.tune.trial import Metrics


class Rising:
    """Curves that rise by their own rate and cross; a trial that draws below `fails_below` fails at iteration 3."""

    def __init__(self, num_steps: int = 9, fails_below: float = 0.0) -> None:
        self._num_steps = num_steps
        self._fails_below = fails_below

    def duration_s(self, config: Mapping[str, Any], iteration: int) -> float:
        return 1.0 + 2.0 * float(config["x"]) + 0.01 * iteration

    def step(self, state: float, config: Mapping[str, Any], iteration: int) -> tuple[float, Metrics]:
        x = float(config["x"])
        if x < self._fails_below and iteration == 3:
            raise VirtualTrialError(f"x is {x}")
        state += x * (1.0 - 0.05 * iteration) + 0.3 * float(config["y"])
        return state, {"score": state, "done": iteration >= self._num_steps}


SPACE = {"x": uniform(0.0, 1.0), "y": uniform(0.0, 1.0)}


def settings(**more: Any) -> SweepSettings:
    given: dict[str, Any] = {
        "name": "sim",
        "objectives": Objectives(metrics=("score",), is_max=(True,)),
        "num_samples": 8,
    }
    return SweepSettings(**{**given, **more})


class HeadKilledError(BaseException):
    """The head was killed."""


@dataclass(slots=True)
class Killer:
    """Kills a head at its n-th record: right behind it is written, before anything that follows from it leaves.

    Attributes:
        at: number of the record in the whole journal; 0: never.
        before: die before the write instead: everything of this turn is lost.
    """

    at: int = 0
    before: bool = False


@dataclass(slots=True)
class Sweep:
    """A sweep that can be run, killed and restored; parts are made anew for every head."""

    folder: Path
    world: VirtualWorld
    scheduler: Callable[[], SweepScheduler] = FIFO
    searcher: Callable[[], SearchAlgorithm] = BasicVariantGenerator
    stopper: Callable[[], Any] = lambda: None
    settings: SweepSettings = field(default_factory=settings)
    on_turn: Callable[[Controller], None] | None = None

    def controller(self, **more: Any) -> Controller:
        arguments: dict[str, Any] = {
            "settings": self.settings,
            "space": SPACE,
            "searcher": self.searcher(),
            "scheduler": self.scheduler(),
            "stopper": self.stopper(),
            "executor": VirtualExecutor(self.world),
            "work": Work(trainable=Rising, name="sim", folder=str(self.folder), storage=str(self.folder)),
            "folder": self.folder,
            "clock": self.world.clock,
            "drop": lambda path: self.world.checkpoints.pop(path, None),
            "on_turn": self.on_turn,
            **more,
        }
        return Controller.restore(**arguments) if self.records() else Controller(**arguments)

    def run(self, **more: Any) -> HeadOutcome:
        return self.controller(**more).run()

    def run_with_kills(self, killers: list[Killer], monkeypatch: Any) -> HeadOutcome:
        """Run with a head for each killer, then to the end."""
        for killer in killers:
            with monkeypatch.context() as patch:
                _arm(patch, killer, self.world)
                try:
                    return self.run()
                except HeadKilledError:
                    pass
        return self.run()

    def records(self) -> list[Record]:
        return JournalStream(SweepFolder(self.folder)).poll()


def _arm(patch: Any, killer: Killer, world: VirtualWorld) -> None:
    write = HeadJournal.write

    def write_and_die(self: HeadJournal) -> None:
        num_over = self.seq - killer.at
        if not killer.at or num_over < 0 or not self._lines:
            write(self)
            return
        if killer.before:
            self._lines.clear()
        else:
            del self._lines[len(self._lines) - num_over :]
            write(self)
        world.kill_head()  # first: a killed head closes nothing
        raise HeadKilledError

    patch.setattr(HeadJournal, "write", write_and_die)


def decisions(records: list[Record]) -> list[str]:
    """What was decided, in order, without the numbers of attempts and the times."""
    found = []
    for record in records:
        if record.kind in ("trial-reported", "trial-suggested", "limit-reached"):
            data = {key: value for key, value in record.data.items() if key not in ("attempt", "saved")}
            found.append(f"{record.kind} {json.dumps(_plain(data), sort_keys=True)}")
    return found


def _plain(value: Any) -> Any:
    """Without the paths of checkpoints, which name attempts."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items() if key != "path"}
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


def check_promises(sweep: Sweep) -> None:
    """No acknowledged report is missing in the journal, and nothing that was over ran again."""
    reported: dict[str, int] = {}
    over: set[str] = set()
    for record in sweep.records():
        data = record.data
        if record.kind == "trial-reported":
            reported[data["trial"]] = max(reported.get(data["trial"], 0), data["metrics"]["training_iteration"])
            if data.get("decision") == "stop":
                over.add(data["trial"])
        elif record.kind == "trial-chosen":
            assert data["trial"] not in over, f"trial {data['trial']} was finished and ran again"
        elif record.kind == "trial-ended" and data["status"] in ("TERMINATED", "ERROR"):
            over.add(data["trial"])
    for trial, _, iteration in sweep.world.acknowledged:
        assert reported.get(trial, 0) >= iteration, f"report {iteration} of trial {trial} was acknowledged and is lost"


def world(num_nodes: int = 2, num_slots: int = 2, curve: Curve | None = None, **more: Any) -> VirtualWorld:
    slots = [f"node{node}/{slot}" for node in range(num_nodes) for slot in range(num_slots)]
    return VirtualWorld(curve or Rising(), slots, **more)
