"""Order in which kinds of machines are tried. Pure.

The list of a group is tried from its start, so spot machines come first where the file wants them first. A kind that was
refused for want of machines is left out for `REFUSED_S`, so that fallbacks cost one request in that time, and tried again
after it: that is the way back to spot. A request is for all of its machines, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.cluster.machine import Choice

__all__ = ["PAUSE_S", "REFUSED_S", "exceeds_limit", "order_choices", "wait_s"]

REFUSED_S = 600.0
"""Time in seconds in which a refused kind is left out while there are others."""

PAUSE_S = 10.0
"""Pause of a group all of whose kinds were refused."""


def order_choices(choices: Sequence[Choice], refused_s: Mapping[Choice, float], now_s: float) -> list[Choice]:
    """Return the kinds to try now, in order; those that were refused lately come last.

    Args:
        refused_s: when each kind was last refused; one that was made since is not in it.
    """
    late = [each for each in choices if each in refused_s and now_s - refused_s[each] < REFUSED_S]
    return [each for each in choices if each not in late] + late


def wait_s(choices: Sequence[Choice], refused_s: Mapping[Choice, float], now_s: float) -> float:
    """Return how long a group should wait because all of its kinds were refused a moment ago; 0: not at all."""
    if not choices or any(each not in refused_s for each in choices):
        return 0.0
    return max(0.0, max(refused_s[each] for each in choices) + PAUSE_S - now_s)


def exceeds_limit(limit: float | None, prices: Sequence[float | None], price: float | None, count: int) -> str:
    """Return why machines would cost more in an hour than the limit; empty if they do not.

    Args:
        prices: prices per hour of the machines that there are; None: unknown.
        price: that of each new one.
    """
    if limit is None:
        return ""
    if price is None or any(each is None for each in prices):
        return f"the price per hour is not known, and the limit is {limit:g} USD"
    total = sum(each for each in prices if each is not None) + count * price
    return f"{total:.3f} USD per hour with it, and the limit is {limit:g} USD" if total > limit + 1e-9 else ""
