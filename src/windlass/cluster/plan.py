"""Plan of a cluster: the machines that `up` makes, what they cost at most, and what would fail. Creates nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from windlass.cluster.config import HEAD, ClusterConfig, NodeGroupConfig
from windlass.cluster.machine import Choice
from windlass.cluster.providers.protocol import Provider, RegionalProvider, Skip
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem

__all__ = ["ClusterPlan", "PlanRow", "changed_settings", "missing_files", "plan_up"]

_SETTINGS = tuple(each.name for each in fields(ClusterConfig) if each.name != "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """Machines of a group.

    Attributes:
        least, most: number of machines at first, and at most.
        choices: kinds to try, in order.
    """

    group: str
    least: int
    most: int
    choices: tuple[Choice, ...]

    @property
    def price_per_hour(self) -> float | None:
        """Return the list price of the most expensive kind that may be taken; None if one is unknown."""
        prices = [choice.price_per_hour for choice in self.choices]
        known = [price for price in prices if price is not None]
        return max(known) if known and len(known) == len(prices) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Machines of a cluster.

    Attributes:
        is_rented: whether machines are made and paid for.
        skips: what is not tried since a region lacks it.
        problems: what would fail; nothing is made while there is one.
    """

    rows: tuple[PlanRow, ...]
    is_rented: bool
    problems: tuple[Problem, ...]
    skips: tuple[Skip, ...] = ()

    @property
    def per_hour(self) -> float | None:
        """Return what the machines of the start cost in an hour at most, in US dollars; None if a price is unknown."""
        return self._sum([row.least for row in self.rows])

    @property
    def most_per_hour(self) -> float | None:
        """Return what all machines together can cost in an hour, in US dollars; None if a price is unknown."""
        return self._sum([row.most for row in self.rows])

    def _sum(self, counts: Sequence[int]) -> float | None:
        total = 0.0
        for row, count in zip(self.rows, counts, strict=True):
            if count and row.price_per_hour is None:
                return None
            total += count * (row.price_per_hour or 0.0)
        return total


def plan_up(config: ClusterConfig, provider: Provider) -> ClusterPlan:
    """Return what `up` would make; asks the provider, and creates nothing."""
    problems = provider.check(config)
    skips: tuple[Skip, ...] = ()
    if isinstance(provider, RegionalProvider) and not problems:
        skips = tuple(provider.skips(config))
    rows = tuple(_rows(config, provider, skips))
    plan = ClusterPlan(rows=rows, is_rented=provider.is_rented, problems=(), skips=skips)
    return replace(plan, problems=(*missing_files(config), *_price_problems(config, plan), *problems))


def missing_files(config: ClusterConfig) -> list[Problem]:
    """Return which `files` of a cluster are not on this machine."""
    hint = "correct `files` of the cluster"
    missing = [here for here in config.files.values() if not Path(here).exists()]
    return [Problem(f"no such file or folder: {here}", "file-not-found", hint=hint) for here in missing]


def _rows(config: ClusterConfig, provider: Provider, skips: Sequence[Skip]) -> Iterator[PlanRow]:
    for name, group in {HEAD: config.head, **config.groups}.items():
        counts = (1, 1) if name == HEAD else (max(group.least, group.initial), group.most)
        listed = provider.choices(config, name)
        choices = tuple(choice for choice in listed if not any(skip.fits(choice) for skip in skips))
        yield PlanRow(group=name, least=counts[0], most=counts[1], choices=choices)


def _price_problems(config: ClusterConfig, plan: ClusterPlan) -> Iterator[Problem]:
    """Yield why the limits of the file cannot be kept."""
    limits = config.price
    for name, limit in (("per_hour", limits.per_hour), ("total", limits.total)):
        if limit is not None and plan.most_per_hour is None:
            unknown = next((row for row in plan.rows if row.most and row.price_per_hour is None), plan.rows[0])
            kinds = ", ".join(_unpriced(unknown)) or "none"
            message = f"`price.{name}` cannot be kept: no list price is known for {kinds} of `{unknown.group}`"
            yield Problem(message, "price-unknown", hint=f"choose other types, or remove `price.{name}`")
    if limits.per_hour is not None and plan.per_hour is not None and plan.per_hour > limits.per_hour:
        message = f"the machines of the start cost up to ${plan.per_hour:.2f} an hour, `price.per_hour` is ${limits.per_hour:.2f}"
        yield Problem(message, "price-limit", hint="raise `price.per_hour`, or take fewer or cheaper machines")


def _unpriced(row: PlanRow) -> dict[str, None]:
    """Return the types of a group that have no known list price, with their regions."""
    without = [choice for choice in row.choices if choice.price_per_hour is None]
    return dict.fromkeys(" in ".join(filter(None, [choice.type or "any", choice.region])) for choice in without)


def changed_settings(before: ClusterConfig, now: ClusterConfig) -> list[str]:
    """Return the settings that a file changed and that a cluster that is up cannot take over.

    What runs on a node is not replaced. Hosts of `ssh` may be added, and groups of such hosts may be added and grow.
    """
    if before.place.ssh is None or now.place.ssh is None:
        return [name for name in _SETTINGS if getattr(before, name) != getattr(now, name)]
    fixed = [name for name in _SETTINGS if name not in {"place", "groups", "max_nodes"}]
    found = [name for name in fixed if getattr(before, name) != getattr(now, name)]
    old, new = before.place.ssh.hosts, now.place.ssh.hosts
    if old[0] != new[0] or not set(old) <= set(new):
        found.append("place.ssh.hosts")
    if replace(before.place.ssh, hosts=()) != replace(now.place.ssh, hosts=()):
        found.append("place.ssh")
    for name, group in before.groups.items():
        larger = now.groups.get(name, NodeGroupConfig(count=0))
        if larger.least < group.least or _without_counts(group) != _without_counts(larger):
            found.append(f"groups.{name}")
    return found


def _without_counts(group: NodeGroupConfig) -> NodeGroupConfig:
    return replace(group, count=None, min=0, max=None, initial=0)
