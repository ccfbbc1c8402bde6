"""What a trial asks of Ray: bundles of resources as options of an actor and as a placement group, and whether they fit.

Everything here is arithmetic on dictionaries; nothing imports Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.tune.trial import Resources

__all__ = ["actor_options", "describe", "group_bundles", "left_after", "needs_group"]

_TINY = 1e-4
"""Ray counts resources in steps of 1/10000."""

_MAX_STEPS = 1_000
"""Of the search for a placement; past it, a shape counts as one that fits, and Ray decides."""

Amounts = Mapping[str, float]


def needs_group(resources: Resources) -> bool:
    """Whether a placement group must hold the bundles together; one bundle is simply its actor's."""
    return len(group_bundles(resources)) > 1


def group_bundles(resources: Resources) -> list[dict[str, float]]:
    """The bundles of the placement group; an empty one needs no place."""
    return [found for bundle in resources.bundles if (found := _positive(bundle))]


def actor_options(resources: Resources) -> dict[str, Any]:
    """Options for the trial's own process, which gets the whole of the first bundle; what is not said is none."""
    own = _positive(resources.bundles[0]) if resources.bundles else {}
    options: dict[str, Any] = {"num_cpus": own.pop("CPU", 0), "num_gpus": own.pop("GPU", 0)}
    if "memory" in own:
        options["memory"] = int(own.pop("memory"))
    if own:
        options["resources"] = own
    return options


def describe(resources: Resources) -> str:
    """The shape for people: `2 x {1 CPU, 0.5 GPU} SPREAD`."""
    texts = [", ".join(f"{amount:g} {name}" for name, amount in sorted(b.items())) for b in group_bundles(resources)]
    counts = {text: texts.count(text) for text in texts}
    said = " + ".join(f"{count} x {{{text}}}" if count > 1 else f"{{{text}}}" for text, count in counts.items())
    return (said or "{}") + (f" {resources.strategy}" if len(texts) > 1 else "")


def left_after(resources: Resources, free: Sequence[Amounts]) -> list[dict[str, float]] | None:
    """What the nodes have free once the bundles lie on them, biggest bundle first; None where they do not fit.

    Exact up to `_MAX_STEPS` tries; PACK and SPREAD fit where any split over the nodes does. Of strategies Ray does not
    know, none fits.
    """
    bundles = group_bundles(resources)
    if resources.strategy == "STRICT_PACK":
        bundles = [_positive(resources.total)] if bundles else []
    elif resources.strategy not in ("PACK", "SPREAD", "STRICT_SPREAD"):
        return None
    bundles.sort(key=lambda bundle: sorted(bundle.values(), reverse=True), reverse=True)
    room = [dict(amounts) for amounts in free]
    search = _Search(bundles, room, is_strict=resources.strategy == "STRICT_SPREAD")
    return room if search.fits(0) else None


class _Search:
    """Tries nodes for one bundle after another; equal nodes count as one."""

    def __init__(self, bundles: list[dict[str, float]], room: list[dict[str, float]], *, is_strict: bool) -> None:
        self.bundles, self.room, self.is_strict = bundles, room, is_strict
        self.taken: list[int] = []
        self.num_steps = 0

    def fits(self, number: int) -> bool:
        if number == len(self.bundles):
            return True
        bundle, tried = self.bundles[number], list[dict[str, float]]()
        for index, amounts in enumerate(self.room):
            if (self.is_strict and index in self.taken) or amounts in tried or not _fits(bundle, amounts):
                continue
            self.num_steps += 1
            if self.num_steps > _MAX_STEPS:
                return True
            tried.append(dict(amounts))
            _take(bundle, amounts, 1)
            self.taken.append(index)
            if self.fits(number + 1):
                return True
            self.taken.pop()
            _take(bundle, amounts, -1)
        return False


def _fits(bundle: Amounts, amounts: Amounts) -> bool:
    return all(amounts.get(name, 0.0) + _TINY >= amount for name, amount in bundle.items())


def _take(bundle: Amounts, amounts: dict[str, float], sign: int) -> None:
    for name, amount in bundle.items():
        amounts[name] = round(amounts[name] - sign * amount, 6)


def _positive(bundle: Amounts) -> dict[str, float]:
    return {name: amount for name, amount in bundle.items() if amount > 0}
