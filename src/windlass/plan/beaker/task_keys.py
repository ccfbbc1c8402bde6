"""Decisions about the keys under one task's `beaker`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from windlass.config.path import join_path, split_path
from windlass.core.dataclass import dataclass
from windlass.core.merge_patch import LITERAL, is_literal
from windlass.plan.beaker.patch import ALWAYS
from windlass.plan.beaker.quantities import parse_duration_ns, parse_size_bytes
from windlass.spec import Experiment, Task

if TYPE_CHECKING:
    from windlass.plan.site import Site
    from windlass.plan.slurm.queue_target import QueueTarget

__all__ = ["UNKNOWN", "KeptKey", "TaskKeys", "is_nothing", "said_of"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_ENTRY_POINT = "only Beaker knows the image's own entry point; write the command as `run`"
UNKNOWN = "an unknown key, which is not in Beaker's spec v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptKey:
    """Key under `beaker`, and the decision about it.

    Attributes:
        path: dotted path, as in an override.
        said: short text of the value.
        is_met: whether the place satisfies the key, or the key does not concern it.
        is_impossible: whether not even `--best-effort` can ignore the key.
    """

    path: str
    said: str
    reason: str
    is_met: bool = False
    is_impossible: bool = False

    @property
    def hint(self) -> str:
        """Return the override that removes the key."""
        parts = split_path(self.path)
        at = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts))
        return f"remove it: ~{join_path(parts[:at])}"


class TaskKeys:
    """Decisions about the keys under one task's `beaker`, at one place."""

    def __init__(self, experiment: Experiment, name: str, task: Task, site: Site, target: QueueTarget | None) -> None:
        self._experiment = experiment
        self._name = name
        self._task = task
        self._site = site
        self._venue = target

    def found(self, key: str, value: Any) -> Iterator[KeptKey]:
        """Yield the decisions about a key, or about each of its parts."""
        value = value[LITERAL] if is_literal(value) else value
        if key in ALWAYS:
            yield self._met(key, value, f"{ALWAYS[key]}{'' if value is True else ' all the same'}")
        elif key == "image":
            yield self._image(value)
        elif key in ("command", "arguments"):
            yield self._words(key, value)
        elif key == "envVars" and isinstance(value, list):
            yield from self._variables(value)
        elif key == "datasets" and isinstance(value, list):
            for at, dataset in enumerate(value):
                yield self._dataset(f"datasets.{at}", dataset)
        elif key in ("resources", "context", "constraints", "result") and isinstance(value, Mapping):
            for inner, part in value.items():
                yield self._inner(key, inner, part)
        else:
            yield self._plain(key, value)

    def _plain(self, key: str, value: Any) -> KeptKey:
        task, limit = self._task, self._experiment.limit
        if key == "name":
            return self._met(key, value, "the task's name, used only by Beaker")
        if key == "replicas":
            is_same = is_nothing(value) or value == task.num_nodes
            return self._verdict(key, value, is_same, "the same as `nodes`", "write `nodes`")
        if key == "timeout":
            is_same = is_nothing(value) or _seconds(value) == limit.time
            return self._verdict(key, value, is_same, "the same as `limit.time`", "write `limit.time`")
        if key == "synchronizedStartTimeout":
            is_same = is_nothing(value) or _seconds(value) == task.ready_timeout
            return self._verdict(key, value, is_same, "the same as `ready_timeout`", "write `ready_timeout`")
        is_empty = is_nothing(value) or value in ([], {})
        return self._verdict(key, value, is_empty, "it is empty", UNKNOWN)

    def _image(self, value: Any) -> KeptKey:
        own = self._experiment.env.image.name.removeprefix("beaker:")
        given = [each for each in value.values() if not is_nothing(each)] if isinstance(value, Mapping) else []
        is_same = all(each == own for each in given)
        wanted = "an experiment runs in one image; split it into two experiments, or build one image for both tasks"
        return self._verdict("image", value, is_same, "the same as `env.image`", wanted)

    def _words(self, key: str, value: Any) -> KeptKey:
        if key == "arguments" and isinstance(value, int):
            return self._met(key, value, "the number of words at the end of `run`")
        if key == "arguments" and is_nothing(value):
            return self._met(key, value, "it is empty")
        words = [str(word) for word in value] if isinstance(value, list) else []
        run = [self._task.run] if isinstance(self._task.run, str) else list(self._task.run)
        run = [word.replace("$${", "${") for word in run]
        is_shown = words == run or (key == "arguments" and (not words or run[-len(words) :] == words))
        if is_shown and isinstance(value, list) and (words or key == "arguments"):
            return self._met(key, value, "it is in `run`")
        reason = _ENTRY_POINT if not words else "write it in `run`, the command that is executed"
        return KeptKey(path=self._path(key), said=said_of(value), reason=reason, is_impossible=True)

    def _variables(self, variables: Sequence[Any]) -> Iterator[KeptKey]:
        """Yield one decision about all redundant variables, and one about each other variable."""
        known = {**self._experiment.env.vars, **self._task.vars}
        known |= {secret.name: "" for secret in self._experiment.env.secrets}
        same = []
        for at, variable in enumerate(variables):
            name = variable.get("name") if isinstance(variable, Mapping) else None
            is_known = isinstance(name, str) and name in known
            more = set(variable) - {"name", "value", "secret"} if isinstance(variable, Mapping) else set()
            if (
                is_known
                and not more
                and variable.get("secret") is None
                and _says(variable.get("value"), known[str(name)])
            ):
                same.append(name)
                continue
            reason = "an invalid variable name; set it in `run`: env 'NAME=VALUE' ..."
            if isinstance(variable, Mapping) and variable.get("secret") is not None:
                reason = "a secret of a single task; use `env.secrets`, which apply to all tasks"
            elif more:
                reason = UNKNOWN
            elif is_known or (isinstance(name, str) and _VARIABLE.match(name)):
                reason = "write `vars`, which every site reads"
            yield KeptKey(path=self._path(f"envVars.{at}"), said=str(name), reason=reason)
        if same:
            shown = f"{len(same)} of {len(known)}"
            yield KeptKey(path=self._path("envVars"), said=shown, is_met=True, reason="their order and spelling")

    def _dataset(self, key: str, dataset: Any) -> KeptKey:
        source = dataset.get("source") if isinstance(dataset, Mapping) else None
        mount = str(dataset.get("mountPath", "")) if isinstance(dataset, Mapping) else ""
        kinds = [kind for kind, value in source.items() if value is not None] if isinstance(source, Mapping) else []
        kind = kinds[0] if kinds else ""
        said = f"{kind} at {mount}"
        wanted = _SOURCES.get(kind, UNKNOWN).format(mount=mount)
        if kind not in ("weka", "hostPath"):
            return KeptKey(path=self._path(key), said=said, reason=wanted)
        if any(PurePosixPath(mount) == PurePosixPath(folder) for folder in self._site.folders):
            return KeptKey(path=self._path(key), said=said, is_met=True, reason="the folder is there")
        folder = self._brought(mount)
        if not folder:
            return KeptKey(path=self._path(key), said=said, reason=wanted)
        is_met = folder == mount or not self._names(mount)
        told = f"it is {folder} here (`brought.paths` of the profile)"
        reason = told if is_met else f"{told}; write that in `run` and variables"
        return KeptKey(path=self._path(key), said=said, is_met=is_met, reason=reason)

    def _brought(self, mount: str) -> str:
        """Return the site's folder for a mount path, as listed in `brought.paths`, or an empty string."""
        paths = self._venue.profile.brought.paths if self._venue is not None else {}
        for start, folder in paths.items():
            if PurePosixPath(mount).is_relative_to(start):
                return str(PurePosixPath(folder) / PurePosixPath(mount).relative_to(start))
        return ""

    def _names(self, path: str) -> bool:
        """Return whether the command or a variable contains a path."""
        run = self._task.run if isinstance(self._task.run, str) else " ".join(self._task.run)
        return any(path in text for text in (run, *self._experiment.env.vars.values(), *self._task.vars.values()))

    def _inner(self, key: str, inner: str, value: Any) -> KeptKey:
        name = f"{key}.{join_path((inner,))}"
        match key:
            case "resources":
                return self._resource(name, inner, value)
            case "context":
                return self._context(name, inner, value)
            case "constraints":
                if inner == "cluster":
                    return self._clusters(name, value)
                named = [value] if isinstance(value, str) else value
                is_same = is_nothing(value) or named in ([], list(self._task.hosts))
                wanted = (
                    "Beaker takes any of them; write `hosts`, one for each node" if inner == "hostname" else UNKNOWN
                )
                return self._verdict(name, value, is_same, "the same as `hosts`", wanted)
            case _:
                return self._result(name, inner, value)

    def _clusters(self, name: str, value: Any) -> KeptKey:
        """Return the decision about clusters; at a Beaker site, about those that its profile does not list."""
        if self._site.backend != "beaker" or is_nothing(value):
            return self._met(name, value, f"only for Beaker, but the run is at `{self._site.name}`")
        chosen = self._site.partition
        wanted = (
            f"not all are `beaker.clusters` of the profile of `{self._site.name}`; add them there, or --on SITE/CLUSTER"
        )
        return self._verdict(name, value, bool(chosen), f"{chosen} was chosen for this run", wanted)

    def _result(self, name: str, inner: str, value: Any) -> KeptKey:
        if inner != "path" or not isinstance(value, str):
            return self._verdict(name, value, is_nothing(value), "it is empty", UNKNOWN)
        watched = self._venue.profile.beaker.results if self._venue is not None else ""
        if self._site.backend == "beaker" and PurePosixPath(watched) == PurePosixPath(value):
            return self._met(name, value, "Beaker uploads it at this site")
        is_used = self._names(value)
        wanted = f"`run` or a variable names {value}; write `${{out}}` there, which works at every site"
        return self._verdict(name, value, not is_used, "files in $WINDLASS_OUT are kept instead", wanted)

    def _resource(self, name: str, inner: str, value: Any) -> KeptKey:
        task = self._task
        own = {
            "cpuCount": task.cpus,
            "gpuCount": task.num_gpus,
            "memory": task.memory,
            "sharedMemory": task.shared_memory,
        }
        if inner not in own:
            return self._verdict(name, value, is_nothing(value), "it is empty", UNKNOWN)
        given = parse_size_bytes(value) if isinstance(value, str) and inner in ("memory", "sharedMemory") else value
        is_same = is_nothing(value) or not given or given == own[inner]
        place = {"cpuCount": "cpus", "gpuCount": "gpus", "memory": "memory", "sharedMemory": "shared_memory"}[inner]
        return self._verdict(name, value, is_same, f"the same as `{place}`", f"write `{place}`")

    def _context(self, name: str, inner: str, value: Any) -> KeptKey:
        context, retry = self._experiment.context, self._experiment.retry
        if inner == "cluster":
            return self._clusters(name, value)
        if inner == "priority":
            is_same = is_nothing(value) or value in (context.priority, "immediate", "preemptible")
            same = f"as `context.priority` ({context.priority})"
            return self._verdict(name, value, is_same, same, "write `context.priority`")
        if inner == "preemptible":
            return self._met(name, value, f"as `context.preemptible` ({str(context.preemptible).lower()})")
        if inner == "autoResume":
            is_same = value is not False or not retry.interrupted
            return self._verdict(name, value, is_same, "as `retry.interrupted`", "write `retry.interrupted=0`")
        if inner == "minRuntime":
            may_be_taken = context.preemptible and self._site.backend == "slurm" and not is_nothing(value)
            wanted = "the site's scheduler does not protect runs; `context.preemptible=false` does"
            return self._verdict(name, value, not may_be_taken or not value, "the machines are not preempted", wanted)
        return self._verdict(name, value, is_nothing(value), "it is empty", UNKNOWN)

    def _path(self, key: str) -> str:
        return f"{join_path(('tasks', self._name))}.beaker.{key}"

    def _met(self, key: str, value: Any, reason: str) -> KeptKey:
        return KeptKey(path=self._path(key), said=said_of(value), reason=reason, is_met=True)

    def _verdict(self, key: str, value: Any, is_met: bool, met: str, wanted: str) -> KeptKey:
        return KeptKey(path=self._path(key), said=said_of(value), reason=met if is_met else wanted, is_met=is_met)


_SOURCES = {
    "weka": "{mount} is unknown at this site; add a folder for it to `brought.paths` in the site's profile",
    "hostPath": "{mount} is unknown at this site; add a folder for it to `brought.paths` in the site's profile",
    "beaker": "only Beaker can mount a Beaker dataset; add the data under `data`, and write `${{data.NAME}}` instead of {mount}",
    "result": "write `${{tasks.NAME.out}}` instead of {mount}",
    "secret": "write `{{name: VARIABLE, as: file}}` under `env.secrets`; the variable then names the file",
    "volume": "only Beaker has volumes",
}


def _says(value: Any, known: str) -> bool:
    """Return whether a value is empty, or another spelling of the variable's value."""
    text = value if isinstance(value, str) else json.dumps(value)
    return is_nothing(value) or text == known.replace("$${", "${")


def _seconds(value: Any) -> float | None:
    try:
        return parse_duration_ns(value) / 1e9 if isinstance(value, str | int | float) else None
    except ValueError:
        return None


def is_nothing(value: Any) -> bool:
    """Return whether a value is null, or the literal null that removes a key."""
    return value is None or (is_literal(value) and value[LITERAL] is None)


def said_of(value: Any) -> str:
    if is_literal(value):
        value = value[LITERAL]
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
