"""Bringing a cluster up and down: machines by the controller, then an agent on each, all nodes at the same time.

    hosts that exist: machines (controller) -> head's agent -> workers' agents -> Ray on all
    rented machines:  head (controller) -> its agent -> Ray with its autoscaler -> workers, made and started from the head

A second `up` of an unchanged cluster asks the machines for their agents' status, and does nothing else.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from windlass.cluster.config import HEAD, ClusterConfig
from windlass.cluster.controller import ClusterController
from windlass.cluster.decide import TargetGroup
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import GONE, Machine
from windlass.cluster.nodes.report import seal_head, unseal_head
from windlass.cluster.places import MachinePlace, open_place
from windlass.cluster.plan import changed_settings
from windlass.cluster.providers.protocol import CreateRequest, Provider
from windlass.cluster.starting import PAUSE_S, NodeStarter, Report
from windlass.cluster.state import ClusterState
from windlass.cluster.workers import await_workers
from windlass.core.clock import Clock, SystemClock
from windlass.core.errors import PreconditionError, UnreachableError, WaitTimeoutError, WindlassError
from windlass.runs.home import Home
from windlass.supervise.node.boot import render_boot
from windlass.supervise.node.spec import NodeStatus

__all__ = ["NOTHING_DONE", "begin", "bring_down", "bring_up", "check_unchanged", "groups_of", "name_cost"]

NOTHING_DONE = frozenset({"not-confirmed", "cluster-changed", "in-use", "conflicting-options"})
"""Codes of errors of `up` before it changed anything: a cluster that was there stays."""

_START_S = 900.0
_DOWN_S = 900.0
_LIST_AGAIN_S, _LIST_COMPLETE_AGAIN_S = 1.0, 5.0
"""Between lists in which nothing is new; the second once all hosts are claimed, since each list costs them CPU time."""
_LOOK_AGAIN_S = 0.2
_LONGEST_S = 10 * 365 * 86400.0


def groups_of(config: ClusterConfig, provider: Provider) -> dict[str, TargetGroup]:
    """Return the machines that the client makes, with the kinds to try; on rented places only the head."""
    groups = {HEAD: TargetGroup(least=1, most=1, choices=tuple(provider.choices(config, HEAD)))}
    for name, group in config.groups.items():
        least = 0 if provider.is_rented else group.least
        choices = () if provider.is_rented else tuple(provider.choices(config, name))
        groups[name] = TargetGroup(least=least, most=group.most, choices=choices)
    return groups


def begin(home: Home, config: ClusterConfig, archive: Path, *, report: Report) -> ClusterHome:
    """Return the folder of a cluster that is to come up.

    What the last cluster of this name left at its place, besides machines, is removed first: its id is what names that.

    Raises:
        PreconditionError: it cannot be removed now.
    """
    last = ClusterHome(home.path / "clusters" / config.name)
    state = last.state()
    if state.is_closed and not state.is_over:
        settings = last.config()
        place = open_place(settings, cluster=last.id, folder=last.path, archive=archive)
        report(f"removing what the last {last.name} left besides machines")
        try:
            bring_down(last, settings, place, report=lambda line: None)
        except WindlassError as error:
            if error.code in NOTHING_DONE:
                raise
            message = f"the last {last.name} has no machines, and something else is left of it: {error.message}"
            raise PreconditionError(message, hint=_down_line(last), code=error.code) from error
    return ClusterHome.create(home, config)


def bring_up(
    home: ClusterHome,
    config: ClusterConfig,
    place: MachinePlace,
    *,
    archive: Path,
    report: Report,
    clock: Clock | None = None,
    found: Callable[[ClusterState], None] = lambda state: None,
) -> dict[str, NodeStatus]:
    """Bring a cluster up; return its nodes' statuses by id. Blocks until Ray runs on all of them.

    Args:
        found: called with the state before this call changes anything, once no other command can.

    Raises:
        WindlassError: machines could not be made, or nodes did not start; those that did stay up.
        PreconditionError: the cluster is up with other settings (`cluster-changed`).
    """
    clock = clock or SystemClock()
    with home.acting() as journal:
        check_unchanged(home, config)
        state = home.state()
        found(state)
        home.write_config(config)
        controller = ClusterController(
            home.id,
            place.provider,
            journal,
            state,
            groups=groups_of(config, place.provider),
            clock=clock,
            prepare=lambda request: _with_deadline(request, config, place, clock),
        )
        if state.wanted != "up" or not state.round or state.refused:
            controller.want("up")
        starting = NodeStarter(home, config, place, archive, report)
        problem: WindlassError | None = None
        end_s, list_s = clock.monotonic() + _START_S, -math.inf
        try:
            while True:
                is_due = clock.monotonic() >= list_s
                has_acted = is_due and bool(controller.round())
                _unseal(controller, place)
                nodes = [node for node in controller.state.living() if node.state not in GONE]
                starting.look(nodes)
                is_complete = _is_complete(controller, nodes)
                if not has_acted and starting.is_done(nodes) and is_complete:
                    break
                if is_due and not has_acted:
                    is_slow = is_complete and not place.provider.is_rented
                    list_s = clock.monotonic() + (_LIST_COMPLETE_AGAIN_S if is_slow else _LIST_AGAIN_S)
                if clock.monotonic() > end_s:
                    raise WaitTimeoutError(f"the cluster {home.name} was not up within {_START_S:g} s")
                if not has_acted:
                    clock.sleep(PAUSE_S)
        except PreconditionError as error:
            problem = error
            starting.finish(controller.state.living())
        finally:
            starting.close()
    errors = [*([problem] if problem else []), *starting.errors.values()]
    if errors:
        raise errors[0]
    if not place.provider.is_rented:
        return starting.statuses
    head = next(each for each in home.state().living(HEAD) if each.state not in GONE)
    here = config.in_region(head.choice.region)
    return await_workers(home, here, place, head, report=report, clock=clock)


def _with_deadline(request: CreateRequest, config: ClusterConfig, place: MachinePlace, clock: Clock) -> CreateRequest:
    """Return a request for the head whose machine ends itself when its time to live is over.

    It also ends when it alone has cost the total of the file: what enforces that limit for all machines runs on the head,
    and may be dead.
    """
    if not place.provider.is_rented:
        return request
    price, total = request.choice.price_per_hour, config.price.total
    most_s = total / price * 3600 if price and total is not None else math.inf
    deadline_s = min(most_s, math.inf if config.ttl is None else config.ttl)
    if deadline_s > _LONGEST_S:
        return replace(request, boot=render_boot(shutdown=place.shutdown))
    deadline_at = clock.now() + deadline_s
    boot = render_boot(shutdown=place.shutdown, deadline_at=deadline_at, deadline_s=deadline_s)
    return replace(request, deadline_at=deadline_at, boot=boot)


def check_unchanged(home: ClusterHome, config: ClusterConfig) -> None:
    """Check that a file fits a cluster that has machines, may have some, or is not down yet.

    Raises:
        PreconditionError: it has other settings (`cluster-changed`).
    """
    state = home.state()
    may_have_machines = state.living() or state.open_intents or state.wanted == "down"
    changed = [] if state.is_closed or not may_have_machines else changed_settings(home.config(), config)
    if changed:
        words = "is not down yet, and has" if state.wanted == "down" else "is up with"
        message = f"the cluster {home.name} {words} other settings: {', '.join(changed)}"
        hint = f"{_down_line(home)}, and bring it up again"
        raise PreconditionError(message, hint=hint, code="cluster-changed")


def name_cost(error: WindlassError, home: ClusterHome, place: MachinePlace) -> None:
    """Add to an error of `up` that rented machines stay and are paid for, if some do or may."""
    state = home.state()
    if place.provider.is_rented and error.code not in NOTHING_DONE and (state.living() or state.open_intents):
        text = f"what was made stays and is paid for until `{_down_line(home)}`"
        error.hint = "; ".join(filter(None, [error.hint, text]))
        if hasattr(error, "add_note"):  # tracebacks have the hint of before
            error.add_note(text)


def _down_line(home: ClusterHome) -> str:
    """Return what to type to end a cluster."""
    return f"windlass cluster down {shlex.quote(home.name)}"


def _is_complete(controller: ClusterController, nodes: list[Machine]) -> bool:
    counts = [sum(node.group == name for node in nodes) >= group.least for name, group in controller.groups.items()]
    return all(counts) and not controller.state.open_intents and not controller.state.sealing


def _unseal(controller: ClusterController, place: MachinePlace) -> None:
    """Let the head of a cluster whose `down` was not finished make machines again, once it is listed; one that is gone cannot."""
    sealed = controller.state.sealing
    if not sealed:
        return
    head = controller.state.nodes.get(sealed)
    if head is not None and head.state not in GONE:
        if not controller.has_listed(sealed):
            return
        unseal_head(place.host(head), head.token)
    controller.unseal()


def _account(controller: ClusterController, home: ClusterHome, place: MachinePlace, report: Report) -> None:
    """Have the head make no more machines and say which it made; otherwise `down` waits for what lists may hide."""
    state = controller.state
    heads = [node for node in state.nodes.values() if node.group == HEAD]
    if not place.provider.is_rented or len(heads) != 1 or state.accounted == heads[0].id:
        return
    try:
        listed = {node.id for node in place.provider.list_machines(home.id) if node.state == "running"}
        if heads[0].id not in listed:
            return
        controller.seal(heads[0].id)
        found = seal_head(place.host(heads[0]), heads[0].token)
    except (UnreachableError, PreconditionError) as error:
        report(f"{error.message}; {home.name} is down once nothing of it was listed for {place.provider.window_s:g} s")
    else:
        controller.account(heads[0].id, found.requests, found.machines)


def bring_down(home: ClusterHome, config: ClusterConfig, place: MachinePlace, *, report: Report) -> None:
    """End a cluster; returns when the provider lists nothing of it, and its place has nothing of it. Idempotent."""
    clock = SystemClock()
    with home.acting() as journal:
        state = home.state()
        if state.is_over:
            return
        controller = ClusterController(
            home.id, place.provider, journal, state, groups=groups_of(config, place.provider), clock=clock
        )
        if not state.is_closed:
            if state.wanted != "down":
                controller.want("down")
            _account(controller, home, place, report)
        end_s = clock.monotonic() + _DOWN_S
        while not controller.state.is_closed:
            if clock.monotonic() > end_s:
                left = ", ".join(node.id for node in controller.state.living())
                raise WaitTimeoutError(f"still there after {_DOWN_S:g} s: {left}", hint=_down_line(home))
            if not controller.round():
                clock.sleep(_LOOK_AGAIN_S)
        place.close()
        journal.append("cluster.cleared")
        for node in controller.state.nodes.values():
            report(f"{node.id} ended")
