"""Variables that a site sets, by role, with their predicates evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field

from windlass.core.dataclass import dataclass
from windlass.plan.slurm.queue_target import QueueTarget
from windlass.plan.tokens.tokens import Token, parse_tokens
from windlass.sites.profile import SiteVariable
from windlass.spec import Task
from windlass.supervise.job import TaskShape

__all__ = ["SiteVariables", "site_variables"]

_OF_PYTHON = re.compile(r"\$\{env\.path\}/lib/python(\d+\.\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteVariables:
    """Variables that a site sets for one task; None unsets one. Values may contain site tokens (`${env.path}`)."""

    everyone: Mapping[str, str | None] = field(default_factory=dict)
    driver: Mapping[str, str | None] = field(default_factory=dict)
    worker: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def site_variables(
    task: Task, shape: TaskShape, target: QueueTarget, user: Iterable[str], *, python_version: str
) -> SiteVariables:
    """Return the variables that a site sets for a task, except those that the user also sets.

    Args:
        user: names of the variables that the experiment sets.
        python_version: version of the task's environment, for `${env.path}`; empty without one.
    """
    facts = _facts(task, shape)
    found: dict[str, dict[str, str | None]] = {"all": {}, "driver": {}, "worker": {}}
    notes, own = [], frozenset(user)
    for variable in (*target.profile.net.vars, *target.profile.env.vars):
        if not facts >= set(variable.when):
            continue
        missing = _missing(variable, target, has_environment=bool(python_version))
        if variable.name in own:
            notes.append(f"{variable.name}: the experiment's value replaces the value of `{target.profile.name}`")
        elif missing:
            notes.append(f"{variable.name} of `{target.profile.name}` is left out: {missing}")
        else:
            found[variable.role][variable.name] = variable.value
            notes += _other_python(variable, target, python_version)
    return SiteVariables(
        everyone=found["all"], driver=found["driver"], worker=found["worker"], notes=tuple(dict.fromkeys(notes))
    )


def _facts(task: Task, shape: TaskShape) -> frozenset[str]:
    """Return the facts about a task that a profile's predicates test."""
    facts = {"multi-node" if shape.nodes > 1 else "one-node", task.cluster}
    return frozenset(facts | ({"gpu"} if shape.gpus else set()))


def _other_python(variable: SiteVariable, target: QueueTarget, python_version: str) -> list[str]:
    """Return a note if a value names the folder of another Python version."""
    match = _OF_PYTHON.search(variable.value or "")
    if match is None or python_version.startswith(f"{match[1]}."):
        return []
    said = f"{variable.name} of `{target.profile.name}` names lib/python{match[1]} of the environment"
    return [f"{said}, which has Python {python_version}: set it in env.vars, or correct the profile"]


def _missing(variable: SiteVariable, target: QueueTarget, *, has_environment: bool) -> str:
    """Return why a variable's value is unavailable; empty if it is available."""
    tokens = {piece.name for piece in parse_tokens(variable.value or "") if isinstance(piece, Token)}
    if "env.path" in tokens and not has_environment:
        return "it is in the experiment's environment, which does not exist (env.uv)"
    if "fs.shared" in tokens and not target.profile.fs.shared:
        return "the profile has no shared folder (fs.shared)"
    return ""
