"""Trainables of these tests, in a module that workers import."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from windlass.tune.trainable.session import get_context, report

__all__ = ["asks_ray", "counts", "place", "prints", "waits"]


def counts(config: dict[str, Any]) -> None:
    """Reports `n` scores."""
    for step in range(config["n"]):
        time.sleep(config.get("sleep_s", 0.0))
        report({"score": config.get("x", 0) * step})


def place(config: dict[str, Any]) -> dict[str, Any]:
    """Says where it runs."""
    return {"pid": os.getpid(), "devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""), "trial": get_context().trial_id}


def prints(config: dict[str, Any]) -> None:
    """Prints."""
    sys.stdout.write(config["text"] + "\n")


def waits(config: dict[str, Any]) -> None:
    """Says that it runs, and waits for a file."""
    report({"pid": os.getpid()})
    while not Path(config["until"]).exists():
        time.sleep(0.01)


def asks_ray(config: dict[str, Any]) -> dict[str, Any]:
    """Uses the trial's other bundles for a task of its own, as any code on Ray does."""
    import ray  # type: ignore[import-untyped,unused-ignore]
    from ray.util.placement_group import get_current_placement_group

    @ray.remote(num_cpus=1)  # type: ignore[untyped-decorator,unused-ignore]
    def inner() -> str | None:
        group = get_current_placement_group()
        return None if group is None else group.id.hex()

    group = get_current_placement_group()
    return {"mine": None if group is None else group.id.hex(), "inner": ray.get(inner.remote(), timeout=300)}
