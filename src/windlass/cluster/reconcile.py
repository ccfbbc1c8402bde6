"""Machines of a cluster that should not exist: what the provider lists beside what the journal knows."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from windlass.cluster.config import HEAD
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import GONE, Machine
from windlass.cluster.places import MachinePlace
from windlass.cluster.providers.protocol import ThrottledError, UncertainError
from windlass.cluster.state import ClusterState
from windlass.core.clock import Clock, SystemClock
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem, WaitTimeoutError

__all__ = ["Stray", "end_strays", "find_strays", "unseen_hosts"]

_END_S = 900.0
_END_AGAIN_S = 15.0
_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A machine that should not exist.

    Attributes:
        why: the reason, in words.
    """

    machine: Machine
    why: str


def find_strays(home: ClusterHome, place: MachinePlace, clock: Clock | None = None) -> list[Stray]:
    """Return the machines that should not exist; asks the provider, and changes nothing.

    Raises:
        UncertainError: the provider's list may be incomplete.
    """
    now, state = (clock or SystemClock()).now(), home.state()
    listed = [each for each in place.provider.list_machines(home.id) if each.state not in GONE]
    found = [(machine, _why(machine, listed, state, home, now)) for machine in listed]
    return [Stray(machine=machine, why=why) for machine, why in found if why]


def unseen_hosts(home: ClusterHome, place: MachinePlace) -> Sequence[Problem]:
    """Return the hosts that do not respond, on which there may be strays; a provider's list is whole or an error."""
    return [] if place.provider.is_rented else place.provider.check(home.config())


def _why(machine: Machine, listed: Sequence[Machine], state: ClusterState, home: ClusterHome, now: float) -> str:
    """Return why a machine should not exist; empty if it should."""
    config = home.config()
    if state.is_closed or state.wanted == "down":
        return "the cluster is down"
    if config.ttl is not None and now > machine.born_at + config.ttl:
        return f"its time to live of {config.ttl:g} s is over"
    heads = sorted((each.born_at, each.id) for each in listed if each.group == HEAD)
    if machine.group == HEAD:
        return "" if heads[0][1] == machine.id else f"the head is {heads[0][1]}"
    if machine.group not in config.groups:
        return f"the file has no group `{machine.group}`"
    if not heads:
        return "the cluster has no head"
    return ""


def end_strays(home: ClusterHome, place: MachinePlace, strays: Sequence[Stray], clock: Clock | None = None) -> None:
    """End machines that should not exist; returns when the provider lists none of them. Idempotent.

    Raises:
        ProviderError: the provider refuses.
        WaitTimeoutError: it still lists some of them after 15 minutes.
    """
    clock = clock or SystemClock()
    left = {stray.machine.id for stray in strays}
    end_s, told_s = clock.monotonic() + _END_S, -math.inf
    while left:
        try:
            if clock.monotonic() >= told_s + _END_AGAIN_S:
                told_s = clock.monotonic()
                place.provider.terminate(sorted(left))
            left &= {each.id for each in place.provider.list_machines(home.id)}
        except (UncertainError, ThrottledError):
            pass  # asked again below
        if left and clock.monotonic() > end_s:
            hint = f"windlass cluster reconcile {shlex.quote(home.name)} --yes"
            raise WaitTimeoutError(f"still there after {_END_S:g} s: {', '.join(sorted(left))}", hint=hint)
        if left:
            clock.sleep(_PAUSE_S)
