"""Capabilities of backends: whether each setting is supported, satisfied or refused.

No setting is dropped silently: a test checks that every setting of the experiment file is in every table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from windlass.config.path import join_path, split_path
from windlass.core.dataclass import dataclass
from windlass.core.units import format_duration, format_size
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.site import Site
from windlass.spec import Experiment, Image, Sweep

if TYPE_CHECKING:
    from windlass.plan.slurm.queue_target import QueueTarget

__all__ = ["DOCKER_RULES", "LOCAL_RULES", "RULES", "SLURM_RULES", "SettingRule", "Treatment", "apply_rules", "settings"]

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class Treatment(Enum):
    """Treatment of a setting at a backend; `IMPOSSIBLE` is refused even with `--best-effort`."""

    HONOURED = "honoured"
    SATISFIED = "satisfied"
    REFUSED = "refused"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRule:
    """Rule that says how one backend treats one setting.

    Attributes:
        reason: reason for the treatment; completes the message `limit.gpu_hours=8: ...`.
        met: returns why this value is satisfied although the setting is refused, or an empty string.
        mapped: returns what the place maps this value to, or an empty string.
        able: whether this place supports the setting although not every place of its kind does.
    """

    treatment: Treatment
    reason: str = ""
    met: Callable[[Experiment, object], str] | None = None
    able: Callable[[QueueTarget], bool] | None = None
    mapped: Callable[[QueueTarget, object], str] | None = None


def _only_this_host(_experiment: Experiment, value: object) -> str:
    is_met = isinstance(value, tuple) and all(host in _LOCAL_HOSTS for host in value)
    return "it is this machine" if is_met else ""


def _takes_no_gpu(experiment: Experiment, _value: object) -> str:
    has_gpus = any(task.num_gpus or task.total_gpus for task in experiment.tasks.values())
    return "" if has_gpus else "no task takes a GPU"


_HONOURED = SettingRule(treatment=Treatment.HONOURED)
_NO_QUEUE = SettingRule(treatment=Treatment.SATISFIED, reason="no other user's runs compete for this machine")
_RECORDED = SettingRule(treatment=Treatment.SATISFIED, reason="recorded; this machine has no accounts")
_FOR_BEAKER = SettingRule(treatment=Treatment.REFUSED, reason="checked key by key: see windlass.plan.beaker.keys")
_KEPT = ("beaker", "tasks.*.beaker")

LOCAL_RULES: Mapping[str, SettingRule] = {
    **dict.fromkeys(("beaker", "tasks.*.beaker"), _FOR_BEAKER),
    **dict.fromkeys(("name", "why", "code", "params", "where"), _HONOURED),
    **dict.fromkeys(("env.uv", "env.python", "env.groups", "env.extras", "env.vars", "env.secrets"), _HONOURED),
    "env.image": SettingRule(
        treatment=Treatment.REFUSED, reason="containers run on `docker` and `podman`, and at sites that have them"
    ),
    "data.*.source": _HONOURED,
    **dict.fromkeys((f"data.*.{key}" for key in ("from", "build", "code", "cpus", "memory")), _HONOURED),
    **dict.fromkeys((f"data.*.{key}" for key in ("adapter", "task", "drop")), _HONOURED),
    "context.priority": _NO_QUEUE,
    "context.preemptible": _NO_QUEUE,
    "context.account": _RECORDED,
    "context.group": SettingRule(treatment=Treatment.SATISFIED, reason="recorded"),
    "limit.time": _HONOURED,
    "limit.per_job": _HONOURED,
    "limit.jobs": SettingRule(
        treatment=Treatment.SATISFIED, reason="a task is a single job on this machine, however long it runs"
    ),
    "limit.gpu_hours": SettingRule(
        treatment=Treatment.REFUSED, reason="GPU-hours are not limited on this machine", met=_takes_no_gpu
    ),
    **dict.fromkeys(("retry.interrupted", "retry.failed"), _HONOURED),
    **dict.fromkeys(("retain.ttl", "retain.checkpoints.last"), _HONOURED),
    "sweep": SettingRule(
        treatment=Treatment.SATISFIED, reason="this is one run; `windlass sweep launch` starts the sweep"
    ),
    **dict.fromkeys((f"retain.checkpoints.best.{key}" for key in ("metric", "mode", "keep")), _HONOURED),
    **dict.fromkeys((f"tasks.*.{key}" for key in ("run", "after", "nodes", "gpus.count", "total_gpus")), _HONOURED),
    "tasks.*.gpus.type": SettingRule(
        treatment=Treatment.REFUSED, reason="the type of this machine's GPUs is not known"
    ),
    **dict.fromkeys((f"tasks.*.{key}" for key in ("cpus", "memory", "cluster", "procs_per_node", "vars")), _HONOURED),
    **dict.fromkeys((f"tasks.*.bundles.*.{key}" for key in ("count", "gpus", "cpus", "strategy")), _HONOURED),
    "tasks.*.shared_memory": SettingRule(
        treatment=Treatment.REFUSED, reason="shared memory has this machine's default size"
    ),
    "tasks.*.disk": SettingRule(
        treatment=Treatment.REFUSED, reason="disk space is neither reserved nor limited on this machine"
    ),
    "tasks.*.hosts": SettingRule(
        treatment=Treatment.REFUSED, reason="this machine is the only host", met=_only_this_host
    ),
    "tasks.*.features": SettingRule(treatment=Treatment.REFUSED, reason="the features of this machine are not known"),
    **dict.fromkeys((f"tasks.*.evaluate.{key}" for key in ("of", "every", "last", "max_waiting")), _HONOURED),
    **dict.fromkeys((f"tasks.*.evaluate.best.{key}" for key in ("metric", "mode")), _HONOURED),
    "tasks.*.evaluate.partition": SettingRule(
        treatment=Treatment.REFUSED, reason="it has no partitions; another site needs a run of its own"
    ),
    "tasks.*.evaluate.priority": _NO_QUEUE,
    **dict.fromkeys((f"tasks.*.checkpoints.{key}" for key in ("every", "resume", "pattern")), _HONOURED),
    **dict.fromkeys(
        (f"tasks.*.{key}" for key in ("stall.floor", "stall.enabled", "ready_timeout", "grace", "compat")), _HONOURED
    ),
}
"""Paths of all settings of the experiment file, with `*` for a name."""


def _mapped(setting: str) -> Callable[[QueueTarget, object], str]:
    def text(target: QueueTarget, value: object) -> str:
        from windlass.plan.slurm.queue_target import mapping_text  # lazy: a local plan needs no site profiles

        return mapping_text(target.profile, setting, value)

    return text


SLURM_RULES: Mapping[str, SettingRule] = {
    **LOCAL_RULES,
    "env.image": SettingRule(
        treatment=Treatment.IMPOSSIBLE,
        reason="the site's profile does not say how to run containers (containers.kind); use `env.uv` or `env.python`",
        able=lambda target: target.profile.containers.kind != "none",
    ),
    "context.priority": SettingRule(
        treatment=Treatment.REFUSED,
        reason="the site's profile does not map this priority (scheduler.priority)",
        mapped=_mapped("priority"),
    ),
    "context.preemptible": SettingRule(
        treatment=Treatment.SATISFIED,
        reason="the site has no preemptible queue, so the run is not preempted",
        mapped=_mapped("preemptible"),
    ),
    **dict.fromkeys(("context.account", "limit.jobs", "limit.gpu_hours"), _HONOURED),
    "tasks.*.gpus.type": SettingRule(
        treatment=Treatment.REFUSED,
        reason="the site's profile does not name the GPUs of this partition",
        able=lambda target: bool(target.there.gpu_type or target.there.gres),
    ),
    "tasks.*.shared_memory": SettingRule(
        treatment=Treatment.REFUSED, reason="shared memory has the node's default size"
    ),
    **dict.fromkeys((f"tasks.*.{key}" for key in ("disk", "hosts", "features")), _HONOURED),
    "tasks.*.evaluate.partition": _HONOURED,
    "tasks.*.evaluate.priority": SettingRule(
        treatment=Treatment.REFUSED,
        reason="the site's profile does not map this priority (scheduler.priority)",
        mapped=_mapped("priority"),
    ),
}

DOCKER_RULES: Mapping[str, SettingRule] = {
    **LOCAL_RULES,
    **dict.fromkeys(("env.image", "tasks.*.shared_memory"), _HONOURED),
    **dict.fromkeys(
        ("env.uv", "env.python", "env.groups", "env.extras"),
        SettingRule(treatment=Treatment.IMPOSSIBLE, reason="a container has its own environment; use `env.image`"),
    ),
}

_OWN_IMAGE = SettingRule(
    treatment=Treatment.IMPOSSIBLE, reason="a job's image contains its environment; use `env.image`"
)

BEAKER_RULES: Mapping[str, SettingRule] = {
    **LOCAL_RULES,
    **dict.fromkeys(("beaker", "tasks.*.beaker", "env.image", "tasks.*.shared_memory", "tasks.*.hosts"), _HONOURED),
    **dict.fromkeys(("env.uv", "env.python", "env.groups", "env.extras"), _OWN_IMAGE),
    **dict.fromkeys(("context.priority", "context.preemptible", "context.account"), _HONOURED),
    **dict.fromkeys(("limit.jobs", "limit.gpu_hours", "tasks.*.evaluate.priority"), _HONOURED),
    "tasks.*.gpus.type": SettingRule(
        treatment=Treatment.REFUSED,
        reason="the site's profile does not name the GPUs of these clusters",
        able=lambda target: bool(target.there.gpu_type or target.there.gres),
    ),
    "tasks.*.disk": SettingRule(treatment=Treatment.REFUSED, reason="Beaker does not reserve disk space"),
    "tasks.*.features": SettingRule(treatment=Treatment.REFUSED, reason="Beaker selects by cluster and host only"),
}

RULES: Mapping[str, Mapping[str, SettingRule]] = {
    "local": LOCAL_RULES,
    "docker": DOCKER_RULES,
    "slurm": SLURM_RULES,
    "beaker": BEAKER_RULES,
}
"""Table of rules by backend."""


def apply_rules(
    experiment: Experiment,
    site: Site,
    diagnostics: Diagnostics,
    *,
    is_best_effort: bool,
    target: QueueTarget | None = None,
) -> list[str]:
    """Refuse unsupported settings; return notes on the settings that are satisfied or ignored.

    Args:
        target: queue target at a Slurm site.
    """
    notes: list[str] = []
    rules = RULES[site.backend]
    for pattern, path, value in settings(experiment):
        if pattern in _KEPT:
            continue  # each key is checked by itself
        rule = rules[pattern]
        is_able = rule.able is not None and target is not None and rule.able(target)
        if rule.treatment is Treatment.HONOURED or is_able:
            continue
        said = path if isinstance(value, Sweep) else f"{path}={_text(value, path)}"
        met = rule.met(experiment, value) if rule.met is not None else ""
        met = rule.mapped(target, value) if rule.mapped is not None and target is not None else met
        if rule.treatment is Treatment.SATISFIED or met:
            notes.append(f"{said}: {met or rule.reason}")
        elif rule.treatment is Treatment.REFUSED and is_best_effort:
            notes.append(f"{said} is ignored (--best-effort): {rule.reason}")
        else:
            message = f"{said} is not supported on `{site.name}`: {rule.reason}"
            hint = _without(path, experiment)
            hint += ", or run without it: --best-effort" if rule.treatment is Treatment.REFUSED else ""
            diagnostics.add(path, message, "unsupported-setting", hint)
    return [*notes, *_judge_kept(experiment, site, diagnostics, is_best_effort=is_best_effort, target=target)]


def _judge_kept(
    experiment: Experiment, site: Site, diagnostics: Diagnostics, *, is_best_effort: bool, target: QueueTarget | None
) -> list[str]:
    """Decide about the keys under `beaker`, and about an image that only Beaker has; return notes."""
    kept = [experiment.beaker, *(task.beaker for task in experiment.tasks.values())]
    if not any(kept) and not experiment.env.image.name.startswith("beaker:"):
        return []
    from windlass.plan.beaker.keys import kept_keys  # lazy: few experiments have Beaker settings

    notes = []
    for key in kept_keys(experiment, site, target):
        said = f"{key.path}={key.said}"
        if key.is_met:
            notes.append(f"{said}: {key.reason}")
        elif is_best_effort and not key.is_impossible:
            notes.append(f"{said} is ignored (--best-effort): {key.reason}")
        else:
            hint = key.hint + ("" if key.is_impossible else ", or run without it: --best-effort")
            message = f"{said} is not supported on `{site.name}`: {key.reason}"
            diagnostics.add(key.path, message, "unsupported-setting", hint)
    return notes


def _without(path: str, experiment: Experiment) -> str:
    parts = split_path(path)
    if parts[0] == "data":
        return f"remove it: ~{join_path(parts[:2])}"
    if parts[-2:] == ("gpus", "type"):
        return f"write the count alone: {join_path(parts[:3])}={experiment.tasks[parts[1]].num_gpus}"
    return f"remove it: ~{path}"


def settings(experiment: Experiment) -> Iterator[tuple[str, str, object]]:
    """Yield a (pattern, path, value) triple for each setting that differs from its default."""
    yield from _walk(experiment, (), ())


def _walk(value: object, pattern: tuple[str, ...], path: tuple[str, ...]) -> Iterator[tuple[str, str, object]]:
    assert dataclasses.is_dataclass(value)
    for field in dataclasses.fields(value):
        key = field.name.rstrip("_")
        inner = getattr(value, field.name)
        if isinstance(inner, Mapping) and any(dataclasses.is_dataclass(item) for item in inner.values()):
            for name, item in inner.items():
                yield from _walk(item, (*pattern, key, "*"), (*path, key, name))
        elif dataclasses.is_dataclass(inner) and not isinstance(inner, Image | Sweep):
            yield from _walk(inner, (*pattern, key), (*path, key))
        elif inner != _default(field) and not (pattern[:1] == ("data",) and key == "from"):
            yield ".".join((*pattern, key)), join_path((*path, key)), inner


def _default(field: dataclasses.Field[object]) -> object:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _text(value: object, path: str) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    if path.endswith((".memory", ".shared_memory", ".disk")) and isinstance(value, int):
        return format_size(value)
    if path.endswith((".time", ".per_job")) and isinstance(value, float):
        return format_duration(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
