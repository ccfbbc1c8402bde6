"""Checks of EC2 before anything is made: credentials, clock, region, zones, types, key, image, network, quota."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from windlass.cluster.config import AwsPlace, NodeGroupConfig
from windlass.cluster.machine import Choice
from windlass.cluster.prices import machine_type
from windlass.cluster.providers.aws.client import AwsClient
from windlass.cluster.providers.aws.network import fetch_image
from windlass.cluster.providers.aws.offers import Choices, lacking_types, skips_of, types_of
from windlass.cluster.providers.aws.region import AwsRegion
from windlass.cluster.providers.protocol import ProviderError, RefusedError
from windlass.core.errors import Problem
from windlass.core.names import nearest

__all__ = ["problems_of", "quota_code"]

# Quotas of vCPUs that run at once: letters of the family -> code on demand, code as spot.
# Source: Amazon EC2 User Guide, "Amazon EC2 instance type quotas" and "Spot Instance quotas".
_QUOTAS = {
    "standard": ("L-1216C47A", "L-34B43A08"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "p": ("L-417A185B", "L-7212CCBC"),
    "inf": ("L-1945791B", "L-B5D1601B"),
    "trn": ("L-2C3B7624", "L-6B0D517C"),
}
_P5_SPOT = "L-C4BD4855"
_STANDARD = frozenset("acdhimrtz")


def problems_of(
    region: AwsRegion, groups: Mapping[str, NodeGroupConfig], choices: Choices, has_others: bool
) -> Iterator[Problem]:
    """Yield what would fail in a region; creates nothing. After an error of credentials or region, nothing else is asked.

    Args:
        has_others: the file names other regions, which are taken where this one lacks a machine type.
    """
    client, place = region.client, region.place
    if place.endpoint == "" and place.region not in client.regions():
        close = nearest(place.region, client.regions())
        hint = f"did you mean `{close}`?" if close else "`aws ec2 describe-regions` lists them"
        yield Problem(f"unknown region `{place.region}`", "provider-refused", hint=hint)
        return
    try:
        client.call("get_caller_identity", what="cannot use the credentials", service="sts")
        zones = client.call("describe_availability_zones", what=f"cannot use the region {place.region}")
    except ProviderError as error:
        yield _problem(error)
        return
    names = [str(each["ZoneName"]) for each in zones["AvailabilityZones"] if each.get("State") == "available"]
    for zone in place.zones:
        if zone not in names:
            hint = f"choose among {', '.join(names)}"
            yield Problem(f"`{place.region}` has no zone `{zone}`", "provider-refused", hint=hint)
    types = types_of(place, groups, choices)
    offered = {kind for kinds in types.values() for kind in kinds}
    try:
        offered = region.offered(sorted(offered))
    except ProviderError as error:
        yield _problem(error)
    if not has_others:
        yield from lacking_types(place.region, groups, types, offered)
    elif any(not skip.type for skip in skips_of(place.region, groups, types, offered)):
        return
    yield from _key_problems(client, place)
    yield from _network_problems(client, place)
    yield from _image_problems(client, place, groups)
    first = {
        name: next((choice for choice in choices(place, group) if choice.type in offered), None)
        for name, group in groups.items()
    }
    yield from _quota_problems(client, groups, first)


def _problem(error: ProviderError) -> Problem:
    return Problem(error.message, error.code, hint=error.hint)


def _asked(client: AwsClient, action: str, key: str, what: str, **fields: list[str]) -> Iterator[Problem]:
    """Yield the problem of a request that only has to succeed."""
    try:
        next(client.pages(action, key, what=what, **fields), None)
    except ProviderError as error:
        yield _problem(error)


def _key_problems(client: AwsClient, place: AwsPlace) -> Iterator[Problem]:
    if not place.key:
        return
    path = Path(place.key).expanduser()
    if not path.is_file():
        yield Problem(f"no key file {path}", "provider-refused", hint="correct `place.aws.key`")
    elif path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        message = f"ssh refuses the key file {path}: others may read it"
        yield Problem(message, "provider-refused", hint=f"chmod 600 {path}")
    what = f"cannot use the key pair `{place.key_name}`"
    yield from _asked(client, "describe_key_pairs", "KeyPairs", what, KeyNames=[place.key_name])


def _network_problems(client: AwsClient, place: AwsPlace) -> Iterator[Problem]:
    if place.subnets:
        yield from _asked(
            client, "describe_subnets", "Subnets", "cannot use the subnets", SubnetIds=list(place.subnets)
        )
    else:
        default = [{"Name": "is-default", "Values": ["true"]}]
        found = client.call("describe_vpcs", what="cannot find the network", Filters=default)["Vpcs"]
        if not found:
            hint = "add a subnet as `place.aws.subnets`, or `aws ec2 create-default-vpc`"
            yield Problem(f"{place.region} has no default network", "provider-refused", hint=hint)
    ids = [each for each in place.security_groups if each.startswith("sg-")]
    if ids:
        yield from _asked(
            client, "describe_security_groups", "SecurityGroups", "cannot use the security groups", GroupIds=ids
        )
    if place.profile:
        what = f"cannot use the instance profile `{place.profile}`"
        try:
            client.call("get_instance_profile", what=what, service="iam", InstanceProfileName=place.profile)
        except RefusedError as error:
            if "(NoSuchEntity)" in error.message:  # without the right to look, it may be there
                yield Problem(error.message, error.code, hint="`aws iam list-instance-profiles` lists them")


def _image_problems(client: AwsClient, place: AwsPlace, groups: Mapping[str, NodeGroupConfig]) -> Iterator[Problem]:
    for image in dict.fromkeys(str(group.options.get("ImageId") or place.image) for group in groups.values()):
        try:
            fetch_image(client, image)
        except ProviderError as error:
            yield _problem(error)


def quota_code(kind: str, *, is_spot: bool) -> str:
    """Return the code of the quota that a machine type counts against; empty if it is not known."""
    found = re.match(r"([a-z]+)(\d*)", kind)
    if found is None:
        return ""
    letters = "g" if found[1] in {"g", "vt"} else found[1]
    if letters == "p" and is_spot and found[2] >= "5":
        return _P5_SPOT
    family = letters if letters in _QUOTAS else "standard" if letters[0] in _STANDARD and letters != "dl" else ""
    return _QUOTAS[family][is_spot] if family else ""


def _quota_problems(
    client: AwsClient, groups: Mapping[str, NodeGroupConfig], choices: Mapping[str, Choice | None]
) -> Iterator[Problem]:
    """Yield quotas that the first choices of all groups exceed; a quota or a type that is not known refuses nothing."""
    wanted: dict[str, int] = {}
    for name, group in groups.items():
        first = choices[name]
        kind = machine_type(first.type) if first is not None else None
        code = quota_code(first.type, is_spot=first.is_spot) if first is not None else ""
        if kind is not None and code:
            count = 1 if name == "head" else group.least
            wanted[code] = wanted.get(code, 0) + count * kind.vcpus
    for code, vcpus in wanted.items():
        try:
            reply = client.call(
                "get_service_quota",
                what="cannot read a quota",
                service="service-quotas",
                ServiceCode="ec2",
                QuotaCode=code,
            )
            limit, name = float(reply["Quota"]["Value"]), str(reply["Quota"]["QuotaName"])
        except (ProviderError, KeyError, TypeError, ValueError):
            continue  # it may not be readable with these credentials; EC2 itself says so in time
        if vcpus > limit:
            message = f"the machines need {vcpus} vCPUs of the quota `{name}`, which is {limit:g}"
            hint = f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} --desired-value {vcpus}"
            yield Problem(message, "provider-refused", hint=hint)
