"""What the local backend does with each setting: honoured, satisfied by the place, or refused.

Promise: no setting is dropped in silence. A test holds that every setting of the experiment file stands in this table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from windlass.config import join_path, split_path
from windlass.core.units import format_duration, format_size
from windlass.plan.refusal import Refusals
from windlass.plan.site import Site
from windlass.spec import Experiment

__all__ = ["LOCAL_RULES", "Rule", "Treatment", "apply_rules", "settings"]

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class Treatment(Enum):
    """What becomes of a setting; `IMPOSSIBLE` is refused even with `--best-effort`."""

    HONOURED = "honoured"
    SATISFIED = "satisfied"
    REFUSED = "refused"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a setting is treated.

    Attributes:
        reason: why; finishes the sentence `limit.gpu_hours=8: ...`.
        met: says why this value is satisfied although the setting is refused, or an empty string.
    """

    treatment: Treatment
    reason: str = ""
    met: Callable[[Experiment, object], str] | None = None


def _only_this_host(_experiment: Experiment, value: object) -> str:
    is_met = isinstance(value, tuple) and all(host in _LOCAL_HOSTS for host in value)
    return "it is this machine" if is_met else ""


def _takes_no_gpu(experiment: Experiment, _value: object) -> str:
    has_gpus = any(task.num_gpus or task.total_gpus for task in experiment.tasks.values())
    return "" if has_gpus else "no task takes a GPU"


def _never_chains(experiment: Experiment, value: object) -> str:
    is_met = experiment.limit.per_job is None and isinstance(value, int) and value >= len(experiment.tasks)
    return "without `per_job`, every task is one job" if is_met else ""


_HONOURED = Rule(treatment=Treatment.HONOURED)
_NO_QUEUE = Rule(treatment=Treatment.SATISFIED, reason="nobody else's runs compete for this machine")
_RECORDED = Rule(treatment=Treatment.SATISFIED, reason="recorded; this machine charges nobody")

LOCAL_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("name", "why", "code", "params", "where"), _HONOURED),
    **dict.fromkeys(("env.uv", "env.python", "env.groups", "env.extras", "env.vars", "env.secrets"), _HONOURED),
    "env.image": Rule(treatment=Treatment.REFUSED, reason="containers are not run here; use `env.uv` or `env.python`"),
    "data.*.source": _HONOURED,
    "data.*.from": Rule(
        treatment=Treatment.IMPOSSIBLE, reason="data is not built here yet; build it in a task of its own"
    ),
    "data.*.build": Rule(
        treatment=Treatment.IMPOSSIBLE, reason="data is not built here yet; build it in a task of its own"
    ),
    "context.priority": _NO_QUEUE,
    "context.preemptible": _NO_QUEUE,
    "context.account": _RECORDED,
    "context.group": Rule(treatment=Treatment.SATISFIED, reason="recorded"),
    "limit.time": _HONOURED,
    "limit.per_job": _HONOURED,
    "limit.jobs": Rule(
        treatment=Treatment.REFUSED, reason="the length of a chain is not limited here", met=_never_chains
    ),
    "limit.gpu_hours": Rule(treatment=Treatment.REFUSED, reason="GPU-hours are not limited here", met=_takes_no_gpu),
    **dict.fromkeys(("retry.interrupted", "retry.failed"), _HONOURED),
    **dict.fromkeys((f"tasks.*.{key}" for key in ("run", "after", "nodes", "gpus.count", "total_gpus")), _HONOURED),
    "tasks.*.gpus.type": Rule(treatment=Treatment.REFUSED, reason="the type of this machine's GPUs is not known"),
    **dict.fromkeys((f"tasks.*.{key}" for key in ("cpus", "memory", "cluster", "procs_per_node", "vars")), _HONOURED),
    "tasks.*.shared_memory": Rule(
        treatment=Treatment.REFUSED, reason="shared memory has the size this machine gives it"
    ),
    "tasks.*.disk": Rule(treatment=Treatment.REFUSED, reason="disk space is neither set aside nor limited here"),
    "tasks.*.hosts": Rule(
        treatment=Treatment.REFUSED, reason="the only host here is this machine", met=_only_this_host
    ),
    "tasks.*.features": Rule(treatment=Treatment.REFUSED, reason="what this machine features is not known"),
    **dict.fromkeys((f"tasks.*.checkpoints.{key}" for key in ("every", "resume", "pattern")), _HONOURED),
    **dict.fromkeys(
        (f"tasks.*.{key}" for key in ("stall.floor", "stall.enabled", "ready_timeout", "grace", "compat")), _HONOURED
    ),
}
"""Every setting of the experiment file by its path, `*` for a name."""


def apply_rules(experiment: Experiment, site: Site, refusals: Refusals, *, is_best_effort: bool) -> list[str]:
    """Refuse what the place cannot do; returns the notes on what it satisfies or, with best effort, ignores."""
    notes: list[str] = []
    for pattern, path, value in settings(experiment):
        rule = LOCAL_RULES[pattern]
        if rule.treatment is Treatment.HONOURED:
            continue
        said = f"{path}={_text(value, path)}"
        met = rule.met(experiment, value) if rule.met is not None else ""
        if rule.treatment is Treatment.SATISFIED or met:
            notes.append(f"{said}: {met or rule.reason}")
        elif rule.treatment is Treatment.REFUSED and is_best_effort:
            notes.append(f"{said} is ignored (--best-effort): {rule.reason}")
        else:
            message = f"{said} cannot be honoured on `{site.name}`: {rule.reason}"
            hint = _without(path, experiment)
            hint += ", or run without it: --best-effort" if rule.treatment is Treatment.REFUSED else ""
            refusals.add(path, message, "not-honoured", hint)
    return notes


def _without(path: str, experiment: Experiment) -> str:
    parts = split_path(path)
    if parts[0] == "data":
        return f"remove it: ~{join_path(parts[:2])}"
    if parts[-2:] == ("gpus", "type"):
        return f"write the count alone: {join_path(parts[:3])}={experiment.tasks[parts[1]].num_gpus}"
    return f"remove it: ~{path}"


def settings(experiment: Experiment) -> Iterator[tuple[str, str, object]]:
    """(pattern, path, value) of every setting that differs from its default."""
    yield from _walk(experiment, (), ())


def _walk(value: object, pattern: tuple[str, ...], path: tuple[str, ...]) -> Iterator[tuple[str, str, object]]:
    assert dataclasses.is_dataclass(value)
    for field in dataclasses.fields(value):
        key = field.name.rstrip("_")
        inner = getattr(value, field.name)
        if pattern == () and key in ("tasks", "data"):
            for name, item in inner.items():
                yield from _walk(item, (key, "*"), (key, name))
        elif dataclasses.is_dataclass(inner):
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
