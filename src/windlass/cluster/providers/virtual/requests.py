"""Requests to a virtual cloud, checked, carried out and answered; and metadata for the machine that asks."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from windlass.cluster.providers.protocol import NoCapacityError, RefusedError
from windlass.cluster.providers.virtual.cloud import VirtualCloud
from windlass.cluster.providers.virtual.faults import VirtualFault, VirtualFaults
from windlass.cluster.providers.virtual.records import MachineRecord, machine_of

__all__ = ["DROPPED", "CloudRequests"]

DROPPED = object()
"""Answer of a request whose reply is lost."""

_MAX_IDS = 1000
_MAX_COUNT = 250
_TEXTS = ("token", "cluster", "group", "type", "zone")


class CloudRequests:
    """Carries out requests whose signature was checked.

    Args:
        prefix: first three bytes of the machines' addresses.
    """

    def __init__(self, cloud: VirtualCloud, prefix: str) -> None:
        self._cloud, self._prefix, self.faults = cloud, prefix, VirtualFaults()
        self._verbs: dict[str, Callable[[dict[str, Any]], object]] = {
            "create": self._create,
            "list": lambda asked: self._found(lambda each: each.cluster == asked["cluster"] and each.is_living),
            "find": lambda asked: self._found(lambda each: each.token == asked["token"]),
            "describe": lambda asked: self._found(lambda each: each.id in _ids(asked)),
            "terminate": lambda asked: cloud.terminate(_ids(asked)),
            "lab.faults": lambda asked: self.faults.set([VirtualFault(**each) for each in asked["faults"]]),
            "lab.power-cut": lambda asked: cloud.terminate(_ids(asked), "power cut"),
            "lab.notice": self._notice,
            "lab.ledger": lambda asked: cloud.ledger(),
        }

    def answer(self, verb: str, arguments: dict[str, Any]) -> object:
        """Return the body of a reply, or `DROPPED`."""
        do = self._verbs.get(verb)
        if do is None:
            return _error("refused", f"unknown request `{verb}`")
        fault = None if verb.startswith("lab.") else self.faults.take(verb, arguments)
        if fault is not None and fault.kind == "dropped":
            return DROPPED
        if fault is not None and fault.kind in {"no-capacity", "throttled", "refused"}:
            return _error(fault.kind, f"{fault.kind}, as ordered", after_s=fault.seconds)
        if fault is not None and fault.kind == "slow-boot":
            arguments = {**arguments, "slow_s": fault.seconds}
        try:
            result = do(arguments)
        except NoCapacityError as error:
            return _error("no-capacity", error.message, hint=error.hint)
        except RefusedError as error:
            return _error("refused", error.message, hint=error.hint)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            return _error("refused", f"invalid request `{verb}`: {error!r}"[:300])
        return DROPPED if fault is not None and fault.kind == "lost-reply" else {"result": result}

    def _create(self, arguments: dict[str, Any]) -> object:
        asked = dict(arguments["asked"])
        if any(not isinstance(asked[name], str) or len(asked[name]) > 200 for name in _TEXTS):
            raise ValueError("names are texts of at most 200 characters")
        if not isinstance(asked["count"], int) or not 1 <= asked["count"] <= _MAX_COUNT:
            raise ValueError(f"count must be 1 to {_MAX_COUNT}")
        for name in ("deadline_at", "price_per_hour"):
            if asked[name] is not None:
                asked[name] = _number(asked[name])
        asked["is_spot"] = bool(asked["is_spot"])
        asked["slow_s"] = _number(arguments.get("slow_s", 0.0))
        boot = base64.b64decode(arguments["boot"], validate=True)
        return [asdict(machine_of(each, self._prefix)) for each in self._cloud.create(asked, boot)]

    def _found(self, fits: Callable[[MachineRecord], bool]) -> object:
        return [asdict(machine_of(each, self._prefix)) for each in self._cloud.machines() if fits(each)]

    def _notice(self, asked: dict[str, Any]) -> None:
        kind = asked["kind"]
        if kind not in {"terminate", "stop", "rebalance"}:
            raise ValueError(f"unknown kind {kind!r}")
        self._cloud.give_notice(asked["id"], kind, _number(asked["at"]), is_cut=kind != "rebalance")

    def metadata(self, path: str, address: str) -> object | None:
        """Return what the machine with an address may know; None: nothing of that name."""
        living = [each for each in self._cloud.machines() if each.is_living]
        found = next((each for each in living if f"{self._prefix}.{each.number}" == address), None)
        if found is not None and path == "/id":
            return found.id
        if found is not None and path == "/notices":
            return [{"kind": found.notice, "at": found.notice_at}] if found.notice else []
        return None


def _ids(asked: dict[str, Any]) -> list[str]:
    ids = asked["ids"]
    if not isinstance(ids, list) or len(ids) > _MAX_IDS or any(not isinstance(each, str) for each in ids):
        raise ValueError(f"ids are at most {_MAX_IDS} texts")
    return ids


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _error(kind: str, message: str, *, hint: str = "", after_s: float = 0.0) -> dict[str, object]:
    return {"error": {"kind": kind, "message": message, "hint": hint, "after_s": after_s}}
