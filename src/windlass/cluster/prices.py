"""List prices of machine types, dated: `prices.json`. A price that is not in it is unknown, and nothing is guessed.

Prices are those of Linux on demand, in US dollars per hour, as listed on the date of the table; Amazon changes them, and
a bill may differ. Spot machines cost at most the list price, since that is the highest bid that EC2 accepts.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from windlass.core.dataclass import dataclass
from windlass.core.json_text import decode_json

__all__ = ["PRICE_SOURCE", "MachineType", "gpu_types", "known_types", "list_price", "machine_type", "price_date"]

PRICE_SOURCE = "https://aws.amazon.com/ec2/pricing/on-demand/"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine type.

    Attributes:
        gpu_type: kind of its GPUs, such as `a10g`; empty: none.
        prices: region -> US dollars per hour.
    """

    name: str
    vcpus: int
    memory_gib: float
    gpus: int
    gpu_type: str
    prices: dict[str, float]


def list_price(region: str, name: str) -> float | None:
    """Return the list price of a machine type, in US dollars per hour; None: unknown."""
    found = machine_type(name)
    return None if found is None else found.prices.get(region)


def machine_type(name: str) -> MachineType | None:
    """Return a machine type; None: unknown."""
    return _table()[1].get(name)


def known_types() -> list[str]:
    """Return the names of all types in the table."""
    return list(_table()[1])


def gpu_types(region: str, gpus: int, gpu_type: str = "") -> tuple[str, ...]:
    """Return the types of a region with exactly so many GPUs, cheapest first; with 0, none.

    Args:
        gpu_type: kind of the GPUs in any case; empty: any.
    """
    fitting = [
        each
        for each in _table()[1].values()
        if gpus and each.gpus == gpus and gpu_type.lower() in {"", each.gpu_type} and region in each.prices
    ]
    return tuple(each.name for each in sorted(fitting, key=lambda each: (each.prices[region], each.name)))


def price_date() -> str:
    """Return the date of the table, `2025-07-01`."""
    return _table()[0]


@cache
def _table() -> tuple[str, dict[str, MachineType]]:
    data = decode_json(files("windlass.cluster").joinpath("prices.json").read_bytes())
    regions = data["regions"]
    found = {}
    for name, (vcpus, memory_gib, gpus, gpu_type, *prices) in data["types"].items():
        known = {region: price for region, price in zip(regions, prices, strict=True) if price is not None}
        found[name] = MachineType(
            name=name, vcpus=vcpus, memory_gib=memory_gib, gpus=gpus, gpu_type=gpu_type, prices=known
        )
    return data["date"], found
