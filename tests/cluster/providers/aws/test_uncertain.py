"""A request for instances one of whose replies was lost: what a later try says is no proof that none were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_plan import config_of
from windlass.cluster.machine import Choice
from windlass.cluster.providers.aws import region as module
from windlass.cluster.providers.aws.provider import AwsProvider
from windlass.cluster.providers.aws.request import InstanceSettings
from windlass.cluster.providers.protocol import (
    CreateRequest,
    NoCapacityError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UncertainError,
)

FILE = "{name: lab, place: {aws: {region: us-west-2}}, head: {types: [m5.large]}}"
REQUEST = CreateRequest(token="t", cluster="lab-1", group="head", count=1, choice=Choice(type="m5.large"))
LOST = UncertainError("no reply")
CAPACITY, BUSY, REFUSED = NoCapacityError("none left"), ThrottledError("too many", after_s=1.0), RefusedError("no key")


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([CAPACITY], NoCapacityError),
        ([BUSY], ThrottledError),
        ([REFUSED], RefusedError),
        ([LOST, CAPACITY], UncertainError),
        ([LOST, BUSY], UncertainError),
        ([LOST, LOST, REFUSED], UncertainError),
        ([LOST, LOST, LOST], UncertainError),
    ],
)
def test_only_a_first_refusal_says_that_nothing_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replies: list[ProviderError], expected: type[ProviderError]
) -> None:
    left = list(replies)

    def call(action: str, **_: Any) -> Any:
        assert action == "run_instances"
        raise left.pop(0)

    found = InstanceSettings(
        image="ami-1", root_device="", root_gib=0, is_disk_kept=False, key_name="", security_groups=(), profile=""
    )
    provider = AwsProvider(config_of(FILE), cluster="lab-1", folder=tmp_path)
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    region = provider._region("us-west-2")
    monkeypatch.setattr(region.client, "call", call)
    monkeypatch.setattr(provider._profile, "ensure", lambda: "")
    monkeypatch.setattr(region.network, "ensure", lambda group, profile: found)
    with pytest.raises(ProviderError) as caught:
        provider.create(REQUEST)
    assert type(caught.value) is expected
    assert left == []
