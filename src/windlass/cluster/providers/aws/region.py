"""EC2 in one region: its requests, and what it has for a cluster besides machines.

A request has the client token of its intent, so that sending it again never makes machines twice; all of a request's
machines are made or none (MinCount = MaxCount); each of them terminates when it shuts itself down.
"""

from __future__ import annotations

import re
import threading
import time
from calendar import timegm
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from windlass.cluster.config import HEAD, AwsPlace, NodeGroupConfig
from windlass.cluster.machine import Choice, Machine, MachineState
from windlass.cluster.prices import list_price
from windlass.cluster.providers.aws.client import AwsClient
from windlass.cluster.providers.aws.network import AwsNetwork
from windlass.cluster.providers.aws.profile import HeadProfile
from windlass.cluster.providers.aws.request import CLUSTER_TAG, GROUP_TAG, TOKEN_TAG, run_fields
from windlass.cluster.providers.protocol import CreateRequest, ProviderError, RefusedError, UncertainError

__all__ = ["AwsRegion"]

_CREATE_TRIES = 3
_PROFILE_S = 60.0
_PAUSE_S = 1.0
_NOT_FOUND = "InvalidInstanceID.NotFound"
_MALFORMED = "InvalidInstanceID.Malformed"
# A stopped instance is ours until it is terminated, which `down` does; nothing of ours stops one.
_STATES: Mapping[str, MachineState] = {
    "pending": "pending",
    "running": "running",
    "stopping": "running",
    "stopped": "running",
    "shutting-down": "ending",
    "terminated": "ended",
}


class AwsRegion:
    """EC2 in one region, for one cluster.

    Args:
        place: the settings of the region alone.
        profile: the head's, which all regions share.
    """

    def __init__(self, place: AwsPlace, profile: HeadProfile, *, cluster: str, folder: Path) -> None:
        self.name, self.place = place.region, place
        self.client = AwsClient(place)
        self.network = AwsNetwork(self.client, place, cluster=cluster, folder=folder)
        self._profile = profile
        self._lock = threading.Lock()
        self._offered: dict[str, bool] = {}

    def offered(self, types: Sequence[str]) -> set[str]:
        """Return those of some machine types that the region has; asks once for each.

        Raises:
            ProviderError: one of its four kinds.
        """
        with self._lock:
            new = [kind for kind in dict.fromkeys(types) if kind not in self._offered]
            if new:
                pages = self.client.pages(
                    "describe_instance_type_offerings",
                    "InstanceTypeOfferings",
                    what="cannot list the machine types",
                    LocationType="region",
                    Filters=[_filter("instance-type", *new)],
                )
                found = {str(each["InstanceType"]) for each in pages}
                self._offered.update({kind: kind in found for kind in new})
            return {kind for kind in types if self._offered[kind]}

    def list_machines(self, cluster: str) -> list[Machine]:
        """Return the instances of a cluster, terminated ones included.

        Raises:
            ProviderError: the list may be incomplete.
        """
        return self._described("cannot list machines", Filters=[_filter(f"tag:{CLUSTER_TAG}", cluster)])

    def find(self, token: str) -> list[Machine]:
        """Return the instances of a request, terminated ones included.

        Raises:
            UncertainError: EC2 did not reply.
        """
        return self._described("cannot find machines", Filters=[_filter("client-token", token)])

    def describe(self, ids: Sequence[str]) -> list[Machine]:
        """Return instances by id, as long as EC2 knows them: about an hour after their end."""
        # A filter, since one unknown id would make a request by ids fail.
        return self._described("cannot describe machines", Filters=[_filter("instance-id", *ids)])

    def create(self, request: CreateRequest, group: NodeGroupConfig) -> list[Machine]:
        """Make instances, all or none. A request without a reply is sent again with the same token.

        Raises:
            ProviderError: one of its four kinds.
        """
        profile = self.place.profile or (self._profile.ensure() if request.group == HEAD else "")
        fields = run_fields(self.place, group, request, self.network.ensure(group, profile=profile))
        reply = self._run(fields, request)
        machines = [self._machine(each) for each in reply.get("Instances", [])]
        if len(machines) != request.count:
            raise UncertainError(f"EC2 made {len(machines)} of {request.count} machines", hint="the next command asks")
        return machines

    def _run(self, fields: Mapping[str, Any], request: CreateRequest) -> Mapping[str, Any]:
        what = f"cannot make {request.choice.words}"
        end_s = time.monotonic() + _PROFILE_S
        tries = 0
        while True:
            try:
                reply: Mapping[str, Any] = self.client.call("run_instances", what=what, **fields)
                return reply
            except UncertainError:
                tries += 1
                if tries >= _CREATE_TRIES:
                    raise
            except ProviderError as error:
                if tries:  # an earlier try may have made them: that this one was refused says nothing
                    raise UncertainError(f"{what}, and a reply was lost before: {error.message}") from error
                if not isinstance(error, RefusedError):
                    raise
                # IAM needs some seconds until EC2 knows a profile that was just made.
                is_new_profile = (
                    "iamInstanceProfile" in error.message or "Invalid IAM Instance Profile" in error.message
                )
                if not (is_new_profile and self._profile.is_new and time.monotonic() < end_s):
                    raise
            time.sleep(_PAUSE_S)

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate instances; those that EC2 does not know count as ended.

        Raises:
            UncertainError, ThrottledError: ask again.
        """
        left = list(dict.fromkeys(ids))
        while left:
            try:
                self.client.call("terminate_instances", what="cannot terminate machines", InstanceIds=left)
                return
            except RefusedError as error:
                # One unknown id fails the whole request, and its message names it.
                unknown = [each for each in left if re.search(rf"'[^']*\b{re.escape(each)}\b[^']*'", error.message)]
                if not unknown or not error.message.endswith((f"({_NOT_FOUND})", f"({_MALFORMED})")):
                    raise
                left = [each for each in left if each not in unknown]

    def _described(self, what: str, **fields: Any) -> list[Machine]:
        reservations = self.client.pages("describe_instances", "Reservations", what=what, **fields)
        return [self._machine(each) for reservation in reservations for each in reservation.get("Instances", [])]

    def _machine(self, data: Mapping[str, Any]) -> Machine:
        tags = {str(tag["Key"]): str(tag["Value"]) for tag in data.get("Tags", [])}
        state = _STATES.get(data.get("State", {}).get("Name", ""), "running")
        kind = str(data.get("InstanceType", ""))
        born_at = _seconds(data.get("LaunchTime"))
        return Machine(
            id=str(data["InstanceId"]),
            token=tags.get(TOKEN_TAG, str(data.get("ClientToken", ""))),
            group=tags.get(GROUP_TAG, ""),
            state=state,
            address=str(data.get("PrivateIpAddress") or ""),
            public_address=str(data.get("PublicIpAddress") or ""),
            choice=Choice(
                type=kind,
                region=self.name,
                zone=str(data.get("Placement", {}).get("AvailabilityZone", "")),
                is_spot=data.get("InstanceLifecycle") == "spot",
                price_per_hour=list_price(self.name, kind),
            ),
            born_at=born_at,
            ended_at=max(born_at, _ended_at(data)) if state == "ended" else None,
            why=_why(data) if state in {"ending", "ended"} else "",
            tags=tags,
        )


def _filter(name: str, *values: str) -> dict[str, Any]:
    return {"Name": name, "Values": list(values)}


def _seconds(at: object) -> float:
    return at.timestamp() if isinstance(at, datetime) else 0.0


def _ended_at(data: Mapping[str, Any]) -> float:
    """Return when an instance ended: EC2 has it only in words, `User initiated (2026-01-02 03:04:05 GMT)`.

    Where the words lack it, as after an interruption, this is when it was first seen to have ended.
    """
    found = re.search(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)", str(data.get("StateTransitionReason", "")))
    return float(timegm(time.strptime(found[1], "%Y-%m-%d %H:%M:%S"))) if found else time.time()


def _why(data: Mapping[str, Any]) -> str:
    reason = data.get("StateReason") or {}
    return str(reason.get("Message") or reason.get("Code") or data.get("StateTransitionReason") or "")
