"""VirtualFaults of a virtual cloud, on order: what a real cloud does now and then."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from windlass.core.dataclass import dataclass

__all__ = ["VirtualFault", "VirtualFaultKind", "VirtualFaults"]

VirtualFaultKind: TypeAlias = Literal["lost-reply", "dropped", "no-capacity", "throttled", "refused", "slow-boot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFault:
    """A fault of the next requests that it fits.

    Attributes:
        kind: `lost-reply`: it is carried out, and the reply is lost; `dropped`: it is not carried out.
        verb: the request: `create`, `terminate`, `list`, `find` or `describe`; empty: any of them.
        type: machine type of a request to create; empty: any.
        group: likewise.
        after: requests that pass before.
        count: requests that it fits then.
        seconds: how much longer a boot takes, or how long a client is told to wait.
    """

    kind: VirtualFaultKind
    verb: str = ""
    type: str = ""
    group: str = ""
    after: int = 0
    count: int = 1
    seconds: float = 1.0


class VirtualFaults:
    """VirtualFaults that are still to come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[VirtualFault] = []

    def set(self, faults: list[VirtualFault]) -> None:
        """Replace all faults."""
        with self._lock:
            self._faults = list(faults)

    def take(self, verb: str, arguments: dict[str, Any]) -> VirtualFault | None:
        """Return the fault of this request, if it has one."""
        asked = arguments.get("asked")
        details = asked if isinstance(asked, dict) else {}
        with self._lock:
            for place, fault in enumerate(self._faults):
                if fault.count <= 0 or fault.verb not in {"", verb}:
                    continue
                if any(getattr(fault, key) not in {"", details.get(key)} for key in ("type", "group")):
                    continue
                if fault.after > 0:
                    self._faults[place] = replace(fault, after=fault.after - 1)
                    continue
                self._faults[place] = replace(fault, count=fault.count - 1)
                return fault
        return None
