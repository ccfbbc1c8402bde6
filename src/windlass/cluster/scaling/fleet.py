"""Fleet of a cluster's machines on its head: provider and journal, for Ray's autoscaler.

Every request is in the journal before it is made. Its token follows from Ray's launch request, the group, the number of the
first machine in that request, and the attempt: a monitor that takes over asks for the open ones by token, so that it neither
makes machines twice nor loses any. Methods may be called from several threads.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any, Protocol

from windlass.cluster.cost import cost_of
from windlass.cluster.machine import GONE, Choice, Machine
from windlass.cluster.providers.protocol import (
    CreateRequest,
    NoCapacityError,
    Provider,
    ProviderError,
    RefusedError,
    ThrottledError,
    UncertainError,
)
from windlass.cluster.scaling.capacity import exceeds_limit, order_choices, wait_s
from windlass.cluster.state import NO_CAPACITY, ClusterState, fold, machine_data
from windlass.core.clock import Clock
from windlass.core.dataclass import dataclass
from windlass.record.frames import Record

__all__ = ["Fleet", "FleetJournal", "FleetLimits"]

_PAUSE_S = 1.0
_THROTTLED_S = 60.0
_END_AGAIN_S = 15.0
_TRIES = 3
_PRICE_LIMIT = "price-limit"


class FleetJournal(Protocol):
    """Record of what the fleet does; `windlass.record.journal.JournalWriter` is one."""

    def append(self, kind: str, *, is_durable: bool = ..., **data: Any) -> Record:
        """Append a record; it is on disk when this returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """Limits in US dollars; None: none."""

    per_hour: float | None = None
    total: float | None = None


@dataclass(slots=True)
class _Seen:
    """Times on this process's clock; nothing of it outlives the process."""

    called_s: dict[str, float] = field(default_factory=dict)
    told_s: dict[str, float] = field(default_factory=dict)
    missed_s: dict[str, float] = field(default_factory=dict)
    refused_s: dict[Choice, float] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)


class Fleet:
    """Machines of a cluster, the head among them.

    Args:
        choices: returns the kinds of machines of a group, in order.
        prepare: adds to a request the script that machines run, and their deadline.
        records: what the journal holds.
    """

    def __init__(
        self,
        cluster: str,
        provider: Provider,
        journal: FleetJournal,
        records: Iterable[Record],
        *,
        choices: Callable[[str], Sequence[Choice]],
        clock: Clock,
        limits: FleetLimits | None = None,
        prepare: Callable[[CreateRequest], CreateRequest] = lambda request: request,
    ) -> None:
        self._cluster, self._provider, self._journal, self._clock = cluster, provider, journal, clock
        self._choices, self._prepare, self.limits = choices, prepare, limits or FleetLimits()
        self._lock, self._seen = threading.RLock(), _Seen()
        self._requests: dict[str, str] = {}
        self._ordinals: Counter[tuple[str, str]] = Counter()
        self.state = ClusterState()
        for record in records:
            self._fold(record)
        now_s = clock.monotonic()
        self._seen.called_s = {each.token: now_s for each in self.state.open_intents}

    # ----------------------------------------------------------------------------------------------------- machines

    def look(self) -> list[Machine]:
        """Return the machines that run or boot, after a look at what became of open requests.

        Raises:
            ProviderError: the provider's list is not known now.
        """
        began_s = self._clock.monotonic()
        listed = {each.id: each for each in self._provider.list_machines(self._cluster)}
        with self._lock:
            for machine in listed.values():
                self._observe(machine)
            missing = [each for each in self.state.living() if each.id not in listed]
            for each in listed:
                self._seen.missed_s.pop(each, None)
        if missing:
            self._describe(missing, began_s)
        self._settle()
        self._end_again()
        with self._lock:
            return [each for each in self.state.living() if each.state not in GONE]

    def request_of(self, machine: Machine) -> str:
        """Return Ray's launch request of a machine; empty for the head and for unknown machines."""
        with self._lock:
            return self._requests.get(machine.token, "")

    def terminate(self, ids: Sequence[str], why: str) -> None:
        """End machines; idempotent. What is uncertain is repeated by later calls of `look`.

        Raises:
            ProviderError: it is not known whether they end.
        """
        with self._lock:
            self._record("cluster.ending", ids=list(ids), why=why)
            now_s = self._clock.monotonic()
            self._seen.told_s.update(dict.fromkeys(ids, now_s))
        for number in range(_TRIES):
            try:
                self._provider.terminate(ids)
                break
            except (UncertainError, ThrottledError) as error:
                if number == _TRIES - 1:
                    raise
                self._clock.sleep(error.after_s if isinstance(error, ThrottledError) else _PAUSE_S)

    def cost(self) -> float:
        """Return the US dollars that all machines have cost, at list prices."""
        with self._lock:
            return cost_of(self.state.nodes.values(), self._clock.now())

    @property
    def is_over_total(self) -> bool:
        """Return whether the machines have cost as much as the limit."""
        return self.limits.total is not None and self.cost() >= self.limits.total

    # --------------------------------------------------------------------------------------------------- new machines

    def create(self, group: str, count: int, request: str) -> list[Machine]:
        """Make machines of the first kind that is to be had: all of them, or none.

        Args:
            request: Ray's launch request.

        Raises:
            NoCapacityError: every kind was refused, or costs too much.
            ProviderError: another reason; what was made of an uncertain request is known, and it is none.
        """
        with self._lock:
            first = self._ordinals[request, group]
            self._ordinals[request, group] += count
            now_s, choices = self._clock.monotonic(), list(self._choices(group))
            pause_s = wait_s(choices, self._seen.refused_s, now_s)
            ordered = order_choices(choices, self._seen.refused_s, now_s)
        if pause_s:
            raise NoCapacityError(f"every kind of `{group}` was refused; the next try is in {pause_s:.0f} s")
        tried = []
        for number, choice in enumerate(ordered):
            token = _token(self._cluster, request, group, first, number)
            try:
                return self._create(token, group, count, choice, request)
            except NoCapacityError as error:
                tried.append(f"{choice.words}: {error.message}")
                with self._lock:
                    self._seen.refused_s[choice] = self._clock.monotonic()
        raise NoCapacityError(f"no machines for {count} of `{group}`; tried: {'; '.join(tried) or 'nothing'}")

    def _create(self, token: str, group: str, count: int, choice: Choice, request: str) -> list[Machine]:
        with self._lock:
            prices = [each.choice.price_per_hour for each in self.state.living()]
            prices += [each.choice.price_per_hour for each in self.state.open_intents for _ in range(each.count)]
            self._record(
                "cluster.intent", token=token, group=group, count=count, choice=asdict(choice), request=request
            )
            why = exceeds_limit(self.limits.per_hour, prices, choice.price_per_hour, count)
            if why:
                self._resolve(token, "void", _PRICE_LIMIT, why)
                raise NoCapacityError(why)
            self._seen.busy.add(token)
        wanted = CreateRequest(token=token, cluster=self._cluster, group=group, count=count, choice=choice)
        try:
            machines = self._ask(self._prepare(wanted))
        except ProviderError as error:
            reason = NO_CAPACITY if isinstance(error, NoCapacityError) else error.code
            self._resolve(token, "void", reason, error.message)
            raise
        finally:
            with self._lock:
                self._seen.busy.discard(token)
                self._seen.called_s[token] = self._clock.monotonic()
        with self._lock:
            for each in machines:
                self._observe(each)
            self._resolve(token, "made")
            self._seen.refused_s.pop(choice, None)
        return machines

    def _ask(self, request: CreateRequest) -> list[Machine]:
        """Make a request until its result is known: the same token never makes machines twice."""
        end_s = self._clock.monotonic() + _THROTTLED_S
        while True:
            try:
                return list(self._provider.create(request))
            except ThrottledError as error:
                if self._clock.monotonic() + error.after_s > end_s:
                    raise
                self._clock.sleep(error.after_s)
            except UncertainError as error:
                found = self._find(request.token)
                if found:
                    return found
                raise RefusedError(f"{error.message}; nothing was made", hint=error.hint) from error

    def _find(self, token: str) -> list[Machine]:
        """Return the machines of a request whose reply was lost; waits for the provider's window if there are none."""
        called_s = self._clock.monotonic()
        while True:
            asked_s = self._clock.monotonic()
            try:
                found = list(self._provider.find(token))
            except (UncertainError, ThrottledError):
                found, asked_s = [], called_s - 1.0  # counts as not asked
            if found or asked_s >= called_s + self._provider.window_s:
                return found
            self._clock.sleep(_PAUSE_S)

    # -------------------------------------------------------------------------------------------------------- private

    def _describe(self, missing: Sequence[Machine], began_s: float) -> None:
        """Record what became of machines that are not listed; lists may lag behind by the window."""
        with self._lock:
            since_s = {each.id: self._seen.missed_s.setdefault(each.id, began_s) for each in missing}
        known = {each.id: each for each in self._provider.describe([each.id for each in missing])}
        with self._lock:
            for machine in missing:
                found = known.get(machine.id)
                is_late = began_s >= since_s[machine.id] + self._provider.window_s
                if found is not None and found.state != "ended":
                    self._observe(found)
                elif found is not None or is_late:
                    ended_at = self._clock.now() if found is None or found.ended_at is None else found.ended_at
                    why = "no longer listed" if found is None else found.why
                    self._observe(replace(machine, state="ended", ended_at=ended_at, why=why))

    def _settle(self) -> None:
        """Find out what came of requests that an earlier process made."""
        with self._lock:
            left = [each for each in self.state.open_intents if each.token not in self._seen.busy]
        for intent in left:
            asked_s = self._clock.monotonic()
            try:
                found = self._provider.find(intent.token)
            except (UncertainError, ThrottledError):
                continue
            with self._lock:
                for each in found:
                    self._observe(each)
                if len(found) >= intent.count:
                    self._resolve(intent.token, "made")
                elif asked_s >= self._seen.called_s.setdefault(intent.token, asked_s) + self._provider.window_s:
                    self._resolve(intent.token, "made" if found else "void", "never created")

    def _end_again(self) -> None:
        """Repeat the end of machines that still run though they should have ended."""
        now_s = self._clock.monotonic()
        with self._lock:
            due = [
                each.id
                for each in self.state.living()
                if each.id in self.state.ending
                and each.state not in GONE
                and now_s >= self._seen.told_s.get(each.id, now_s - _END_AGAIN_S) + _END_AGAIN_S
            ]
            self._seen.told_s.update(dict.fromkeys(due, now_s))
        if due:
            try:
                self._provider.terminate(due)
            except (UncertainError, ThrottledError):
                return  # the next look repeats it

    def _observe(self, machine: Machine) -> None:
        if self.state.nodes.get(machine.id) != machine:
            self._record("cluster.node", node=machine_data(machine))

    def _resolve(self, token: str, status: str, reason: str = "", detail: str = "") -> None:
        self._record("cluster.resolved", token=token, status=status, reason=reason, detail=detail)

    def _record(self, kind: str, **data: Any) -> None:
        with self._lock:
            self._fold(self._journal.append(kind, **data))

    def _fold(self, record: Record) -> None:
        self.state = fold([record], self.state)
        if record.kind == "cluster.intent":
            request = str(record.data.get("request", ""))
            self._requests[record.data["token"]] = request
            self._ordinals[request, record.data["group"]] += 0


def _token(cluster: str, request: str, group: str, first: int, attempt: int) -> str:
    words: Mapping[str, object] = {"c": cluster, "r": request, "g": group, "f": first, "a": attempt}
    return hashlib.sha256(repr(sorted(words.items())).encode()).hexdigest()[:32]
