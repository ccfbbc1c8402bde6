"""Request that makes instances, from a group of the cluster's file; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.cluster.config import HEAD, AwsPlace, NodeGroupConfig
from windlass.cluster.providers.protocol import CreateRequest
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem

__all__ = [
    "CLUSTER_TAG",
    "GROUP_TAG",
    "MAX_BOOT_BYTES",
    "TOKEN_TAG",
    "InstanceSettings",
    "option_problems",
    "run_fields",
]

CLUSTER_TAG = "windlass-cluster"
GROUP_TAG = "windlass-group"
TOKEN_TAG = "windlass-token"  # noqa: S105 - a name
MAX_BOOT_BYTES = 16 << 10
"""Limit of user data; source: Amazon EC2 User Guide, "Run commands when you launch an instance"."""

_GIB = 1 << 30
# Fields of RunInstances that the file's own settings decide: field -> what to write instead.
_OURS = {
    "ClientToken": "remove it; windlass makes one for each request",
    "DryRun": "remove it; `windlass cluster up` shows its plan before it acts",
    "IamInstanceProfile": "write `place.aws.profile`",
    "InstanceInitiatedShutdownBehavior": "remove it; machines that end themselves are always terminated",
    "InstanceType": "write `types` of the group",
    "KeyName": "write `place.aws.key_name` and `place.aws.key`",
    "MaxCount": "write `count`, or `min` and `max`",
    "MinCount": "write `count`, or `min` and `max`",
    "UserData": "write `host_setup` or `setup`",
}
_NOT_IN = {
    "Placement": {"AvailabilityZone": "write `place.aws.zones`"},
    "InstanceMarketOptions": {"MarketType": "write `market: spot`"},
}
_SPOT_ONLY = ("SpotInstanceType", "InstanceInterruptionBehavior")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """Image, key and network of a cluster's instances, by their names at EC2.

    Attributes:
        root_device: name of the image's first disk.
        root_gib: its size in the image, in GiB; 0: unknown.
        is_disk_kept: whether the image's first disk would outlive its machine.
    """

    image: str
    root_device: str
    root_gib: int
    is_disk_kept: bool
    key_name: str
    security_groups: tuple[str, ...]
    profile: str


def option_problems(name: str, group: NodeGroupConfig, known: frozenset[str]) -> Iterator[Problem]:
    """Yield why a group's `options` cannot be fields of the request.

    Args:
        known: fields of RunInstances.
    """
    at = "head.options" if name == HEAD else f"groups.{name}.options"
    for key, value in group.options.items():
        hint = _OURS.get(key, "")
        inner = _NOT_IN.get(key, {})
        stated = [part for part in inner if isinstance(value, Mapping) and part in value]
        if hint:
            yield Problem(f"`{at}.{key}` is decided by windlass", "conflicting-options", hint=hint)
        elif stated:
            message = f"`{at}.{key}.{stated[0]}` is decided by windlass"
            yield Problem(message, "conflicting-options", hint=inner[stated[0]])
        elif key not in known:
            hint = "see the fields of RunInstances in the EC2 API reference"
            yield Problem(f"unknown field `{key}` in `{at}`", "unknown-key", hint=hint)
        elif key == "InstanceMarketOptions" and group.market == "on-demand":
            yield Problem(f"`{at}.{key}` needs `market: spot`", "setting-unused", hint="add `market: spot`")
        elif key == "BlockDeviceMappings" and group.disk:
            message = f"both `{at}.{key}` and `disk` are set"
            yield Problem(message, "conflicting-options", hint="keep one of them")


def run_fields(
    place: AwsPlace, group: NodeGroupConfig, request: CreateRequest, found: InstanceSettings
) -> dict[str, Any]:
    """Return the fields of RunInstances; the same request always has the same, as its client token demands."""
    fields: dict[str, Any] = {
        "ImageId": found.image,
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 2},
        **group.options,
        "InstanceType": request.choice.type,
        "MinCount": request.count,
        "MaxCount": request.count,
        "ClientToken": request.token,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": _tags(place, group, request),
    }
    if "BlockDeviceMappings" not in fields and (group.disk or found.is_disk_kept):
        # A disk that outlives its machine is paid for without end.
        gib = -(-group.disk // _GIB) or found.root_gib
        disk = {"DeleteOnTermination": True, "VolumeType": "gp3", **({"VolumeSize": gib} if gib else {})}
        fields["BlockDeviceMappings"] = [{"DeviceName": found.root_device, "Ebs": disk}]
    if found.key_name:
        fields["KeyName"] = found.key_name
    if found.profile:
        fields["IamInstanceProfile"] = {"Name": found.profile}
    if request.boot:
        fields["UserData"] = request.boot
    if request.choice.is_spot:
        fields["InstanceMarketOptions"] = _spot(group)
    _place(fields, place, request.choice.zone, found.security_groups)
    return fields


def _place(fields: dict[str, Any], place: AwsPlace, where: str, groups: tuple[str, ...]) -> None:
    """Set zone or subnet, security groups, and whether there is a public address."""
    is_subnet = where.startswith("subnet-")
    if where and not is_subnet:
        fields["Placement"] = {**fields.get("Placement", {}), "AvailabilityZone": where}
    if "NetworkInterfaces" in fields:
        return  # the file states the whole network, its own groups included
    if not place.is_private:
        if is_subnet:
            fields["SubnetId"] = where
        fields.setdefault("SecurityGroupIds", list(groups))
        return
    interface: dict[str, Any] = {"DeviceIndex": 0, "AssociatePublicIpAddress": False}
    subnet = where if is_subnet else str(fields.pop("SubnetId", ""))
    if subnet:
        interface["SubnetId"] = subnet
    interface["Groups"] = fields.pop("SecurityGroupIds", list(groups))
    fields["NetworkInterfaces"] = [interface]


def _spot(group: NodeGroupConfig) -> dict[str, Any]:
    """Return a spot request that is over when its machine is."""
    stated = group.options.get("InstanceMarketOptions", {})
    options = stated.get("SpotOptions", {}) if isinstance(stated, Mapping) else {}
    kept = dict(options) if isinstance(options, Mapping) else {}
    once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    return {"MarketType": "spot", "SpotOptions": {**kept, **once}}


def _tags(place: AwsPlace, group: NodeGroupConfig, request: CreateRequest) -> list[dict[str, Any]]:
    ours = {
        "Name": f"{request.cluster}-{request.group}",
        **place.tags,
        CLUSTER_TAG: request.cluster,
        GROUP_TAG: request.group,
        TOKEN_TAG: request.token,
    }
    tags = [{"Key": key, "Value": value} for key, value in ours.items()]
    found: list[dict[str, Any]] = [
        {"ResourceType": kind, "Tags": tags}
        for kind in ("instance", "volume", *(["spot-instances-request"] if request.choice.is_spot else []))
    ]
    stated = group.options.get("TagSpecifications", [])
    for each in stated if isinstance(stated, list) else []:
        if not isinstance(each, Mapping):
            continue
        listed = each.get("Tags")
        further = [
            dict(tag)
            for tag in (listed if isinstance(listed, list) else [])
            if isinstance(tag, Mapping) and tag.get("Key") not in ours
        ]
        same = next((mine for mine in found if mine["ResourceType"] == each.get("ResourceType")), None)
        if same is None:
            found.append({"ResourceType": each.get("ResourceType"), "Tags": further})
        else:
            same["Tags"] = [*same["Tags"], *further]
    return found
