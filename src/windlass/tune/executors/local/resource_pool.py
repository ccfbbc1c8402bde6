"""Accounting of this machine's resources for trials. Arithmetic only.

Amounts are counted in steps of 1/10000, so that ten tenths make exactly one. The bundles of a trial are summed, because
all are on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windlass.core.phrases import size
from windlass.tune.executors.protocol import Fit, Room
from windlass.tune.trial import Resources

__all__ = ["ResourcePool", "ResourceShare"]

_STEPS = 10_000
_GPU = "GPU"


@dataclass(slots=True)
class ResourceShare:
    """Resources held by one slot, as integer amounts by name and by GPU."""

    amounts: dict[str, int] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)


class ResourcePool:
    """Pool that counts which resources are free.

    Args:
        totals: amounts by name, without GPUs.
        gpus: ids of all GPUs, as in `CUDA_VISIBLE_DEVICES`.
        are_ours: False if each GPU becomes usable only after `add_gpu`.
    """

    def __init__(self, totals: Mapping[str, float], gpus: Sequence[str] = (), *, are_ours: bool = True) -> None:
        self._totals = {name: _steps(amount) for name, amount in totals.items()}
        self._free = dict(self._totals)
        self._all_gpus = tuple(gpus)
        self._gpus = dict.fromkeys(gpus, _STEPS) if are_ours else {}

    def add_gpu(self, gpu: str) -> None:
        """Add a GPU to the pool."""
        self._gpus.setdefault(gpu, _STEPS)

    def remove_gpu(self, gpu: str) -> None:
        """Remove a GPU that no trial holds."""
        del self._gpus[gpu]

    def room(self, resources: Resources) -> Room:
        """Return whether a trial with these resources fits now, later or never.

        GPU use by other programs is not considered.
        """
        amounts, gpus = _demand(resources)
        reason = self._never(resources, amounts, gpus)
        if reason:
            return Room(Fit.NEVER, reason)
        for name, steps in amounts.items():
            if steps > self._free[name]:
                free, total = _text(self._free[name], name), _text(self._totals[name], name)
                return Room(Fit.LATER, f"it needs {_text(steps, name)} {name}, {free} of {total} free")
        if self._choose(gpus) is None:
            return Room(Fit.LATER, f"it needs {_text(sum(gpus), _GPU)} GPU, {self._text_free_gpus()}")
        return Room(Fit.NOW)

    def lacks_gpus(self, resources: Resources) -> bool:
        """Return whether GPUs are the only resource that a trial lacks."""
        amounts, gpus = _demand(resources)
        has_rest = all(steps <= self._free.get(name, 0) for name, steps in amounts.items())
        return has_rest and self._choose(gpus) is None

    def _never(self, resources: Resources, amounts: Mapping[str, int], gpus: Sequence[int]) -> str:
        if resources.strategy == "STRICT_SPREAD" and len([b for b in resources.bundles if any(b.values())]) > 1:
            return f"STRICT_SPREAD needs {len(resources.bundles)} machines, and this is one"
        for name, steps in amounts.items():
            if steps > self._totals.get(name, 0):
                total = _text(self._totals.get(name, 0), name)
                return f"it needs {_text(steps, name)} {name}, but this machine has {total}"
        for steps in gpus:
            if steps > _STEPS and steps % _STEPS:
                return f"it needs {steps / _STEPS:g} GPUs: amounts above 1 must be whole numbers"
        if ResourcePool({}, self._all_gpus)._choose(gpus) is None:
            return f"it needs {_text(sum(gpus), _GPU)} GPU, but this machine has {len(self._all_gpus)}"
        return ""

    def take(self, resources: Resources) -> ResourceShare:
        """Reserve the resources for a trial. Call this only if `room` returned NOW."""
        amounts, gpus = _demand(resources)
        chosen = self._choose(gpus)
        assert chosen is not None
        for name, steps in amounts.items():
            self._free[name] -= steps
        for gpu, steps in chosen.items():
            self._gpus[gpu] -= steps
        return ResourceShare(amounts, chosen)

    def claim(self, resources: Resources, gpus: Sequence[str]) -> ResourceShare:
        """Reserve the resources that a trial already uses, on these GPUs, even beyond the totals."""
        amounts, demands = _demand(resources)
        share = ResourceShare(amounts, {})
        left = sum(demands)
        for gpu in gpus:
            share.gpus[gpu] = min(_STEPS, left)
            left -= share.gpus[gpu]
        for name, steps in amounts.items():
            self._free[name] = self._free.get(name, 0) - steps
        for gpu, steps in share.gpus.items():
            self._gpus[gpu] = self._gpus.get(gpu, _STEPS) - steps
        return share

    def give(self, share: ResourceShare) -> None:
        """Release what a slot holds, and clear its record."""
        for name, steps in share.amounts.items():
            self._free[name] += steps
        for gpu, steps in share.gpus.items():
            self._gpus[gpu] += steps
        share.amounts, share.gpus = {}, {}

    @property
    def totals(self) -> dict[str, float]:
        """Return the total amount of each resource by name."""
        totals = {name: steps / _STEPS for name, steps in self._totals.items()}
        return totals | {_GPU: float(len(self._all_gpus))} if self._all_gpus else totals

    @property
    def idle_gpus(self) -> set[str]:
        """Return the GPUs that no trial uses."""
        return {gpu for gpu, free in self._gpus.items() if free == _STEPS}

    def _choose(self, demands: Sequence[int]) -> dict[str, int] | None:
        """Choose GPUs, or return None if they do not fit.

        Whole GPUs are chosen first; a fraction goes to the fullest GPU on which it fits.
        """
        free = dict(self._gpus)
        chosen: dict[str, int] = {}
        for steps in sorted(demands, reverse=True):
            found = _place(steps, free)
            if found is None:
                return None
            for gpu, part in found.items():
                free[gpu] -= part
                chosen[gpu] = chosen.get(gpu, 0) + part
        return chosen

    def _text_free_gpus(self) -> str:
        parts = ", ".join(f"{free / _STEPS:g} of GPU {gpu}" for gpu, free in self._gpus.items() if free)
        return f"free are {parts}" if parts else "none of it free"


def _place(steps: int, free: Mapping[str, int]) -> dict[str, int] | None:
    if steps >= _STEPS:
        whole = [gpu for gpu, left in free.items() if left == _STEPS][: _count(steps)]
        return dict.fromkeys(whole, _STEPS) if len(whole) == _count(steps) else None
    fits = [gpu for gpu, left in free.items() if left >= steps]
    return {min(fits, key=lambda gpu: free[gpu]): steps} if fits else None


def _count(steps: int) -> int:
    return -(-steps // _STEPS)


def _demand(resources: Resources) -> tuple[dict[str, int], list[int]]:
    """Return the amounts of everything except GPUs, and the GPU amount of each bundle, both in steps."""
    amounts: dict[str, int] = {}
    gpus = []
    for bundle in resources.bundles:
        for name, amount in bundle.items():
            steps = _steps(amount)
            if name == _GPU:
                gpus += [steps] if steps else []
            elif steps:
                amounts[name] = amounts.get(name, 0) + steps
    return amounts, gpus


def _steps(amount: float) -> int:
    return round(amount * _STEPS)


def _text(steps: int, name: str) -> str:
    amount = steps / _STEPS
    return f"{size(amount)} of" if name == "memory" and amount >= 1e6 else f"{amount:g}"
