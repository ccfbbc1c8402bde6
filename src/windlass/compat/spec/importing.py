"""Conversion of Beaker's spec to an experiment.

Keys without an equivalent are kept, so that an export is lossless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from windlass.compat.spec.escaping import escaped
from windlass.compat.spec.reading import checked_spec, value_text
from windlass.compat.spec.writing import BEAKER_IMAGE, DEFAULT_READY_S, ENTRY_POINT, results_of, written, written_task
from windlass.core.merge_patch import patch_between
from windlass.core.names import is_name
from windlass.plan.beaker.quantities import parse_size_bytes, seconds_of
from windlass.spec.command import Command
from windlass.spec.env import Env, SecretUse
from windlass.spec.experiment import Experiment
from windlass.spec.image import Image
from windlass.spec.limits import Context, Limit, Retry
from windlass.spec.load import checked
from windlass.spec.task import Gpus, Task

__all__ = ["experiment_name", "to_experiment"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_PRIORITIES: Mapping[str, Literal["low", "normal", "high", "urgent"]] = {
    "low": "low",
    "normal": "normal",
    "high": "high",
    "urgent": "urgent",
    "immediate": "urgent",
    "preemptible": "low",
}
_MAX_NODES, _MAX_GPUS, _MAX_BYTES = 10_000, 1024, 2**53
_SHELL = ("/bin/sh", "-c")
T = TypeVar("T")


def to_experiment(spec: Mapping[str, Any], *, name: str = "", source: str = "<spec>") -> Experiment:
    """Return the experiment for a spec; `from_experiment` restores exactly the same spec.

    Args:
        spec: plain data, as written in a file or as submitted.
        name: name of the experiment, which a spec lacks. Default: the first task's name.
        source: name of the spec in messages.

    Raises:
        SpecError: Beaker would reject the spec; contains every problem.
    """
    spec = checked_spec(spec, source)
    names = _task_names(spec["tasks"])
    tasks: dict[str, Mapping[str, Any]] = dict(zip(names, spec["tasks"], strict=True))
    common = _common_variables(list(tasks.values()))
    called = {task["name"]: ours for ours, task in tasks.items() if task.get("name")}
    experiment = Experiment(
        name=name or names[0],
        why=spec.get("description") or "",
        env=Env(image=_image(tasks), vars=common, secrets=_common_secrets(list(tasks.values()))),
        tasks={ours: _task(task, common, called) for ours, task in tasks.items()},
        context=_context(spec, tasks),
        limit=Limit(time=_agreed(tasks, lambda task: seconds_of(task.get("timeout")))),
        retry=_retry(spec, tasks),
    )
    return _with_kept(checked(experiment), spec)


def experiment_name(text: str) -> str:
    """Return the valid name closest to a given text, such as `my-run` for `My Run`."""
    if is_name(text):
        return text
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")[:64].strip("-._") or "experiment"


def _with_kept(experiment: Experiment, spec: Mapping[str, Any]) -> Experiment:
    """Return the experiment with all keys that its export would otherwise lack, so that the import is lossless."""
    kept = patch_between(written(experiment), {key: value for key, value in spec.items() if key != "tasks"})
    tasks = {}
    for (name, task), wanted in zip(experiment.tasks.items(), spec["tasks"], strict=True):
        known = _division(wanted)
        base = written_task(experiment, name, {**wanted, **known})
        tasks[name] = replace(task, beaker={**known, **patch_between(base, wanted)})
    return checked(replace(experiment, beaker=kept, tasks=tasks))


def _division(task: Mapping[str, Any]) -> dict[str, int]:
    """Return how many words at the end of `run` are arguments, if command and arguments are lists of strings."""
    command, arguments = task.get("command") or [], task.get("arguments") or []
    is_text = all(isinstance(word, str) for word in (*command, *arguments))
    return {"arguments": len(arguments)} if command and arguments and is_text else {}


def _task_names(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a distinct valid name for each task: its own name if that is valid."""
    own = [task.get("name") or "" for task in tasks]
    taken = {name for name in own if _is_task_name(name)}
    names = []
    for at, name in enumerate(own):
        ours = name if _is_task_name(name) else _made_name(name, at, len(own))
        while ours in taken and ours != name:
            ours = f"{ours[:60]}-{at + 1}"
        taken.add(ours)
        names.append(ours)
    return names


def _made_name(text: str, at: int, num_tasks: int) -> str:
    made = experiment_name(text).replace(".", "-").strip("-_") if text else ""
    return made if _is_task_name(made) else "main" if num_tasks == 1 else f"task-{at + 1}"


def _is_task_name(text: str) -> bool:
    return is_name(text) and "." not in text


def _task(task: Mapping[str, Any], common: Mapping[str, str], called: Mapping[str, str]) -> Task:
    resources = task.get("resources") or {}
    constraints = task.get("constraints") or {}
    run = _run(task)
    own = {key: value for key, value in _plain_variables(task).items() if key not in common}
    gpus, replicas = resources.get("gpuCount"), task.get("replicas")
    return Task(
        run=run,
        after=tuple(dict.fromkeys(called[name] for name in results_of(task.get("datasets")))),
        nodes=replicas if replicas is not None and replicas <= _MAX_NODES else None,
        gpus=Gpus(count=gpus) if gpus is not None and gpus <= _MAX_GPUS else None,
        cpus=float(resources.get("cpuCount") or 0) or None,
        memory=_bytes(resources.get("memory")),
        shared_memory=_bytes(resources.get("sharedMemory")),
        hosts=_hosts(constraints.get("hostname") or (), replicas),
        vars=own,
        ready_timeout=seconds_of(task.get("synchronizedStartTimeout")) or DEFAULT_READY_S,
        compat=("beaker",) if _reads_beaker(run, {**common, **own}) else (),
    )


def _hosts(stated: str | Sequence[str], replicas: int | None) -> tuple[str, ...]:
    """Return the hosts if there is one for each replica.

    Beaker chooses from a longer list, which is therefore kept as a Beaker key.
    """
    names = [stated] if isinstance(stated, str) else stated
    return tuple(names) if len(names) == (replicas or 1) else ()


def _run(task: Mapping[str, Any]) -> Command:
    words = [escaped(str(word)) for word in (task.get("command") or [])]
    if not words:
        return ENTRY_POINT
    words += [escaped(str(word)) for word in (task.get("arguments") or [])]
    is_line = len(words) == 3 and tuple(words[:2]) == _SHELL and words[2].strip()
    return words[2] if is_line else tuple(words)


def _reads_beaker(run: Command, variables: Mapping[str, str]) -> bool:
    """Return True if the command itself reads variables set by Beaker."""
    texts = [*([run] if isinstance(run, str) else run), *variables.values()]
    return any("BEAKER_" in text for text in texts)


def _image(tasks: Mapping[str, Mapping[str, Any]]) -> Image:
    """Return the image of the first task; tasks with a different image keep it as a Beaker key."""
    image = next(iter(tasks.values()))["image"]
    return Image(name=image["docker"] if image.get("docker") else BEAKER_IMAGE + image["beaker"])


def _context(spec: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> Context:
    contexts = [task.get("context") or {} for task in tasks.values()]
    priority = contexts[0].get("priority") or "normal"
    groups = spec.get("groups") or []
    return Context(
        priority=_PRIORITIES[priority],
        preemptible=all(_is_preemptible(context) for context in contexts),
        group=groups[0] if len(groups) == 1 else "",
    )


def _is_preemptible(context: Mapping[str, Any]) -> bool:
    return bool(context.get("autoResume") or context.get("preemptible")) or context.get("priority") == "preemptible"


def _retry(spec: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> Retry:
    failed = (spec.get("retry") or {}).get("allowedTaskRetries") or 0
    is_left = all((task.get("context") or {}).get("autoResume") is False for task in tasks.values())
    return Retry(failed=failed, interrupted=0) if is_left else Retry(failed=failed)


def _agreed(tasks: Mapping[str, Mapping[str, Any]], of: Callable[[Mapping[str, Any]], T]) -> T | None:
    """Return the value that all tasks share, or None if they differ."""
    values = {of(task) for task in tasks.values()}
    return values.pop() if len(values) == 1 else None


def _variables(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in task.get("envVars") or [] if _VARIABLE.match(each["name"])]


def _plain_variables(task: Mapping[str, Any]) -> dict[str, str]:
    return {
        each["name"]: escaped(value_text(each["value"])) if each.get("value") is not None else ""
        for each in _variables(task)
        if each.get("secret") is None
    }


def _common_variables(tasks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the variables with the same value in every task."""
    others = [_plain_variables(task) for task in tasks[1:]]
    return {
        name: value
        for name, value in _plain_variables(tasks[0]).items()
        if all(other.get(name) == value for other in others)
    }


def _common_secrets(tasks: Sequence[Mapping[str, Any]]) -> tuple[SecretUse, ...]:
    """Return the secrets that every task gets, because an experiment gives each secret to all tasks."""
    found = [_secrets(task) for task in tasks]
    common = {name: secret for name, secret in found[0].items() if all(each.get(name) == secret for each in found)}
    return tuple(SecretUse(name=name, from_="" if secret == name else secret) for name, secret in common.items())


def _secrets(task: Mapping[str, Any]) -> dict[str, str]:
    found = {each["name"]: each["secret"] for each in _variables(task) if each.get("secret") is not None}
    return {name: secret for name, secret in found.items() if _VARIABLE.match(secret)}


def _bytes(text: object) -> int | None:
    num_bytes = parse_size_bytes(text) if isinstance(text, str) else 0
    return num_bytes if 0 < num_bytes <= _MAX_BYTES else None
