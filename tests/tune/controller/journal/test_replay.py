"""A journal goes through the core again: by the short way of reports as by the long one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.tune.sim.sweeps import SPACE, Killer, Rising, Sweep, settings, world
from windlass.core.errors import PreconditionError
from windlass.record.frames import Record, encode
from windlass.tune.controller.core import Core
from windlass.tune.controller.journal.replay import Replay
from windlass.tune.controller.journal.stream import JournalStream
from windlass.tune.controller.restore import Extension, read_origin
from windlass.tune.executors.protocol import AttemptReported
from windlass.tune.folder import SweepFolder
from windlass.tune.schedulers import (
    FIFO,
    AsyncHyperBandScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    SweepScheduler,
)
from windlass.tune.search.basic_variant import BasicVariantGenerator
from windlass.tune.space.primitives import uniform
from windlass.tune.stopper.registry import as_stopper

TIME: dict[str, Any] = {"time_attr": "training_iteration"}
SCHEDULERS: dict[str, Callable[[], SweepScheduler]] = {
    "fifo": FIFO,
    "asha": lambda: AsyncHyperBandScheduler(**TIME, max_t=9, reduction_factor=2),
    "hyperband": lambda: HyperBandScheduler(**TIME, max_t=9),
    "median": lambda: MedianStoppingRule(**TIME, grace_period=2, min_samples_required=2),
    "pbt": lambda: PopulationBasedTraining(
        **TIME, perturbation_interval=2, hyperparam_mutations={"x": uniform(0.0, 1.0)}
    ),
}


def _swept(folder: Path, scheduler: Callable[[], SweepScheduler], monkeypatch: Any, stop: Any = None) -> Sweep:
    """A sweep with checkpoints, failures, and a head that was killed with its workers."""
    sweep = Sweep(
        folder=folder,
        world=world(1, 3, Rising(6, fails_below=0.2), outlives_heads=False, checkpoint_every=2),
        scheduler=scheduler,
        stopper=lambda: as_stopper(stop),
        settings=settings(num_samples=8, max_failures=1),
    )
    assert sweep.run_with_kills([Killer(at=40)], monkeypatch).is_over
    return sweep


def _replayed(sweep: Sweep, found: list[Record]) -> tuple[Core, Replay]:
    searcher = BasicVariantGenerator()
    searcher.open(space=SPACE, objectives=sweep.settings.objectives, seed=0, num_samples=8)
    scheduler = sweep.scheduler()
    scheduler.metric, scheduler.mode = "score", "max"
    core = Core(sweep.settings, searcher=searcher, scheduler=scheduler, stopper=sweep.stopper())
    replay = Replay(core)
    replay.take(found)
    replay.finish()
    return core, replay


def _long_way(self: Core, trial: str, attempt: int, metrics: Any, saved: str, at: float) -> None:
    self.apply(AttemptReported(trial=trial, attempt=attempt, metrics=metrics, saved=saved), at)


def _all_of(core: Core, replay: Replay) -> dict[str, Any]:
    state = core.state
    return {
        "trials": {trial.id: asdict(trial) for trial in state.table.trials.values()},
        "queues": [list(queue) for queue in (state.table.pending, state.table.paused, state.table.running)],
        "counts": state.table.counts,
        "open_attempts": {trial: asdict(attempt) for trial, attempt in state.open_attempts.items()},
        "awaited_saves": {trial: asdict(save) for trial, save in state.awaited_saves.items()},
        "lines": state.lines,
        "drops": list(replay.drops),
        "numbers": (core.num_reports, core.num_told, core.at, core.ended_why, core.reached, core.limit),
        "usage": [getattr(state.usage, name) for name in state.usage.__slots__],
        "scheduler": repr(sorted(_plain(vars(core.scheduler)).items())),
    }


def _plain(value: Any) -> Any:
    """An object as dictionaries, without the addresses that its `repr` would have."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "__dict__") and not callable(value):
        return _plain(vars(value))
    return value if isinstance(value, (str, int, float, type(None))) else str(type(value))


@pytest.mark.parametrize("stop", [None, {"training_iteration": 4}], ids=["", "stopper"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_reports_by_the_short_way_leave_what_events_leave_wherever_the_journal_ends(
    name: str, stop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = _swept(tmp_path, SCHEDULERS[name], monkeypatch, stop)
    assert {record.data["how"] for record in sweep.records() if record.kind == "trial-ended"} >= {"failed", "lost"}
    for num in range(0, len(sweep.records()) + 1, 5):
        short = _all_of(*_replayed(sweep, sweep.records()[:num]))
        with monkeypatch.context() as patch:
            patch.setattr(Core, "apply_report", _long_way)
            assert _all_of(*_replayed(sweep, sweep.records()[:num])) == short, f"after record {num}"


@pytest.mark.parametrize(
    "change", [{"decision": "stop", "by": "scheduler", "why": "so"}, {"attempt": 7}, {"trial": "00001"}]
)
def test_a_report_that_would_be_decided_otherwise_is_refused(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = _swept(tmp_path, FIFO, monkeypatch)
    found = sweep.records()
    report = next(record for record in found if record.kind == "trial-reported" and record.data["trial"] == "00000")
    report.data.update(change)
    with pytest.raises(PreconditionError) as caught:
        _replayed(sweep, found)
    assert caught.value.code == "sweep-journal-differs"


def test_requests_are_found_among_records_that_have_their_words(tmp_path: Path) -> None:
    sweep = Sweep(folder=tmp_path, world=world(1, 2, Rising(3)), settings=settings(num_samples=2))
    sweep.run()
    line = {
        "kind": "sweep-requested",
        "what": "extend",
        "settings": {"num_samples": 99},
        "space": None,
        "stopper": None,
    }
    sweep.run(extend=Extension(settings={"num_samples": 3}), described=None)
    journal = SweepFolder(tmp_path).head_journal
    fake = Record("trial-suggested", "head", 999, 1.0, {"trial": "00009", "config": line, "assigned": {}})
    torn = encode(Record("sweep-requested", "head", 1000, 1.0, {key: line[key] for key in line if key != "kind"}))
    whole = journal.read_bytes()
    for tail in (b"", encode(fake), encode(fake) + torn[:-1], encode(fake) + torn[:-9] + b"\n"):
        journal.write_bytes(whole + tail)
        beginning = read_origin(SweepFolder(tmp_path), settings())
        assert beginning is not None
        assert beginning.original.num_samples == 2
        assert beginning.settings.num_samples == 3
    journal.write_bytes(whole + encode(fake) + torn)
    beginning = read_origin(SweepFolder(tmp_path), settings())
    assert beginning is not None
    assert beginning.settings.num_samples == 99
    assert len(JournalStream(SweepFolder(tmp_path)).poll()) == whole.count(b"\n") + 2
