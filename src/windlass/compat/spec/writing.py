"""Conversion of an experiment to Beaker's spec v2: first windlass's own keys, then the kept Beaker keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windlass.compat.spec import keys
from windlass.compat.spec.escaping import plain_text
from windlass.core.merge_patch import merge
from windlass.plan.beaker.quantities import duration_text, size_text
from windlass.spec import Experiment, Task

__all__ = ["BEAKER_IMAGE", "DEFAULT_READY_S", "ENTRY_POINT", "from_experiment", "results_of", "written", "written_task"]

BEAKER_IMAGE = "beaker:"
"""Prefix of the name of a Beaker image; other names are Docker references."""

ENTRY_POINT = "echo 'only Beaker can start this image through its own entry point' >&2; exit 78"
"""Command of a task whose spec has none."""

DEFAULT_READY_S = 600.0
_GANG = ("hostNetworking", "leaderSelection", "propagateFailure", "propagatePreemption")


def from_experiment(experiment: Experiment) -> dict[str, Any]:
    """Return Beaker's spec for an experiment, as a user would write it: durations are text.

    `sent` converts it to what Beaker's client sends.

    Settings that only windlass has are left out; `check_export` lists them.

    Raises:
        SpecError: a command or a variable contains a token that has no value outside windlass.
    """
    spec = merge(written(experiment), dict(experiment.beaker))
    tasks = [_in_order(_task(experiment, name), keys.TASK) for name in experiment.tasks]
    return _in_order({**spec, "tasks": tasks}, keys.EXPERIMENT)


def _in_order(found: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """Return the known keys in their usual order, then the others."""
    return {key: found[key] for key in (*(each for each in known if each in found), *found)}


def written(experiment: Experiment) -> dict[str, Any]:
    """Return the spec without its tasks and without the keys kept for Beaker."""
    spec: dict[str, Any] = {"version": "v2"}
    spec |= {"description": experiment.why} if experiment.why else {}
    spec |= {"budget": experiment.context.account} if experiment.context.account else {}
    spec |= {"groups": [experiment.context.group]} if experiment.context.group else {}
    spec |= {"retry": {"allowedTaskRetries": experiment.retry.failed}} if experiment.retry.failed else {}
    return spec


def _task(experiment: Experiment, name: str) -> Any:
    kept = dict(experiment.tasks[name].beaker)
    base = written_task(experiment, name, kept)
    return merge(base, {key: value for key, value in kept.items() if not is_count(key, value)})


def is_count(key: str, value: object) -> bool:
    """Return True if the value is a number, as in `arguments: 2`.

    It says how many words at the end of `run` are Beaker's `arguments`.
    """
    return key == "arguments" and isinstance(value, int) and not isinstance(value, bool)


def written_task(experiment: Experiment, name: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task in the spec, without the keys kept for Beaker; `kept` is read only to avoid repeating them."""
    task = experiment.tasks[name]
    found: dict[str, Any] = {"name": name}
    found |= {"image": _image(experiment.env.image.name)} if experiment.env.image.name else {}
    found |= _words(experiment, name, kept.get("arguments"))
    variables = list(_variables(experiment, name))
    found |= {"envVars": variables} if variables else {}
    datasets = list(_results(experiment, task, kept))
    found |= {"datasets": datasets} if datasets else {}
    resources = _resources(task)
    found |= {"resources": resources} if resources else {}
    found["context"] = _context(experiment)
    found |= {"constraints": {"hostname": list(task.hosts)}} if task.hosts else {}
    found |= {"replicas": task.nodes} if task.nodes is not None else {}
    found |= dict.fromkeys(_GANG, True) if task.num_nodes > 1 else {}
    if task.ready_timeout != DEFAULT_READY_S:
        found["synchronizedStartTimeout"] = duration_text(task.ready_timeout)
    if experiment.limit.time is not None:
        found["timeout"] = duration_text(experiment.limit.time)
    return found


def _image(name: str) -> dict[str, str]:
    if name.startswith(BEAKER_IMAGE):
        return {"beaker": name.removeprefix(BEAKER_IMAGE)}
    return {"docker": name.removeprefix("docker:").removeprefix("//")}


def _words(experiment: Experiment, name: str, arguments: object) -> dict[str, list[str]]:
    """Return command and arguments.

    `arguments` is the number of words at the end of `run`, or the words themselves.
    """
    run, path = experiment.tasks[name].run, f"tasks.{name}.run"
    if isinstance(run, str):
        words = ["/bin/sh", "-c", plain_text(run, path, experiment, name, is_shell=True)]
    else:
        words = [plain_text(word, path, experiment, name) for word in run]
    if isinstance(arguments, int) and 0 < arguments < len(words):
        return {"command": words[:-arguments], "arguments": words[-arguments:]}
    tail = [str(word) for word in arguments] if isinstance(arguments, list) else []
    is_tail = tail and len(tail) < len(words) and words[-len(tail) :] == tail
    return {"command": words[: -len(tail)] if is_tail else words}


def _variables(experiment: Experiment, name: str) -> Iterator[dict[str, str]]:
    own = experiment.tasks[name].vars
    for path, variables in (("env.vars", experiment.env.vars), (f"tasks.{name}.vars", own)):
        for key, value in variables.items():
            if variables is own or key not in own:
                yield {"name": key, "value": plain_text(value, f"{path}.{key}", experiment, name)}
    for secret in experiment.env.secrets:
        yield {"name": secret.name, "secret": secret.source}


def _results(experiment: Experiment, task: Task, kept: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield mounts of the results of the tasks in `after`, since Beaker orders tasks only by such mounts."""
    said = set(results_of(kept.get("datasets")))
    for other in task.after:
        name = experiment.tasks[other].beaker.get("name")
        called = name if isinstance(name, str) else other
        if called not in said:
            yield {"mountPath": f"/results-of/{other}", "source": {"result": called}}


def results_of(datasets: object) -> Iterator[str]:
    """Yield the names of the tasks whose results are mounted."""
    for dataset in datasets if isinstance(datasets, Sequence) else ():
        source = dataset.get("source") if isinstance(dataset, Mapping) else None
        result = source.get("result") if isinstance(source, Mapping) else None
        if isinstance(result, str) and result:
            yield result


def _resources(task: Task) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if task.cpus is not None:
        found["cpuCount"] = int(task.cpus) if task.cpus == int(task.cpus) else task.cpus
    found |= {"gpuCount": task.gpus.count} if task.gpus is not None else {}
    found |= {"memory": size_text(task.memory)} if task.memory is not None else {}
    found |= {"sharedMemory": size_text(task.shared_memory)} if task.shared_memory is not None else {}
    return found


def _context(experiment: Experiment) -> dict[str, Any]:
    context: dict[str, Any] = {"priority": experiment.context.priority}
    if not experiment.retry.interrupted:
        context["autoResume"] = False
    elif experiment.context.preemptible:
        context["autoResume"] = True
    return context
