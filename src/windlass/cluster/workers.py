"""Workers of a rented cluster, which Ray's autoscaler on the head makes: waiting until those of the start are ready."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping

from windlass.cluster.config import ClusterConfig
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import GONE, Machine
from windlass.cluster.nodes.report import HeadReport, fetch_report
from windlass.cluster.places import MachinePlace
from windlass.cluster.providers.protocol import Provider, ThrottledError, UncertainError
from windlass.cluster.starting import Report, ready_words
from windlass.cluster.state import NO_CAPACITY
from windlass.core.clock import Clock
from windlass.core.errors import PreconditionError, UnreachableError, WaitTimeoutError
from windlass.supervise.node.spec import NodeStatus

__all__ = ["await_workers"]

_START_S = 900.0
_ASK_AGAIN_S = 1.0


def await_workers(
    home: ClusterHome,
    config: ClusterConfig,
    place: MachinePlace,
    head: Machine,
    *,
    report: Report,
    clock: Clock,
) -> dict[str, NodeStatus]:
    """Wait until Ray's autoscaler on the head has brought the nodes of the start; return all statuses by id.

    Raises:
        PreconditionError: no kind of machine of a group is to be had (`no-capacity`); the head goes on asking.
        WaitTimeoutError: they were not there in time.
        UnreachableError: the head, which responded before, has ended, or did not respond until the time was over.
    """
    host, end_s, said = place.host(head), clock.monotonic() + _START_S, {head.id}
    while True:
        try:
            found = fetch_report(host, head.token)
        except UnreachableError:
            if clock.monotonic() > end_s or _has_ended(place.provider, head):
                raise
            clock.sleep(_ASK_AGAIN_S)
            continue
        for name, status in found.statuses.items():
            if name not in said and status.state in {"ready", "failed"}:
                said.add(name)
                report(ready_words(name, status) if status.state == "ready" else f"{name}: {status.message}")
        missing = _missing(config, found)
        if not missing:
            return dict(found.statuses)
        short = ", ".join(f"{count} of `{group}`" for group, count in missing.items())
        refused = _refused_everywhere(found, config, place.provider, missing)
        hint = f"the head goes on asking; windlass cluster show {shlex.quote(home.name)}, or down"
        if refused:
            raise PreconditionError(f"no machines for {short}; tried: {refused}", hint=hint, code=NO_CAPACITY)
        if clock.monotonic() > end_s:
            raise WaitTimeoutError(f"missing after {_START_S:g} s: {short}", hint=hint)
        clock.sleep(_ASK_AGAIN_S)


def _has_ended(provider: Provider, machine: Machine) -> bool:
    """Return whether the provider says that a machine has ended; what it does not say now is asked again."""
    try:
        return any(each.state in GONE for each in provider.describe([machine.id]))
    except (UncertainError, ThrottledError):
        return False


def _missing(config: ClusterConfig, found: HeadReport) -> dict[str, int]:
    """Return the number of nodes of the start that are not ready, by group."""
    ready = Counter(status.group for status in found.statuses.values() if status.state == "ready")
    wanted = {name: max(group.least, group.initial) for name, group in config.groups.items()}
    return {name: count - ready[name] for name, count in wanted.items() if ready[name] < count}


def _refused_everywhere(
    found: HeadReport, config: ClusterConfig, provider: Provider, missing: Mapping[str, int]
) -> str:
    """Return what was tried for a group if every kind of it was refused since its last machine; "" otherwise."""
    for group in missing:
        requests = [each for each in found.requests if each.group == group]
        last = max((number for number, each in enumerate(requests) if each.status != "void"), default=-1)
        refused = {each.choice: each.detail or each.reason for each in requests[last + 1 :]}
        if refused and set(provider.choices(config, group)) <= set(refused):
            return "; ".join(f"{choice.words}: {why}" for choice, why in refused.items())
    return ""
