"""The request that makes instances: what the file says, and what it may not say."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.cluster.config import AwsPlace, NodeGroupConfig
from windlass.cluster.machine import Choice
from windlass.cluster.providers.aws.request import InstanceSettings, option_problems, run_fields
from windlass.cluster.providers.protocol import CreateRequest
from windlass.config.annotations import JsonValue

FOUND = InstanceSettings(
    image="ami-1",
    root_device="/dev/sda1",
    root_gib=8,
    is_disk_kept=False,
    key_name="key",
    security_groups=("sg-1",),
    profile="",
)
KNOWN = frozenset(
    {"Placement", "InstanceMarketOptions", "BlockDeviceMappings", "Monitoring", "ClientToken", "MinCount"}
)


def fields(
    *,
    place: AwsPlace | None = None,
    group: NodeGroupConfig | None = None,
    zone: str = "",
    is_spot: bool = False,
    **found: Any,
) -> dict[str, Any]:
    request = CreateRequest(
        token="t", cluster="c-1", group="workers", count=3, choice=Choice(type="m5.large", zone=zone, is_spot=is_spot)
    )
    surroundings = InstanceSettings(**{**{name: getattr(FOUND, name) for name in FOUND.__slots__}, **found})
    return run_fields(place or AwsPlace(region="us-west-2"), group or NodeGroupConfig(), request, surroundings)


def test_all_or_none_once_and_gone_with_its_shutdown() -> None:
    made = fields()
    assert (made["MinCount"], made["MaxCount"], made["ClientToken"]) == (3, 3, "t")
    assert made["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert made["SecurityGroupIds"] == ["sg-1"]
    assert "Placement" not in made
    assert "BlockDeviceMappings" not in made
    assert made == fields()


def test_zones_and_subnets_are_where_the_choice_says() -> None:
    assert fields(zone="us-west-2a")["Placement"] == {"AvailabilityZone": "us-west-2a"}
    assert fields(zone="subnet-1")["SubnetId"] == "subnet-1"
    tenancy = NodeGroupConfig(options={"Placement": {"Tenancy": "dedicated"}})
    assert fields(zone="z", group=tenancy)["Placement"] == {"Tenancy": "dedicated", "AvailabilityZone": "z"}


def test_private_machines_have_no_public_address() -> None:
    made = fields(place=AwsPlace(region="us-west-2", is_private=True), zone="subnet-1")
    (interface,) = made["NetworkInterfaces"]
    assert interface == {
        "DeviceIndex": 0,
        "AssociatePublicIpAddress": False,
        "SubnetId": "subnet-1",
        "Groups": ["sg-1"],
    }
    assert "SecurityGroupIds" not in made
    assert "SubnetId" not in made


def test_a_spot_request_ends_with_its_machine() -> None:
    options: dict[str, JsonValue] = {
        "InstanceMarketOptions": {"SpotOptions": {"MaxPrice": "0.5", "SpotInstanceType": "persistent"}}
    }
    made = fields(group=NodeGroupConfig(market="spot", options=options), is_spot=True)
    spot = made["InstanceMarketOptions"]
    assert spot["MarketType"] == "spot"
    assert spot["SpotOptions"] == {
        "MaxPrice": "0.5",
        "SpotInstanceType": "one-time",
        "InstanceInterruptionBehavior": "terminate",
    }
    assert [each["ResourceType"] for each in made["TagSpecifications"]] == [
        "instance",
        "volume",
        "spot-instances-request",
    ]


def test_disks_end_with_their_machine() -> None:
    (sized,) = fields(group=NodeGroupConfig(disk=100 * 2**30 + 1))["BlockDeviceMappings"]
    assert sized["Ebs"] == {"DeleteOnTermination": True, "VolumeType": "gp3", "VolumeSize": 101}
    (kept,) = fields(is_disk_kept=True)["BlockDeviceMappings"]
    assert kept["Ebs"] == {"DeleteOnTermination": True, "VolumeType": "gp3", "VolumeSize": 8}


def test_tags_name_cluster_group_and_token_whatever_the_file_says() -> None:
    stated: JsonValue = [
        {"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "x"}, {"Key": "Name", "Value": "mine"}]}
    ]
    made = fields(
        place=AwsPlace(region="us-west-2", tags={"budget": "b"}),
        group=NodeGroupConfig(options={"TagSpecifications": stated}),
    )
    tags = {each["Key"]: each["Value"] for each in made["TagSpecifications"][0]["Tags"]}
    assert tags == {
        "Name": "c-1-workers",
        "budget": "b",
        "windlass-cluster": "c-1",
        "windlass-group": "workers",
        "windlass-token": "t",
        "team": "x",
    }


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (NodeGroupConfig(options={"Monitoring": {"Enabled": True}}), []),
        (
            NodeGroupConfig(options={"ClientToken": "x"}),
            ["`groups.w.options.ClientToken` is decided by windlass [conflicting-options]"],
        ),
        (
            NodeGroupConfig(options={"Placement": {"AvailabilityZone": "a"}}),
            ["`groups.w.options.Placement.AvailabilityZone` is decided by windlass [conflicting-options]"],
        ),
        (NodeGroupConfig(options={"Monitorin": 1}), ["unknown field `Monitorin` in `groups.w.options` [unknown-key]"]),
        (
            NodeGroupConfig(options={"InstanceMarketOptions": {}}),
            ["`groups.w.options.InstanceMarketOptions` needs `market: spot` [setting-unused]"],
        ),
        (
            NodeGroupConfig(options={"BlockDeviceMappings": []}, disk=2**30),
            ["both `groups.w.options.BlockDeviceMappings` and `disk` are set [conflicting-options]"],
        ),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(group: NodeGroupConfig, expected: list[str]) -> None:
    found = [f"{each.message} [{each.code}]" for each in option_problems("w", group, KNOWN)]
    assert found == expected
