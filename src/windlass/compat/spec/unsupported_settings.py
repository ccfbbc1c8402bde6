"""Settings that a plain spec cannot express: an error if the run would differ, else a note."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windlass.core.errors import Problem, SourcePlace, SpecError
from windlass.plan.beaker.keys import kept_keys
from windlass.plan.capabilities import settings
from windlass.plan.site import Site
from windlass.spec import Experiment, Image

__all__ = ["LEAVING", "check_export"]

_GOES = ""
_LAUNCH = "launch it at a Beaker site instead: windlass launch FILE --on SITE"
_NEEDS_US = f"!a plain spec cannot start it this way; write the command as it runs in every replica, or {_LAUNCH}"
_ENVIRONMENT = f"!Beaker does not build images; set one with `env.image`, or {_LAUNCH}"
_RECORD = "exists only in windlass and is not exported"

LEAVING: Mapping[str, str] = {
    **dict.fromkeys(("name", "why", "env.vars", "env.image", "env.secrets", "params", "beaker"), _GOES),
    **dict.fromkeys(("context.priority", "context.preemptible", "context.account", "context.group"), _GOES),
    **dict.fromkeys(("limit.time", "retry.failed"), _GOES),
    **dict.fromkeys((f"tasks.*.{key}" for key in ("run", "after", "nodes", "gpus.count", "cpus", "memory")), _GOES),
    **dict.fromkeys((f"tasks.*.{key}" for key in ("shared_memory", "hosts", "vars", "ready_timeout", "beaker")), _GOES),
    "tasks.*.compat": _GOES,
    **dict.fromkeys(("env.uv", "env.python", "env.groups", "env.extras"), _ENVIRONMENT),
    **dict.fromkeys(("tasks.*.cluster", "tasks.*.procs_per_node"), _NEEDS_US),
    **dict.fromkeys((f"tasks.*.bundles.*.{key}" for key in ("count", "gpus", "cpus", "strategy")), _RECORD),
    **dict.fromkeys((f"tasks.*.evaluate.{key}" for key in ("of", "every", "last", "max_waiting")), _NEEDS_US),
    **dict.fromkeys(
        (f"tasks.*.evaluate.{key}" for key in ("best.metric", "best.mode", "partition", "priority")), _NEEDS_US
    ),
    "tasks.*.total_gpus": "!Beaker requests GPUs per replica; write `nodes` and `gpus`",
    "tasks.*.gpus.type": "!Beaker chooses GPUs by cluster; write `beaker: {constraints: {cluster: [...]}}` in the task",
    **dict.fromkeys((f"tasks.*.{key}" for key in ("disk", "features")), "Beaker has no such setting"),
    "code": "not exported: a plain job runs the image's own code",
    "where": "not exported: Beaker chooses by `constraints`",
    **dict.fromkeys(
        (f"data.*.{key}" for key in ("source", "from", "build", "code", "cpus", "memory", "adapter", "task", "drop")),
        "not exported: windlass's data is not available at Beaker; mount it with `datasets`",
    ),
    **dict.fromkeys(("limit.per_job", "limit.jobs", "limit.gpu_hours"), "Beaker has no such limit"),
    "retry.interrupted": "Beaker does not count interruptions; 0 becomes `autoResume: false`",
    **dict.fromkeys(("retain.ttl", "retain.checkpoints.last", "sweep"), _RECORD),
    **dict.fromkeys((f"retain.checkpoints.best.{key}" for key in ("metric", "mode", "keep")), _RECORD),
    **dict.fromkeys((f"tasks.*.checkpoints.{key}" for key in ("every", "resume", "pattern")), _RECORD),
    **dict.fromkeys((f"tasks.*.{key}" for key in ("stall.floor", "stall.enabled", "grace")), _RECORD),
}
"""By setting: empty if it is exported, the reason if not, or `!` and the reason if the run would then differ."""


def check_export(experiment: Experiment) -> tuple[str, ...]:
    """Return notes on settings that a plain spec cannot express.

    Raises:
        SpecError: the run would differ; names every such setting.
    """
    notes, problems = [], []
    for pattern, path, value in settings(experiment):
        text = _SPECIAL[pattern](value) if pattern in _SPECIAL else LEAVING[pattern]
        if text.startswith("!"):
            message = f"{path} cannot be written as a plain Beaker spec"
            problems.append(Problem(message, "unsupported-setting", SourcePlace(path), text.removeprefix("!")))
        elif text:
            notes.append(f"{path} {text}" if text.startswith(("stays", "is ")) else f"{path}: {text}")
    if not experiment.env.image:
        message = "the experiment has no image, which Beaker requires"
        problems.append(Problem(message, "unsupported-setting", SourcePlace("env.image"), "env.image=beaker:USER/NAME"))
    if problems:
        raise SpecError(problems)
    notes += [
        f"{key.path}={key.said} overrides the experiment"
        for key in kept_keys(experiment, Site(name="Beaker"))
        if not key.is_met and key.reason.startswith("write ") and ".datasets." not in key.path
    ]
    return tuple(notes)


def _image(value: Any) -> str:
    is_named = isinstance(value, Image) and value.name and value == Image(name=value.name)
    return _GOES if is_named else _ENVIRONMENT


def _secrets(value: Any) -> str:
    files = [use.name for use in value if use.as_ == "file"]
    wanted = "!Beaker mounts secrets as files by `datasets`: `source: {secret: NAME}` under `beaker` of the task"
    return wanted if files else _GOES


_SPECIAL: Mapping[str, Callable[[Any], str]] = {
    "env.image": _image,
    "env.secrets": _secrets,
    "retry.interrupted": lambda value: _GOES if value == 0 else LEAVING["retry.interrupted"],
}
