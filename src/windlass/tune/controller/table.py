"""Table of a sweep's trials by status, with operations in constant time, even for 100,000 trials."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, ValuesView
from itertools import chain

from windlass.tune.trial import Trial, TrialStatus

__all__ = ["PendingTrials", "TrialTable"]

_PENDING, _PAUSED, _RUNNING = (
    TrialStatus.PENDING,
    TrialStatus.PAUSED,
    TrialStatus.RUNNING,
)  # looking up an enum member is slow before Python 3.12


class PendingTrials(Mapping[str, Trial]):
    """Trials that may start: first those that lost their worker, then unpaused ones, then new or failed ones."""

    __slots__ = ("back", "fresh", "lost")

    def __init__(self) -> None:
        self.lost: dict[str, Trial] = {}
        self.back: dict[str, Trial] = {}
        self.fresh: dict[str, Trial] = {}

    def __getitem__(self, trial: str) -> Trial:
        return self._queue(trial)[trial]

    def __iter__(self) -> Iterator[str]:
        yield from self.lost
        yield from self.back
        yield from self.fresh

    def __len__(self) -> int:
        return len(self.lost) + len(self.back) + len(self.fresh)

    def values(self) -> ValuesView[Trial]:
        """Return the trials in the same order, without a lookup for each trial."""
        return _Waiting(self)

    def __contains__(self, trial: object) -> bool:
        return trial in self.lost or trial in self.back or trial in self.fresh

    def remove(self, trial: Trial) -> None:
        """Remove a trial from the queue that holds it."""
        del self._queue(trial.id)[trial.id]

    def _queue(self, trial: object) -> dict[str, Trial]:
        return self.lost if trial in self.lost else self.back if trial in self.back else self.fresh


class _Waiting(ValuesView[Trial]):
    def __init__(self, pending: PendingTrials) -> None:
        super().__init__(pending)
        self._pending = pending

    def __iter__(self) -> Iterator[Trial]:
        pending = self._pending
        return chain(pending.lost.values(), pending.back.values(), pending.fresh.values())


class TrialTable:
    """Table of all trials, and of the live ones by status; only `move` changes a status.

    Attributes:
        counts: number of trials in each status.
        live: trials that have not ended, in the order in which they became live.
    """

    __slots__ = ("counts", "live", "paused", "pending", "running", "trials")

    def __init__(self) -> None:
        self.trials: dict[str, Trial] = {}
        self.live: dict[str, Trial] = {}
        self.pending = PendingTrials()
        self.paused: OrderedDict[str, Trial] = OrderedDict()
        self.running: OrderedDict[str, Trial] = OrderedDict()
        self.counts = dict.fromkeys(TrialStatus, 0)

    def add(self, trial: Trial) -> None:
        """Add a new trial, which is pending."""
        self.trials[trial.id] = trial
        self.live[trial.id] = trial
        self.pending.fresh[trial.id] = trial
        self.counts[_PENDING] += 1

    def move(
        self, trial: Trial, status: TrialStatus, why: str = "", *, is_back: bool = False, is_lost: bool = False
    ) -> None:
        """Change the status of a trial, and append the trial to the queue for that status.

        Args:
            is_back: whether a pending trial goes before the trials that never ran.
            is_lost: whether it lost its slot, so that it goes before all other trials.
        """
        self._take_out(trial)
        self.counts[trial.status] -= 1
        self.counts[status] += 1
        trial.status = status
        trial.why = why
        if status is _PENDING:
            pending = self.pending
            (pending.lost if is_lost else pending.back if is_back else pending.fresh)[trial.id] = trial
        elif status is _PAUSED:
            self.paused[trial.id] = trial
        elif status is _RUNNING:
            self.running[trial.id] = trial
        if status.is_over:
            self.live.pop(trial.id, None)
        else:
            self.live.setdefault(trial.id, trial)

    def _take_out(self, trial: Trial) -> None:
        if trial.status is _PENDING:
            self.pending.remove(trial)
        elif trial.status is _PAUSED:
            del self.paused[trial.id]
        elif trial.status is _RUNNING:
            del self.running[trial.id]
