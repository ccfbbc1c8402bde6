"""Keys under `beaker` at a Beaker site: those that are sent to Beaker, and those that windlass handles."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.merge_patch import LITERAL, is_literal
from windlass.plan.beaker.quantities import parse_duration_ns
from windlass.spec import Experiment

__all__ = ["ALWAYS", "OF_WINDLASS", "asked_of_beaker", "divided", "kept_of_run", "mounts_of_storage"]

ALWAYS = {
    "hostNetworking": "processes use the network of their machine",
    "leaderSelection": "the first replica is always the leader",
    "propagateFailure": "the replicas of a task end together",
    "propagatePreemption": "the replicas of a task end together, and start together again",
}
"""Keys that ask for what windlass always does, whatever their value."""

OF_WINDLASS = (
    *("name", "image", "command", "arguments", "envVars", "result", "replicas", "synchronizedStartTimeout", "timeout"),
    *ALWAYS,
)
"""Keys of a task that windlass handles itself at a Beaker site."""


_OF_SITE = ("context", "constraints", "resources", "datasets")


def kept_of_run(experiment: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the top-level keys that are sent to Beaker; windlass handles `retry`."""
    return {key: value for key, value in experiment.items() if key not in ("retry", "tasks")}


def asked_of_beaker(task: Mapping[str, Any], clusters: Sequence[str] = ()) -> dict[str, Any]:
    """Return those of a task's keys that are sent to Beaker.

    Args:
        clusters: the site's clusters, among which a spec may choose; any if empty.
    """
    return divided(task, clusters)[0]


def divided(task: Mapping[str, Any], clusters: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a task's keys into those that are sent to Beaker and those that windlass handles."""
    sent: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for key, kept in task.items():
        value = kept[LITERAL] if is_literal(kept) else kept
        if key == "datasets" and isinstance(value, list):
            parts: tuple[Any, Any] = (
                [each for each in value if not _is_result(each)],
                [each for each in value if _is_result(each)],
            )
        elif key in ("context", "constraints") and isinstance(value, Mapping):
            parts = _inner(value, clusters, is_constraint=key == "constraints")
        else:
            is_removal = value is None and key in _OF_SITE  # empty in the spec: the site's value is used
            is_ours = is_removal or (key in OF_WINDLASS and not (key == "hostNetworking" and value is True))
            (ours if is_ours else sent)[key] = value
            continue
        sent |= {key: parts[0]} if parts[0] else {}
        ours |= {key: parts[1]} if parts[1] else {}
    return sent, ours


def _inner(
    value: Mapping[str, Any], clusters: Sequence[str], *, is_constraint: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the keys of `context` or `constraints` like `divided`."""
    sent: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for key, part in value.items():
        named = part if isinstance(part, list) else [part]
        is_other = key == "cluster" and bool(clusters) and not set(map(str, named)) <= set(clusters)
        is_ours = part is None or is_other or key in ("preemptible", "autoResume")
        is_name = key in ("cluster", "hostname") and isinstance(part, str)
        (ours if is_ours else sent)[key] = [part] if is_name and not is_ours and is_constraint else part
    if isinstance(sent.get("minRuntime"), str):
        with contextlib.suppress(ValueError):  # Beaker checks it
            sent["minRuntime"] = parse_duration_ns(sent["minRuntime"])
    return sent, ours


def _is_result(dataset: object) -> bool:
    """Return whether a dataset is the result of another task."""
    source = dataset.get("source") if isinstance(dataset, Mapping) else None
    return isinstance(source, Mapping) and source.get("result") is not None


def mounts_of_storage(experiment: Experiment) -> tuple[str, ...]:
    """Return the paths at which all tasks mount Weka buckets and host folders."""
    found: dict[str, None] = {}
    for task in experiment.tasks.values():
        datasets: Any = task.beaker.get("datasets")
        for dataset in datasets if isinstance(datasets, list) else ():
            source = dataset.get("source") if isinstance(dataset, Mapping) else None
            if isinstance(source, Mapping) and (source.get("weka") or source.get("hostPath")):
                found[str(dataset.get("mountPath", ""))] = None
    return tuple(mount for mount in found if mount.startswith("/"))
