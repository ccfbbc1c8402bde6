"""Replacement for Ray in scripts written for Ray Tune: `from windlass.tune import ray`.

`ray.init(num_cpus=2)` then limits the resources of this machine that sweeps use. A script that keeps `import ray` and calls
its `init` runs its trials on Ray.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.tune.errors import BadValueError

__all__ = ["Limits", "cluster_resources", "init", "is_initialized", "limits", "shutdown"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of this machine that sweeps may use; None stands for all of them."""

    num_cpus: float | None = None
    num_gpus: float | None = None


_stated: list[Limits] = []


def init(
    address: str | None = None, *, num_cpus: float | None = None, num_gpus: float | None = None, **settings: object
) -> None:
    """Limit the resources that sweeps in this process may use.

    Other settings, which are for Ray's own processes, are ignored.

    Raises:
        UsageError: an address was given, but there is no cluster to connect to.
    """
    del settings
    if address not in (None, "local"):
        hint = "keep `import ray` for a cluster: with Ray's own init, trials run on Ray"
        raise BadValueError(f"windlass.tune.ray cannot connect to {address!r}", hint=hint, code="invalid-value")
    _stated[:] = [Limits(num_cpus, num_gpus)]


def is_initialized() -> bool:
    """Return whether `init` has been called."""
    return bool(_stated)


def shutdown() -> None:
    """Forget the limits that `init` set."""
    _stated.clear()


def limits() -> Limits:
    """Return the limits that `init` set."""
    return _stated[0] if _stated else Limits()


def cluster_resources() -> dict[str, float]:
    """Return the resources that sweeps in this process may use: CPUs, and GPUs if `init` named them."""
    import os  # lazy: the name would be visible in this module, which replaces Ray's

    allowed = limits()
    found = {"CPU": float(allowed.num_cpus if allowed.num_cpus is not None else os.cpu_count() or 1)}
    return found | ({"GPU": float(allowed.num_gpus)} if allowed.num_gpus else {})
