"""Provider of EC2 instances.

A request has the client token of its intent, so that sending it again never makes machines twice; all of a request's
machines are made or none (MinCount = MaxCount); each of them terminates when it shuts itself down.
"""

from __future__ import annotations

import os
import re
import time
from calendar import timegm
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from windlass.cluster.config import HEAD, ClusterConfig, NodeGroupConfig
from windlass.cluster.machine import Choice, Machine, MachineState, Notice
from windlass.cluster.prices import gpu_types, list_price
from windlass.cluster.providers.aws.checks import problems_of
from windlass.cluster.providers.aws.client import AwsClient
from windlass.cluster.providers.aws.network import AwsNetwork
from windlass.cluster.providers.aws.notices import fetch_notices
from windlass.cluster.providers.aws.request import (
    CLUSTER_TAG,
    GROUP_TAG,
    MAX_BOOT_BYTES,
    TOKEN_TAG,
    option_problems,
    run_fields,
)
from windlass.cluster.providers.protocol import CreateRequest, ProviderError, RefusedError, UncertainError
from windlass.core.errors import Problem

__all__ = ["WINDOW_S", "AwsProvider", "open_provider"]

WINDOW_S = 300.0
"""Seconds for which lists may not show an instance.

Source: Amazon EC2 Developer Guide, "Eventual consistency in the Amazon EC2 API": ask again for up to five minutes, since
an instance that was made may be unknown to later requests.
"""
_ENDPOINTS = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2"}
"""Variables that name another API than Amazon's, as botocore reads them."""

_OTHER_WINDOW_S = 5.0  # another API than Amazon's, for tests: on one machine
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


def open_provider(config: ClusterConfig, *, cluster: str, folder: Path) -> AwsProvider:
    """Return the provider of a cluster; makes no request, and imports boto3 with the first."""
    return AwsProvider(config, cluster=cluster, folder=folder)


class AwsProvider:
    """EC2 in the region of a cluster's file.

    Args:
        cluster: id of the cluster, which names what is made for it.
        folder: folder of the cluster on this machine, for its key.
        window_s: another window than that of the API, for tests.
    """

    name = "aws"
    is_rented = True

    def __init__(self, config: ClusterConfig, *, cluster: str, folder: Path, window_s: float | None = None) -> None:
        assert config.place.aws is not None
        self._config, self._place = config, config.place.aws
        usual_s = _OTHER_WINDOW_S if self._place.endpoint or _ENDPOINTS & os.environ.keys() else WINDOW_S
        self.window_s = usual_s if window_s is None else window_s
        self._client = AwsClient(self._place)
        self.network = AwsNetwork(self._client, self._place, cluster=cluster, folder=folder)

    def check(self, config: ClusterConfig) -> Sequence[Problem]:
        """Return what would fail; creates nothing."""
        groups = {HEAD: config.head, **config.groups}
        found = list(problems_of(self._client, self._place, groups, self.choices_of))
        known = self._client.fields("RunInstances")
        for name, group in groups.items():
            found += option_problems(name, group, known)
        return found

    def choices(self, config: ClusterConfig, group: str) -> Sequence[Choice]:
        """Return the types of a group in each zone or subnet; makes no request.

        All spot ones come first. Without zones and subnets, EC2 chooses among all of the region.
        """
        return self.choices_of(config.head if group == HEAD else config.groups[group])

    def choices_of(self, group: NodeGroupConfig) -> Sequence[Choice]:
        """Return the kinds of machines of a group, in order."""
        region = self._place.region
        types = group.types or gpu_types(region, group.gpus, group.gpu_type)
        places = self._place.subnets or self._place.zones or ("",)
        markets = {"spot": (True,), "spot-first": (True, False), "on-demand": (False,)}[group.market]
        return [
            Choice(type=kind, zone=where, is_spot=is_spot, price_per_hour=list_price(region, kind))
            for is_spot in markets
            for kind in types
            for where in places
        ]

    def list_machines(self, cluster: str) -> Sequence[Machine]:
        """Return the instances of a cluster that are not terminated.

        Raises:
            ProviderError: the list may be incomplete.
        """
        found = self._described("cannot list machines", Filters=[_filter(f"tag:{CLUSTER_TAG}", cluster)])
        return [machine for machine in found if machine.state != "ended"]

    def find(self, token: str) -> Sequence[Machine]:
        """Return the instances of a request, while EC2 knows them: about an hour after their end."""
        return self._described("cannot find machines", Filters=[_filter("client-token", token)])

    def describe(self, ids: Sequence[str]) -> Sequence[Machine]:
        """Return instances by id, while EC2 knows them; unknown ones are left out."""
        if not ids:
            return []
        # A filter, since one unknown id would make a request by ids fail.
        return self._described("cannot describe machines", Filters=[_filter("instance-id", *ids)])

    def create(self, request: CreateRequest) -> Sequence[Machine]:
        """Make instances, all or none. A request without a reply is sent again with the same token.

        Raises:
            ProviderError: one of its four kinds.
        """
        if len(request.boot) > MAX_BOOT_BYTES:
            message = f"the script that machines run has {len(request.boot)} bytes, and EC2 takes {MAX_BOOT_BYTES}"
            raise RefusedError(message, hint="shorten `setup` and `host_setup`")
        group = self._config.head if request.group == HEAD else self._config.groups.get(request.group)
        if group is None:
            raise RefusedError(f"no group `{request.group}` in the cluster's file", hint="add it")
        found = self.network.ensure(group, is_head=request.group == HEAD)
        fields = run_fields(self._place, group, request, found)
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
                reply: Mapping[str, Any] = self._client.call("run_instances", what=what, **fields)
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
                if not (is_new_profile and self.network.has_new_profile and time.monotonic() < end_s):
                    raise
            time.sleep(_PAUSE_S)

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate instances; those that EC2 does not know count as ended.

        EC2 may not yet know an instance that was just made: whoever ends a cluster lists it until the window has passed.

        Raises:
            UncertainError, ThrottledError: ask again.
        """
        left = list(dict.fromkeys(ids))
        while left:
            try:
                self._client.call("terminate_instances", what="cannot terminate machines", InstanceIds=left)
                return
            except RefusedError as error:
                # One unknown id fails the whole request, and its message names it.
                unknown = [each for each in left if re.search(rf"'[^']*\b{re.escape(each)}\b[^']*'", error.message)]
                if not unknown or not error.message.endswith((f"({_NOT_FOUND})", f"({_MALFORMED})")):
                    raise
                left = [each for each in left if each not in unknown]

    def notices(self) -> Sequence[Notice]:
        """Return the announcements for the instance that this runs on."""
        return fetch_notices()

    def _described(self, what: str, **fields: Any) -> list[Machine]:
        reservations = self._client.pages("describe_instances", "Reservations", what=what, **fields)
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
                zone=str(data.get("Placement", {}).get("AvailabilityZone", "")),
                is_spot=data.get("InstanceLifecycle") == "spot",
                price_per_hour=list_price(self._place.region, kind),
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
