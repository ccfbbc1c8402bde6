"""ClusterController of a cluster's machines: carries out what `decide` says, one round at a time.

Whoever acts on a cluster holds the lock of its journal, so two commands never act at once. Everything is in the journal
before it is done; a controller that dies anywhere is followed by one that reads the journal and goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from windlass.cluster.decide import (
    Action,
    Ask,
    Close,
    Create,
    Describe,
    Exhausted,
    Observe,
    Resolve,
    TargetGroup,
    Terminate,
    View,
    decide,
    has_all,
)
from windlass.cluster.machine import GONE, Machine
from windlass.cluster.providers.protocol import (
    CreateRequest,
    NoCapacityError,
    Provider,
    RefusedError,
    ThrottledError,
    UncertainError,
)
from windlass.cluster.state import NO_CAPACITY, ClusterState, Intent, fold, machine_data
from windlass.core.clock import Clock
from windlass.core.errors import PreconditionError
from windlass.record.frames import Record

__all__ = ["ClusterController", "ClusterJournal"]


class ClusterJournal(Protocol):
    """Record of what the controller does; `windlass.record.journal.JournalWriter` is one."""

    def append(self, kind: str, *, is_durable: bool = ..., **data: Any) -> Record:
        """Append a record; it is on disk when this returns."""


class ClusterController:
    """Makes and ends machines until the provider lists what is wanted.

    Args:
        cluster: id of the cluster, which marks its machines.
        state: fold of the journal.
        groups: wanted groups, by name.
        prepare: adds to a request the script that the machine runs, and its deadline.
    """

    def __init__(
        self,
        cluster: str,
        provider: Provider,
        journal: ClusterJournal,
        state: ClusterState,
        *,
        groups: Mapping[str, TargetGroup],
        clock: Clock,
        prepare: Callable[[CreateRequest], CreateRequest] = lambda request: request,
        new_token: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._cluster, self._provider, self._journal, self._clock = cluster, provider, journal, clock
        self.state, self.groups = state, groups
        self._prepare, self._new_token = prepare, new_token
        now_s = clock.monotonic()
        self._view = View(called_s=dict.fromkeys(state.intents, now_s))
        self._busy_until_s = 0.0

    def has_listed(self, machine: str) -> bool:
        """Return whether the provider's last list has a machine, as one that works."""
        return any(node.id == machine and node.state not in GONE for node in self._view.nodes or ())

    def want(self, wish: str, why: str = "") -> None:
        """Record that the cluster should be `up` or `down`."""
        self._record("cluster.wanted", state=wish, why=why)

    def seal(self, head: str) -> None:
        """Record that a head is about to be told to make no more machines; `unseal` must follow if it is to make some again."""
        self._record("cluster.sealing", head=head)

    def account(self, head: str, requests: Sequence[Intent], machines: Sequence[Machine]) -> None:
        """Record what a head made that makes no more: its machines and, if none can be missing, that these are all.

        Args:
            requests: all of that head, since it began.
            machines: all that it knows, ended ones included.
        """
        known = self.state.nodes
        self._observe([each for each in machines if each.id not in known or each.state == "ended"])
        if has_all(requests, machines):
            self._record("cluster.accounted", head=head)

    def unseal(self) -> None:
        """Record that the head may make machines again."""
        self._record("cluster.unsealed")

    def round(self) -> list[Action]:
        """List machines and do what is due; return what was done, so that nothing means to wait.

        Raises:
            RefusedError: the provider will not make what is wanted.
            PreconditionError: no kind of machine of a group is to be had (`no-capacity`).
        """
        now_s = self._clock.monotonic()
        if now_s < self._busy_until_s:
            return []
        try:
            self._list()
            actions = decide(
                self.state, self._view, self.groups, window_s=self._provider.window_s, now_s=self._clock.monotonic()
            )
            for action in actions:
                self._do(action)
        except ThrottledError as error:
            self._busy_until_s = self._clock.monotonic() + error.after_s
            return []
        return actions

    def _list(self) -> None:
        """Update the view; what cannot be listed now keeps its last list, and no absence counts."""
        began_s = self._clock.monotonic()
        try:
            nodes = tuple(self._provider.list_machines(self._cluster))
        except UncertainError:
            return
        listed = {node.id for node in nodes}
        missing = {node.id for node in self.state.living() if node.id not in listed}
        missed_s = {each: self._view.missed_s.get(each, began_s) for each in missing}
        since_s = began_s if self._view.empty_s is None else self._view.empty_s
        empty_s = None if nodes else since_s
        self._view = replace(self._view, nodes=nodes, listed_s=began_s, empty_s=empty_s, missed_s=missed_s)

    def _do(self, action: Action) -> None:
        if isinstance(action, Observe):
            self._record("cluster.node", node=machine_data(action.node))
        elif isinstance(action, Describe):
            self._describe(action)
        elif isinstance(action, Ask):
            self._ask(action.token)
        elif isinstance(action, Resolve):
            self._record("cluster.resolved", token=action.token, status=action.status, reason=action.reason)
        elif isinstance(action, Create):
            self._create(action)
        elif isinstance(action, Terminate):
            self._terminate(action)
        elif isinstance(action, Close):
            self._record("cluster.closed")
        else:
            raise self._exhausted(action)

    def _describe(self, action: Describe) -> None:
        """Record what became of machines that are not listed."""
        now_s = self._clock.monotonic()
        self._view = replace(self._view, asked_s={**self._view.asked_s, **dict.fromkeys(action.ids, now_s)})
        try:
            known = {node.id: node for node in self._provider.describe(action.ids)}
        except UncertainError:
            return
        for each in action.ids:
            found = known.get(each)
            if found is None and each in action.late:
                ended_at, why = self._clock.now(), "no longer listed"
            elif found is not None and found.state == "ended":
                ended_at, why = found.ended_at or self._clock.now(), found.why
            else:
                continue
            node = replace(self.state.nodes[each], state="ended", ended_at=ended_at, why=why)
            self._record("cluster.node", node=machine_data(node))

    def _ask(self, token: str) -> None:
        began_s = self._clock.monotonic()
        try:
            nodes = self._provider.find(token)
        except UncertainError:
            return
        self._view = replace(self._view, asked_s={**self._view.asked_s, token: began_s})
        self._observe(nodes)

    def _create(self, action: Create) -> None:
        token = self._new_token()
        self._record(
            "cluster.intent", token=token, group=action.group, count=action.count, choice=asdict(action.choice)
        )
        request = self._prepare(
            CreateRequest(
                token=token, cluster=self._cluster, group=action.group, count=action.count, choice=action.choice
            )
        )
        refusal: RefusedError | None = None
        status, reason, detail = "void", "", ""
        try:
            nodes = self._provider.create(request)
        except UncertainError:
            return
        except NoCapacityError as error:
            reason, detail = NO_CAPACITY, error.message
        except ThrottledError:
            self._record("cluster.resolved", token=token, status="void", reason="too many requests")
            raise
        except RefusedError as error:
            refusal, reason = error, error.message
        else:
            status = "made"
            self._observe(nodes)
        finally:
            self._view = replace(self._view, called_s={**self._view.called_s, token: self._clock.monotonic()})
        self._record("cluster.resolved", token=token, status=status, reason=reason, detail=detail)
        if refusal is not None:
            raise refusal

    def _terminate(self, action: Terminate) -> None:
        self._record("cluster.ending", ids=list(action.ids), why=action.why)
        now_s = self._clock.monotonic()
        self._view = replace(self._view, told_s={**self._view.told_s, **dict.fromkeys(action.ids, now_s)})
        try:
            self._provider.terminate(action.ids)
        except UncertainError:
            return

    def _observe(self, nodes: object) -> None:
        assert isinstance(nodes, (list, tuple))
        for node in nodes:
            assert isinstance(node, Machine)
            if self.state.nodes.get(node.id) != node:
                self._record("cluster.node", node=machine_data(node))

    def _exhausted(self, action: Exhausted) -> PreconditionError:
        tried = [
            f"{intent.choice.words}: {intent.detail or intent.reason}"
            for intent in self.state.refused
            if intent.group == action.group
        ]
        message = f"no machines for {action.missing} of `{action.group}`; tried: {'; '.join(tried) or 'nothing'}"
        return PreconditionError(
            message, hint="add types, zones, regions or hosts, or try again later", code=NO_CAPACITY
        )

    def _record(self, kind: str, **data: Any) -> None:
        self.state = fold([self._journal.append(kind, **data)], self.state)
