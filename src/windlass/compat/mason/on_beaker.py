"""Beaker-only settings of a mason command line, kept in a task's `compat` extension at a Beaker site."""

from __future__ import annotations

from typing import Any

from windlass.compat.mason.options import MasonOptions
from windlass.compat.mason.reading import MasonLaunch
from windlass.compat.to_experiment.destination import Destination

__all__ = ["asked_of_beaker", "clusters_note"]


def asked_of_beaker(launch: MasonLaunch, place: Destination, partitions: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of a Beaker task that have no equivalent in an experiment; empty at other sites."""
    if place.kind != "beaker":
        return {}
    options, asked = launch.options, dict[str, Any]()
    if options.hostname:  # Beaker chooses any of them; `hosts` of a task requires all of them
        asked["constraints"] = {"hostname": list(options.hostname)}
    elif not partitions:
        asked["constraints"] = {"cluster": list(options.cluster)}
    context: dict[str, Any] = {"priority": "immediate"} if options.priority == "immediate" else {}
    if options.min_runtime_ns:
        context["minRuntime"] = options.min_runtime_ns
    if context:
        asked["context"] = context
    mounts = [each for each in launch.spec["tasks"][0]["datasets"] if each["mountPath"] not in place.present]
    if mounts:
        asked["datasets"] = mounts
    return asked


def clusters_note(options: MasonOptions, place: Destination) -> list[str]:
    """Return notes on options that the profile of a Beaker site overrides."""
    if place.kind != "beaker" or not options.workspace:
        return []
    return [f"--workspace {options.workspace}: the run uses the workspace in the profile of `{place.name}`"]
