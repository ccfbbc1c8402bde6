"""Engine without a model, at the times of a clock that may be a fake one: scripted lengths, delays and deaths.

Every token is equally likely. A sample's tokens depend on its seed, group and member, as in a real engine; how long it is and
how long it takes depend on the script. For simulations and tests of what stands around an engine; does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windlass.post.rollout.engine import EngineError, EngineFacts, OpenWork
from windlass.post.rollout.row import OpenRow, cancelled_sample
from windlass.post.rollout.streams import uniform
from windlass.post.rollout.waiting import WaitingWork, check_request, check_work

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.core.clock import Clock
    from windlass.post.rollout.types import Finish, Sample, SampleId, SampleRequest, ScoreRequest

__all__ = ["FakeEngine", "Script"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Script of a fake engine, as a function of its work.

    Attributes:
        num_tokens: length at which a sample stops by itself; None: at a stop id or its limit only.
        seconds_per_token: time between two tokens of a sample.
        delay_s: time from a free slot to the first token's begin.
        load_s: time that a load takes.
        dies_at_s: time of the clock at which the engine dies; None: never.
    """

    num_tokens: Callable[[SampleRequest], int | None] = field(default=lambda work: None)
    seconds_per_token: Callable[[SampleRequest], float] = field(default=lambda work: 0.01)
    delay_s: Callable[[SampleRequest], float] = field(default=lambda work: 0.0)
    load_s: float = 0.0
    dies_at_s: float | None = None


@dataclass(slots=True, kw_only=True)
class _Running:
    row: OpenRow
    next_s: float
    token_s: float


class FakeEngine:
    """Produces random tokens at scripted times; waiting sleeps on the clock."""

    def __init__(
        self,
        clock: Clock,
        script: Script | None = None,
        *,
        version: int = 0,
        num_slots: int = 4,
        max_length: int = 64,
        max_open: int | None = None,
        vocab_size: int = 61,
    ) -> None:
        self._clock, self._script = clock, script or Script()
        self._facts = EngineFacts(
            name="fake",
            num_slots=num_slots,
            max_length=max_length,
            max_open=max_open or 4 * num_slots,
            vocab_size=vocab_size,
            has_stop_texts=False,
            has_raw_logp=True,
            is_deterministic=True,
            has_in_flight_update=True,
        )
        self._version = version
        self._waiting = WaitingWork()
        self._running: dict[SampleId, _Running] = {}
        self._done: list[Sample] = []

    @property
    def facts(self) -> EngineFacts:
        """Return what this engine can do."""
        return self._facts

    def version(self) -> int:
        """Return the version of the loaded weights."""
        return self._version

    def submit(self, work: Sequence[SampleRequest]) -> int:
        """Take work from the front of the list and return how many."""
        self._advance(self._clock.monotonic())
        check_work(
            work,
            vocab_size=self._facts.vocab_size,
            max_length=self._facts.max_length,
            open_ids={*self._running, *(item.id for item in work if item.id in self._waiting)},
            can_decode=False,
        )
        taken = work[: max(0, self._facts.max_open - len(self._running) - len(self._waiting))]
        for item in taken:
            self._waiting.add(item, self._clock.monotonic())
        self._fill(self._clock.monotonic())
        return len(taken)

    def poll(self, timeout_s: float) -> Sequence[Sample]:
        """Return finished samples; sleeps until the next one ends, for `timeout_s` at most."""
        self._advance(self._clock.monotonic())
        deadline_s = self._clock.monotonic() + timeout_s
        while not self._done and self._running and self._clock.monotonic() < deadline_s:
            next_s = min(running.next_s for running in self._running.values())
            self._clock.sleep(max(0.0, min(next_s, deadline_s) - self._clock.monotonic()))
            self._advance(self._clock.monotonic())
        done, self._done = self._done, []
        return done

    def cancel(self, ids: Collection[SampleId]) -> None:
        """End open samples; `poll` returns what they have so far."""
        now_s = self._clock.monotonic()
        self._advance(now_s)
        for sample in dict.fromkeys(ids):
            if sample in self._running:
                self._leave(sample, "cancelled", now_s)
            elif sample in self._waiting:
                work, submitted_s = self._waiting.remove(sample)
                self._done.append(cancelled_sample(work, now_s - submitted_s))
        self._fill(now_s)

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[tuple[float, ...]]:
        """Return the same log-probability for every token."""
        self._advance(self._clock.monotonic())
        for request in requests:
            check_request(request, vocab_size=self._facts.vocab_size, max_length=self._facts.max_length)
        return [(self._logp,) * (len(request.ids) - request.start) for request in requests]

    def load(self, weights: Mapping[str, Tensor], version: int, *, open_work: OpenWork = "recompute") -> None:
        """Set the version; takes the script's time, in which samples stand still."""
        self._advance(self._clock.monotonic())
        self._clock.sleep(self._script.load_s)
        self._version = version
        for running in self._running.values():
            running.row.mark_load(version, is_cache_kept=open_work == "keep")
            running.next_s += self._script.load_s
        self._fill(self._clock.monotonic())

    def close(self) -> None:
        """Drop open work."""
        self._waiting.clear()
        self._running.clear()
        self._done = []

    @property
    def _logp(self) -> float:
        return -math.log(self._facts.vocab_size)

    def _advance(self, now_s: float) -> None:
        """Produce the tokens that are due, in the order of their times."""
        dies_at_s = self._script.dies_at_s
        if dies_at_s is not None and now_s >= dies_at_s:
            self.close()
            raise EngineError(f"the fake engine died at {dies_at_s:.3f} s", hint="start another engine")
        self._fill(now_s)
        while due := [running for running in self._running.values() if running.next_s <= now_s]:
            running = min(due, key=lambda item: (item.next_s, item.row.work.id))
            self._add_token(running)

    def _add_token(self, running: _Running) -> None:
        row, time_s = running.row, running.next_s
        token = int(uniform(row.key, row.position) * self._facts.vocab_size)
        finish = row.add(token, self._logp, self._logp)
        if finish is None and self._script.num_tokens(row.work) == len(row.ids):
            finish = "stop"
        running.next_s += running.token_s
        if finish is not None:
            self._leave(row.work.id, finish, time_s)
            self._fill(time_s)

    def _leave(self, sample: SampleId, finish: Finish, now_s: float) -> None:
        self._done.append(self._running.pop(sample).row.sample(finish, now_s))

    def _fill(self, now_s: float) -> None:
        """Begin waiting work in free slots."""
        for work in self._waiting.startable(self._version, self._facts.num_slots - len(self._running)):
            _, submitted_s = self._waiting.remove(work.id)
            row = OpenRow(work, version=self._version, submitted_s=submitted_s, started_s=now_s, stops=None)
            token_s = self._script.seconds_per_token(work)
            next_s = now_s + self._script.delay_s(work) + token_s
            self._running[work.id] = _Running(row=row, next_s=next_s, token_s=token_s)
