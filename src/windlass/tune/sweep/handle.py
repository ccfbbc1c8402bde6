"""Handle for a sweep in Python: read it, wait for it, stop it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.errors import NotFoundError, PreconditionError, UsageError, WaitTimeoutError
from windlass.runs.home import Home
from windlass.tune.folder import SweepFolder
from windlass.tune.sweep.finding import SweepRow, SweepWatch, find_sweep, has_head, row_of

if TYPE_CHECKING:
    from windlass.tune.controller.journal.history import History, TrialHistory

__all__ = ["SweepHandle"]

_LOOK_EVERY_S = 0.2


class SweepHandle:
    """Handle for a sweep.

    `SweepHandle.find` accepts a name, the start of a name, `last`, or a folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<Sweep {self.name}>"

    @classmethod
    def find(cls, ref: str, home: Home | None = None) -> SweepHandle:
        """Find a sweep; raise NotFoundError or UsageError unless `ref` matches exactly one."""
        return cls(find_sweep(ref, home))

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.folder.name

    @property
    def row(self) -> SweepRow:
        """Current state, counts and best trial of the sweep."""
        return row_of(self.folder)

    @property
    def history(self) -> History:
        """Current history according to the journal; raises NotFoundError before the first head."""
        from windlass.tune.controller.journal.history import read_history  # lazy: requests to the head do not need it

        return read_history(self.folder)

    @property
    def has_journal(self) -> bool:
        """Return whether a head has ever begun."""
        return SweepFolder(self.folder).head_journal.exists()

    @property
    def has_head(self) -> bool:
        """Return whether the sweep has a head."""
        return has_head(self.folder)

    def trial(self, ref: str) -> TrialHistory:
        """Return a trial, given its id with or without leading zeros; raise NotFoundError if there is none."""
        trials = self.history.trials
        name = f"{int(ref):05d}" if ref.isdigit() else ref
        if name not in trials:
            there = f"trials are 0 to {len(trials) - 1}" if trials else "it has no trials yet"
            raise NotFoundError(f"sweep {self.name} has no trial `{ref}`", hint=there, code="sweep-not-found")
        return trials[name]

    def best(self, metric: str = "", mode: str = "") -> TrialHistory:
        """Return the trial whose newest report has the best value of the metric.

        Args:
            metric: metric to compare; by default the sweep's first.
            mode: `min` or `max`; by default the sweep's mode for this metric.

        Raises:
            NotFoundError: no trial reported the metric (`unknown-metric`).
            UsageError: it is not a metric of the sweep and no mode was given, or neither the sweep nor the caller
                names a metric (`unknown-metric`).
        """
        history = self.history
        modes = dict(zip(history.objectives.metrics, history.objectives.is_max, strict=True))
        metric = metric or next(iter(modes), "")
        reported = sorted({name for trial in history.trials.values() for name in trial.last or {}})
        known = f"reported are: {', '.join(reported)}" if reported else "no trial has reported yet"
        if not metric:
            message = f"the sweep {self.name} has no metric to compare trials by"
            raise UsageError(message, hint=f"pass one: --metric loss --mode min; {known}", code="unknown-metric")
        scored = [
            (value, trial)
            for trial in history.trials.values()
            if isinstance(value := (trial.last or {}).get(metric), int | float) and value == value  # noqa: PLR0124
        ]
        if not scored:
            raise NotFoundError(f"no trial of {self.name} has a `{metric}`", hint=known, code="unknown-metric")
        if not mode and metric not in modes:
            message = f"`{metric}` is not a metric of the sweep {self.name}: unknown mode"
            raise UsageError(message, hint="pass --mode min or --mode max", code="unknown-metric")
        pick = max if mode == "max" or (not mode and modes[metric]) else min
        return pick(scored, key=lambda pair: pair[0])[1]

    def run_of(self, trial: str, attempt: int) -> str:
        """Return the run id of an attempt, or an empty string if trials are not runs."""
        from windlass.tune.executors.runs.trial_template import (  # lazy: many sweeps do not need it
            TRIAL_TEMPLATE,
            read_trial_template,
        )
        from windlass.tune.sweep.record import read_record

        if not (self.folder / TRIAL_TEMPLATE).exists() or read_record(self.folder).sweep.trainable:
            return ""
        return read_trial_template(self.folder).run_id(trial, attempt)

    # --- requests

    def stop(self, trial: str = "", *, why: str = "a user stopped it") -> None:
        """Stop a trial or the whole sweep.

        The sweep's head, or the next one, does so within a second.
        """
        from windlass.tune.controller.requests import ask  # lazy: as above

        facts: Mapping[str, Any] = {"trial": self.trial(trial).id} if trial else {}
        ask(SweepFolder(self.folder), "stop-trial" if trial else "stop-all", why=why, **facts)

    def wait(self, timeout_s: float | None = None) -> SweepRow:
        """Block until the sweep is over.

        Raises:
            WaitTimeoutError: it was not over after `timeout_s`; it is still running.
            PreconditionError: it has no head, so nothing would happen.
        """
        watch = SweepWatch(self.folder)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        without_head_since: float | None = None
        while True:
            row = watch.row()
            if row.state == "over":
                return row
            now = time.monotonic()
            if row.state == "running":
                without_head_since = None
            elif without_head_since is None:
                without_head_since = now
            elif now - without_head_since > 60.0:
                raise PreconditionError(
                    f"sweep {self.name} has no head", hint=f"windlass sweep resume {self.name}", code="sweep-no-head"
                )
            if deadline is not None and now >= deadline:
                raise WaitTimeoutError(
                    f"sweep {self.name} had not ended after {timeout_s:g} s",
                    hint="it is still running; wait longer, or stop it",
                    code="timed-out",
                )
            time.sleep(_LOOK_EVERY_S)
