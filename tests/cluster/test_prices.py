"""The table of list prices: dated, whole, and silent about what it does not know."""

from __future__ import annotations

import re

from windlass.cluster.prices import PRICE_SOURCE, gpu_types, known_types, list_price, machine_type, price_date


def test_prices_have_a_date_and_a_source() -> None:
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", price_date())
    assert PRICE_SOURCE.startswith("https://aws.amazon.com/ec2/pricing")


def test_unknown_types_and_regions_have_no_price() -> None:
    assert list_price("us-west-2", "m5.large") == 0.096
    assert list_price("us-west-2", "m99.large") is None
    assert list_price("eu-north-9", "m5.large") is None
    assert list_price("eu-west-1", "p5.48xlarge") is None
    assert machine_type("m99.large") is None


def test_gpu_types_are_the_cheapest_first() -> None:
    assert gpu_types("us-west-2", 1, "A10G")[:2] == ("g5.xlarge", "g5.2xlarge")
    assert gpu_types("us-west-2", 8, "h100") == ("p5.48xlarge",)
    assert gpu_types("us-west-2", 1)[0] == "g4dn.xlarge"
    assert gpu_types("us-west-2", 3) == ()
    assert gpu_types("us-west-2", 0) == ()


def test_rows_are_plausible() -> None:
    for name in known_types():
        kind = machine_type(name)
        assert kind is not None
        assert kind.vcpus > 0
        assert kind.memory_gib > 0
        assert (kind.gpus > 0) == bool(kind.gpu_type)
        assert kind.prices
        assert all(0.005 < price < 100 for price in kind.prices.values())


def test_larger_types_of_a_family_cost_more() -> None:
    for name in known_types():
        family, _, size = name.partition(".")
        if size == "xlarge":
            small, large = list_price("us-east-1", name), list_price("us-east-1", f"{family}.4xlarge")
            assert large is None or (small is not None and small < large)
