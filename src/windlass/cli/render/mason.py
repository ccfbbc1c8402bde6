"""Page that describes the experiment `windlass mason` would send to Beaker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windlass.compat.mason.reading import MasonLaunch
from windlass.core.units import format_duration

__all__ = ["page"]


def page(launch: MasonLaunch) -> str:
    """Return the page: the experiment, the settings of all tasks, then each task's command and variables."""
    first = launch.spec["tasks"][0]
    rows = [*_experiment(launch), *_common(launch, first)]
    lines = [f"{head:<13} {text}" for head, text in rows if text]
    for command, task in zip(launch.commands, launch.spec["tasks"], strict=True):
        lines += ["", f"{'task':<13} {task['name']}", f"{'command':<13} {command.text}"]
        if command.training and not launch.options.no_auto_dataset_cache and launch.own.cache != "none":
            lines.append(f"{'before':<13} cache the dataset of {command.training} on this machine")
        lines += [f"{head:<13} {text}" for head, text in _variables(task)]
    return "\n".join(lines)


def _experiment(launch: MasonLaunch) -> Iterator[tuple[str, str]]:
    options = launch.options
    yield "experiment", f"{launch.name}  ({options.description})"
    yield "workspace", options.workspace or "your default"
    yield "budget", options.budget or "the workspace's"
    yield "user", launch.user
    if launch.is_resumable:
        yield "run", f"{launch.identity.run_id}; continue it with --run-id {launch.identity.run_id}"


def _common(launch: MasonLaunch, task: dict[str, Any]) -> Iterator[tuple[str, str]]:
    options = launch.options
    place = "hosts" if options.hostname else "clusters"
    yield place, ", ".join(options.hostname or options.cluster)
    yield "nodes", f"{options.num_nodes} with {options.gpus} GPUs and {options.shared_memory} of shared memory"
    yield "image", options.image
    yield "priority", f"{options.priority}, {_preemption(launch)}"
    yield "retries", str(options.max_retries)
    yield "timeout", "" if options.timeout_ns is None else format_duration(options.timeout_ns / 10**9)
    yield "mounts", ", ".join(f"{each['mountPath']} ({_source(each['source'])})" for each in task["datasets"])


def _preemption(launch: MasonLaunch) -> str:
    safe_ns = launch.options.min_runtime_ns
    if safe_ns:
        return f"safe from preemption for {format_duration(safe_ns / 10**9)}"
    return "preemptible" if launch.options.preemptible or safe_ns == 0 else "not preemptible"


def _source(source: dict[str, str]) -> str:
    ((kind, name),) = source.items()
    return {"weka": f"Weka bucket {name}", "hostPath": "of the host"}.get(kind, f"dataset {name}")


def _variables(task: dict[str, Any]) -> Iterator[tuple[str, str]]:
    head = "variables"
    for variable in task["envVars"]:
        text = f"secret {variable['secret']}" if "secret" in variable else variable["value"]
        yield head, f"{variable['name']} = {text}"
        head = ""
