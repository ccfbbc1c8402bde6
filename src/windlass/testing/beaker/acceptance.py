"""Validation of experiment specs by the fake Beaker, following the known rules of the real service.

Source: the docstrings of beaker-py (data model of spec v2) and its proto comments; where the service's behaviour is
unknown the fake is strict, so that specs that pass here are safe.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.testing.beaker.records import Workspace
from windlass.testing.beaker.world import BeakerState, Refused

__all__ = ["check_spec", "constrained_to"]

_EXPERIMENT_KEYS = {"version", "description", "tasks", "budget", "groups", "retry"}
_TASK_KEYS = {
    "name", "image", "command", "arguments", "envVars", "datasets", "result", "resources", "context", "constraints",
    "hostNetworking", "replicas", "leaderSelection", "propagateFailure", "propagatePreemption",
    "synchronizedStartTimeout", "timeout",
}  # fmt: skip
_INNER_KEYS = {
    "image": {"beaker", "docker"},
    "result": {"path"},
    "resources": {"cpuCount", "gpuCount", "memory", "sharedMemory"},
    "context": {"cluster", "priority", "preemptible", "minRuntime", "autoResume"},
    "constraints": {"cluster", "hostname"},
}
_SOURCES = {"beaker", "hostPath", "weka", "result", "secret", "volume"}
_PRIORITIES = {"low", "normal", "high", "urgent", "immediate"}
_SIZE = re.compile(r"\d+(\.\d+)?\s*([kmgt]i?b?|b)?\Z", re.IGNORECASE)
_HOUR_NS = 3_600_000_000_000
_MOST_REPLICAS = 1000
"""Each replica is a process on this machine."""


def check_spec(spec: Any, world: BeakerState, workspace: Workspace) -> None:
    """Raise Refused (400) for the first problem in a spec."""
    if not isinstance(spec, Mapping):
        raise Refused(400, "invalid spec: not an object")
    _known(spec, _EXPERIMENT_KEYS, "spec")
    if spec.get("version", "v2") not in ("v2", "v2-alpha"):
        raise Refused(400, f"invalid spec: unsupported version {spec['version']!r}")
    tasks = spec.get("tasks")
    if not isinstance(tasks, list) or not tasks:
        raise Refused(400, "invalid spec: an experiment must have at least one task")
    _unique([task["name"] for task in tasks if isinstance(task, Mapping) and task.get("name")], "task name")
    _check_retry(spec.get("retry"))
    if not (spec.get("budget") or workspace.budget_id):
        raise Refused(400, "budget is required: the workspace has no default budget")
    if spec.get("budget"):
        _must_exist(lambda: world.budget_id(spec["budget"]))
    for group in spec.get("groups") or ():
        _must_exist(lambda name=group: world.group(name))
    for index, task in enumerate(tasks):
        _check_task(task, f"tasks[{index}]", world, tasks)


def _check_task(task: Any, where: str, world: BeakerState, tasks: Sequence[Any]) -> None:
    if not isinstance(task, Mapping):
        raise Refused(400, f"invalid spec: {where} is not an object")
    _known(task, _TASK_KEYS, where)
    for key, keys in _INNER_KEYS.items():
        if task.get(key) is not None:
            _known(task[key], keys, f"{where}.{key}")
    _check_image(task.get("image"), where, world)
    _check_context(task, where, world)
    _check_durations(task, where)
    _check_strings(task, where)
    _check_variables(task.get("envVars") or (), where)
    _check_mounts(task, where, world, tasks)
    _check_resources(task.get("resources") or {}, where)
    replicas = task.get("replicas", 1)
    if not isinstance(replicas, int) or not 1 <= replicas <= _MOST_REPLICAS:
        raise Refused(400, f"invalid spec: {where}.replicas must be 1 to {_MOST_REPLICAS}, is {replicas!r}")


def _known(value: Any, keys: set[str], where: str) -> None:
    if not isinstance(value, Mapping):
        raise Refused(400, f"invalid spec: {where} is not an object")
    for key in value:
        if key not in keys:
            raise Refused(400, f"invalid spec: unknown field {key!r} in {where}")


def _unique(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Refused(400, f"invalid spec: {what} {name!r} is given twice")
        seen.add(name)


def _must_exist(look: Any) -> None:
    try:
        look()
    except Refused as refused:
        raise Refused(400, f"invalid spec: {refused.message}") from refused


def _check_retry(retry: Any) -> None:
    if retry is None:
        return
    _known(retry, {"allowedTaskRetries"}, "retry")
    count = retry.get("allowedTaskRetries", 0)
    if not isinstance(count, int) or not 0 <= count <= 10:
        raise Refused(400, f"invalid spec: retry.allowedTaskRetries must be 0 to 10, is {count!r}")


def _check_image(image: Any, where: str, world: BeakerState) -> None:
    given = [key for key in ("beaker", "docker") if (image or {}).get(key)]
    if len(given) != 1:
        raise Refused(400, f"invalid spec: {where}.image needs exactly one of beaker and docker")
    if given == ["beaker"]:
        _must_exist(lambda: world.image(image["beaker"]))


def _check_context(task: Mapping[str, Any], where: str, world: BeakerState) -> None:
    context = task.get("context")
    if context is None:
        raise Refused(400, f"invalid spec: {where}.context is required")
    if context.get("priority") is not None and context["priority"] not in _PRIORITIES:
        raise Refused(400, f"invalid spec: {where}.context.priority {context['priority']!r}")
    if "preemptible" in context and ("minRuntime" in context or "autoResume" in context):
        raise Refused(400, f"invalid spec: {where}.context: preemptible excludes minRuntime and autoResume")
    clusters = [context["cluster"]] if context.get("cluster") else []
    for cluster in [*clusters, *constrained_to(task, "cluster")]:
        _must_exist(lambda name=cluster: world.cluster(name))


def _check_durations(task: Mapping[str, Any], where: str) -> None:
    given = {
        "timeout": task.get("timeout"),
        "synchronizedStartTimeout": task.get("synchronizedStartTimeout"),
        "context.minRuntime": (task.get("context") or {}).get("minRuntime"),
    }
    for key, value in given.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise Refused(400, f"invalid spec: {where}.{key} must be whole nanoseconds, is {value!r}")
    start = given["synchronizedStartTimeout"]
    if start is not None and not 0 < start <= 48 * _HOUR_NS:
        raise Refused(400, f"invalid spec: {where}.synchronizedStartTimeout must be above 0 and at most 48h")


def _check_strings(task: Mapping[str, Any], where: str) -> None:
    for key in ("command", "arguments"):
        words = task.get(key)
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise Refused(400, f"invalid spec: {where}.{key} must be a list of strings")


def _check_variables(variables: Sequence[Any], where: str) -> None:
    for variable in variables:
        _known(variable, {"name", "value", "secret"}, f"{where}.envVars")
        if not variable.get("name"):
            raise Refused(400, f"invalid spec: a variable of {where} has no name")
        if variable.get("value") is not None and variable.get("secret") is not None:
            raise Refused(400, f"invalid spec: {where}: variable {variable['name']!r} has both a value and a secret")
        if not isinstance(variable.get("value"), (str, type(None))):
            raise Refused(400, f"invalid spec: {where}: the value of {variable['name']!r} must be a string")
    _unique([variable["name"] for variable in variables], f"{where}: variable")


def _check_mounts(task: Mapping[str, Any], where: str, world: BeakerState, tasks: Sequence[Any]) -> None:
    mounts = task.get("datasets") or ()
    for mount in mounts:
        _known(mount, {"mountPath", "subPath", "mode", "source"}, f"{where}.datasets")
        source = mount.get("source") or {}
        _known(source, _SOURCES, f"{where}.datasets.source")
        given = [key for key in source if source[key]]
        if len(given) != 1:
            raise Refused(400, f"invalid spec: {where}: mount {mount.get('mountPath')!r} needs exactly one source")
        _check_source(given[0], source[given[0]], mount, where, world, tasks)
    paths = [mount.get("mountPath") for mount in mounts]
    if task.get("result"):
        paths.append((task["result"] or {}).get("path"))
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/") or path.rstrip("/") == "":
            raise Refused(400, f"invalid spec: {where}: mount path {path!r} must be absolute and not the root")
    for first, second in itertools.combinations([path.rstrip("/").lower() for path in paths], 2):
        if first == second or first.startswith(second + "/") or second.startswith(first + "/"):
            raise Refused(400, f"invalid spec: {where}: mount paths {first!r} and {second!r} overlap")


def _check_source(
    kind: str, value: str, mount: Mapping[str, Any], where: str, world: BeakerState, tasks: Sequence[Any]
) -> None:
    allowed = {"beaker": "readonly", "secret": "readonly", "hostPath": "readwrite", "weka": "readwrite"}.get(kind)
    mode = mount.get("mode")
    if mode is not None and (mode not in ("readonly", "readwrite") or (allowed and mode != allowed)):
        raise Refused(400, f"invalid spec: {where}: mode {mode!r} is not possible for a {kind} mount")
    if kind == "beaker":
        _must_exist(lambda: world.dataset(value))
        if not world.dataset(value).committed_ns:
            raise Refused(400, f"invalid spec: {where}: dataset {value!r} is not committed")
    if kind == "volume":
        raise Refused(400, f"invalid spec: {where}: the workspace has no claim on volume {value!r}")
    if kind == "result" and value not in [task.get("name") for task in tasks if isinstance(task, Mapping)]:
        raise Refused(400, f"invalid spec: {where}: no task {value!r} with a result to mount")


def _check_resources(resources: Mapping[str, Any], where: str) -> None:
    gpus = resources.get("gpuCount")
    if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0):
        raise Refused(400, f"invalid spec: {where}.resources.gpuCount must be a whole number, is {gpus!r}")
    for key in ("memory", "sharedMemory"):
        size = resources.get(key)
        if size is not None and not (isinstance(size, str) and _SIZE.match(size)):
            raise Refused(400, f"invalid spec: {where}.resources.{key} {size!r} is not a size")


def constrained_to(task: Mapping[str, Any], key: str) -> list[str]:
    """Return the clusters or hosts that a task is constrained to; the client may send a single one as a string."""
    named = (task.get("constraints") or {}).get(key) or []
    return [named] if isinstance(named, str) else list(named)
