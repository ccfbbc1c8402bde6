"""Settings of the virtual place, and faults on order of its cloud."""

from __future__ import annotations

import pytest

from windlass.cluster.config import ClusterConfig
from windlass.cluster.providers.virtual.faults import VirtualFault, VirtualFaults
from windlass.config.loading import load_config
from windlass.core.errors import SpecError


def test_a_fault_fits_stated_requests_so_often() -> None:
    faults = VirtualFaults()
    small = VirtualFault(kind="no-capacity", verb="create", type="small", after=1, count=2)
    faults.set([small, VirtualFault(kind="lost-reply")])

    def kind(verb: str, **asked: str) -> str:
        found = faults.take(verb, {"asked": asked})
        return found.kind if found else ""

    assert kind("create", type="large") == "lost-reply"
    assert kind("list") == ""
    assert [kind("create", type="small") for _ in range(4)] == ["", "no-capacity", "no-capacity", ""]
    faults.set([])
    assert kind("create", type="small") == ""


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("{prices: {}}", "no machine types"),
        ("{prices: {small: -1}}", "the price is -1"),
        ("{prices: {small: .inf}}", "the price is inf"),
        ("{image_folder: /x}", "image_folder"),
    ],
)
def test_prices_are_checked(place: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_config(ClusterConfig, f"{{name: lab, place: {{virtual: {place}}}}}", source="cluster.yaml")
