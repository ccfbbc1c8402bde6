"""Journals of sweeps that never ran, by the record kinds of the controller, for tests of everything that reads one."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

from windlass.record.frames import Record, encode
from windlass.tune.controller.journal.history import History
from windlass.tune.controller.settings import RetentionPolicy, SweepSettings, objectives_to_data
from windlass.tune.folder import SweepFolder
from windlass.tune.results.columns import flatten
from windlass.tune.search.protocol import Objectives

__all__ = ["Journal", "asha_journal", "pbt_journal", "random_journal"]

BEGIN = 1_700_000_000.0


class Journal:
    """Records one after another, `step_s` of wall time apart; `append` writes what is new to a folder."""

    def __init__(
        self,
        *,
        metrics: tuple[str, ...] = ("loss",),
        modes: tuple[str, ...] = ("min",),
        step_s: float = 0.5,
        **keep: Any,
    ) -> None:
        self.records: list[Record] = []
        self.now = BEGIN
        self.step_s = step_s
        self._num_written = self._num_trials = 0
        self._attempts: dict[str, int] = {}
        self._times: dict[str, float] = {}
        objectives = Objectives(metrics=metrics, is_max=tuple(mode == "max" for mode in modes))
        settings = SweepSettings(name="digits", objectives=objectives, num_samples=8, keep=RetentionPolicy(**keep))
        self.add(
            "sweep-created",
            name="digits",
            objectives=objectives_to_data(objectives),
            settings=settings.to_data(),
            space={},
            scheduler={"type": "FIFO"},
            searcher={"type": "Random"},
            stopper=None,
            trainable={"type": "train:Trainer"},
            version="0",
        )
        self.add("sweep-opened", head={"host": "node1", "pid": 4242}, number=1)

    def add(self, kind: str, **data: Any) -> Record:
        record = Record(kind, "head", len(self.records) + 1, round(self.now, 6), data)
        self.records.append(record)
        self.now += self.step_s
        return record

    def suggest(self, config: dict[str, Any]) -> str:
        trial = f"{self._num_trials:05d}"
        self._num_trials += 1
        self.add("trial-suggested", trial=trial, config=config, assigned=flatten(config), note=None)
        return trial

    def start(self, trial: str, restore: dict[str, Any] | None = None, why: str = "") -> None:
        attempt = self._attempts[trial] = self._attempts.get(trial, 0) + 1
        self.add("trial-chosen", trial=trial, attempt=attempt, restore=restore, **({"why": why} if why else {}))
        slot = f"slot-{int(trial) % 4}"
        self.add("trial-started", trial=trial, attempt=attempt, slot=slot, host="node1", pid=100 + int(trial))

    def report(self, trial: str, iteration: int, /, *, acts: Any = (), saved: str = "", **metrics: Any) -> None:
        extra: dict[str, Any] = {key: metrics.pop(key) for key in ("decision", "why", "by") if key in metrics}
        extra |= {"acts": list(acts)} if acts else {}
        extra |= {"saved": saved} if saved else {}
        self._times[trial] = self._times.get(trial, 0.0) + 1.5
        flat = {**flatten(metrics), "training_iteration": iteration, "time_total_s": self._times[trial]}
        self.add("trial-reported", trial=trial, attempt=self._attempts[trial], metrics=flat, **extra)

    def save(self, trial: str, iteration: int) -> str:
        path = f"checkpoints/{trial}/{iteration:06d}-{self._attempts[trial]}"
        self.add("trial-saved", trial=trial, attempt=self._attempts[trial], iteration=iteration, path=path)
        return path

    def end(self, trial: str, *, how: str = "done", status: str = "TERMINATED", error: str = "", **data: Any) -> None:
        extra = {"error": error, "error_kind": data.pop("error_kind", "ValueError")} if error else {}
        counts = {"failures": int(how == "failed"), "interruptions": int(how == "lost")}
        attempt = self._attempts[trial]
        self.add("trial-ended", trial=trial, attempt=attempt, how=how, status=status, **counts, **extra, **data)

    def finish(self) -> None:
        self.add("sweep-ended", why="all trials are over", counts={})

    @property
    def history(self) -> History:
        history = History()
        for record in self.records:
            history.add(record)
        return history

    def append(self, folder: Path, *, num_records: int | None = None) -> None:
        """Write the next records (all by default) to the journal of a sweep's folder."""
        path = SweepFolder(folder).head_journal
        path.parent.mkdir(parents=True, exist_ok=True)
        last = len(self.records) if num_records is None else self._num_written + num_records
        with path.open("ab") as file:
            file.write(b"".join(encode(record) for record in self.records[self._num_written : last]))
        self._num_written = min(last, len(self.records))


def random_journal(*, seed: int = 0, num_trials: int = 8, num_reports: int = 6, is_odd: bool = True) -> Journal:
    """Trials with loss and accuracy; if odd: nested names, NaN, an error, a lost worker, and one that never reported."""
    random, journal = Random(seed), Journal(metrics=("loss", "size"), modes=("min", "min"))
    for number in range(num_trials):
        config: dict[str, Any] = {
            "lr": 10 ** random.uniform(-5, -1),
            "model": {"layers": random.choice([2, 4, 8])},
            "act": "relu",
        }
        trial = journal.suggest(config)
        if is_odd and number == 6:
            continue
        journal.start(trial)
        for iteration in range(1, random.randint(1, num_reports) + 1):
            loss = abs(math.log10(config["lr"]) + 3) + 1 / iteration + random.random() / 10
            value = math.nan if is_odd and number == 3 else loss
            size = config["model"]["layers"] * 10.0
            journal.report(trial, iteration, loss=value, eval={"accuracy": 1 / (1 + loss)}, size=size)
            if iteration % 2 == 0:
                journal.save(trial, iteration)
            if is_odd and number == 4 and iteration == 2:
                journal.end(trial, how="lost", status="PENDING", error="the node went away", error_kind="")
                restore = {"trial": trial, "iteration": 2, "path": f"checkpoints/{trial}/000002-1"}
                journal.start(trial, restore, "its worker was lost")
        if is_odd and number == 5:
            journal.end(trial, how="failed", status="ERROR", error='Traceback:\n  File "t.py"\nValueError: bad lr')
        else:
            journal.end(trial)
    journal.finish()
    return journal


def asha_journal(*, num_trials: int = 27, seed: int = 1) -> Journal:
    """Stopped at rungs 1, 3, 9, 27 as ASHA would."""
    random, journal = Random(seed), Journal(metrics=("accuracy",), modes=("max",))
    rungs: dict[int, list[float]] = {1: [], 3: [], 9: []}
    for _ in range(num_trials):
        lr = 10 ** random.uniform(-5, -1)
        trial = journal.suggest({"lr": lr, "layers": random.choice([2, 4, 8]), "act": random.choice(["relu", "gelu"])})
        journal.start(trial)
        for iteration in range(1, 28):
            top = 0.95 - abs(math.log10(lr) + 3) / 5
            accuracy = top * (1 - math.exp(-iteration / 6)) + random.random() / 50
            others = rungs.get(iteration)
            is_stop = False
            if others is not None:
                is_stop = len(others) > 1 and accuracy < sorted(others)[len(others) * 2 // 3]
                others.append(accuracy)
            extra = (
                {"decision": "stop", "by": "scheduler", "why": f"below the top third at {iteration}"} if is_stop else {}
            )
            journal.report(trial, iteration, accuracy=accuracy, **extra)
            if is_stop:
                break
        journal.end(trial, how="halted" if is_stop else "done")
    journal.finish()
    return journal


def pbt_journal(*, num_trials: int = 4, num_rounds: int = 5, seed: int = 2) -> Journal:
    """A population of which the last is overtaken by the first after every round of four reports."""
    random, journal = Random(seed), Journal(metrics=("score",), modes=("max",))
    configs = {journal.suggest({"lr": 10 ** random.uniform(-4, -1), "momentum": 0.9}): 0.0 for _ in range(num_trials)}
    rates = {trial: journal.records[2 + number].data["config"]["lr"] for number, trial in enumerate(configs)}
    for trial in configs:
        journal.start(trial)
    for turn in range(num_rounds):
        for iteration in range(turn * 4 + 1, turn * 4 + 5):
            for trial in list(configs):
                configs[trial] += 1 - abs(math.log10(rates[trial]) + 2) / 3
                journal.report(trial, iteration, score=configs[trial])
        last, first = (pick(configs, key=configs.__getitem__) for pick in (min, max))
        path = journal.save(first, turn * 4 + 4)
        source = {"trial": first, "iteration": turn * 4 + 4, "path": path}
        rate = rates[first] * random.choice([0.8, 1.2])
        config = {"lr": rate, "momentum": 0.9}
        act = {"act": "exploit", "trial": last, "config": config, "assigned": config, "source": source}
        tag = f"{int(last)}@perturbed[lr={rate:.4f}]"
        why = f"it is in the lower quarter at {configs[last]:.3g}"
        journal.report(
            last,
            turn * 4 + 5,
            score=configs[last],
            decision="noop",
            by="scheduler",
            why=why,
            acts=[{**act, "tag": tag, "why": why}],
        )
        journal.end(last, how="halted", status="PAUSED")
        configs[last], rates[last] = configs[first], rate
        journal.start(last, source)
    for trial in configs:
        journal.end(trial)
    journal.finish()
    return journal
