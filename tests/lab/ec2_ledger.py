"""Ledger of the lab's EC2: every instance as it really was, what the metadata service says of it, and faults on order."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

__all__ = ["Fault", "FaultKind", "Instance", "Ledger", "metadata_of"]

FaultKind = Literal["error", "lost", "dropped", "delay", "lie"]


@dataclass(slots=True, kw_only=True)
class Fault:
    """A fault on order.

    Attributes:
        action: the API's action, or `*`.
        do: `error`: refused with `code`; `dropped`: not done, connection closed; `lost`: done, connection closed;
            `delay`: done after `seconds`; `lie`: for `seconds_long`, instances younger than `seconds` are hidden.
        match: regular expressions of request fields, which must all match.
        region: the API's region; empty: any.
        skip: requests that go through first.
        times: how often it happens.
    """

    action: str = "RunInstances"
    do: FaultKind
    match: Mapping[str, str] = field(default_factory=dict)
    region: str = ""
    times: int = 1
    skip: int = 0
    code: str = "InternalError"
    status: int = 500
    message: str = "ordered by the test"
    seconds: float = 0.0
    seconds_long: float = 60.0
    ordered_s: float = field(default_factory=time.monotonic)


@dataclass(slots=True, kw_only=True)
class Instance:
    """An instance as it really was; times are seconds since the epoch.

    Attributes:
        slack_s: by how much its times may be off from EC2's own, which were taken during two requests.
    """

    id: str
    type: str
    zone: str
    address: str
    token: str
    is_spot: bool
    behaviour: str
    profile: str
    region: str
    born_at: float
    user_data: bytes = b""
    ended_at: float | None = None
    why: str = ""
    notice_at: float | None = None
    is_rebalanced: bool = False
    slack_s: float = 0.0

    @property
    def life(self) -> str:
        """Return its life cycle as the metadata service names it."""
        return "spot" if self.is_spot else "on-demand"

    @property
    def seconds(self) -> float:
        """Return how long it cost money."""
        return (time.time() if self.ended_at is None else self.ended_at) - self.born_at


class Ledger:
    """All instances that there ever were, by id."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._found: dict[str, Instance] = {}

    def add(self, instance: Instance) -> None:
        """Record a new instance."""
        with self._lock:
            self._found[instance.id] = instance

    def end(self, name: str, why: str, *, slack_s: float = 0.0) -> bool:
        """Record an instance's end, which EC2 has recorded within the last `slack_s`; return whether it was alive."""
        with self._lock:
            found = self._found.get(name)
            if found is None or found.ended_at is not None:
                return False
            found.ended_at, found.why = time.time(), why
            found.slack_s += slack_s
            return True

    def get(self, name: str) -> Instance | None:
        """Return an instance by id."""
        with self._lock:
            return self._found.get(name)

    def all(self) -> list[Instance]:
        """Return all instances in the order of their birth."""
        with self._lock:
            return list(self._found.values())

    def alive(self) -> list[Instance]:
        """Return the instances that cost money now."""
        return [each for each in self.all() if each.ended_at is None]

    def per_token(self) -> Counter[str]:
        """Return how many instances each token made."""
        return Counter(each.token for each in self.all())

    def describe(self) -> dict[str, dict[str, object]]:
        """Return all of it for JSON, by id."""
        hidden = ("user_data", "is_spot")
        return {
            each.id: {
                **{name: value for name, value in asdict(each).items() if name not in hidden},
                "life": each.life,
                "seconds": round(each.seconds, 3),
            }
            for each in self.all()
        }

    def seconds(self) -> float:
        """Return the seconds that all instances cost."""
        return sum(each.seconds for each in self.all())


def metadata_of(instance: Instance) -> dict[str, str]:
    """Return what the metadata service has for an instance; paths as in the EC2 user guide, "Instance metadata"."""
    found = {
        "meta-data/instance-id": instance.id,
        "meta-data/instance-type": instance.type,
        "meta-data/local-ipv4": instance.address,
        "meta-data/placement/availability-zone": instance.zone,
        "meta-data/placement/region": instance.region,
        "meta-data/instance-life-cycle": instance.life,
    }
    if instance.user_data:
        found["user-data"] = instance.user_data.decode("latin-1")
    if instance.profile:
        keys = {"Code": "Success", "AccessKeyId": "test", "SecretAccessKey": "test", "Token": "lab"}
        found["meta-data/iam/security-credentials"] = "lab-role"
        found["meta-data/iam/security-credentials/lab-role"] = json.dumps(
            {**keys, "Type": "AWS-HMAC", "Expiration": _iso(time.time() + 6 * 3600), "LastUpdated": _iso(time.time())}
        )
    if instance.notice_at is not None and instance.is_rebalanced:
        found["meta-data/events/recommendations/rebalance"] = json.dumps({"noticeTime": _iso(instance.notice_at)})
    elif instance.notice_at is not None:
        at = _iso(instance.notice_at)
        found["meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": at})
        found["meta-data/spot/termination-time"] = at
    return found


def _iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
