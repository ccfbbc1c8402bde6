"""Checks of a profile's consistency: contradictions, unknown names, invalid dates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from typing import TYPE_CHECKING

from windlass.config.annotations import Diagnostic
from windlass.config.path import join_path, split_path
from windlass.core.names import nearest
from windlass.sites.beaker import beaker_findings

if TYPE_CHECKING:
    from windlass.sites.profile import Profile, ProfileSource, SiteVariable

__all__ = ["PRIORITIES", "fact_exists", "findings", "stale_sources", "unknown_facts"]

PRIORITIES = ("low", "normal", "high", "urgent")
"""Priorities of an experiment (`context.priority` in windlass.spec)."""

_TOKEN = re.compile(r"\$\{([^}]*)\}")
_VALUE_TOKENS = ("env.path", "fs.node_local", "fs.shared", "user")
_CLEANING = frozenset({"--cleanenv", "-e", "--containall", "-C"})
"""Apptainer options that clear the environment. Source: its user guide, "Environment"."""

_WORTH_KNOWING = ("gpus", "cpus", "memory", "arch", "time_max")


def findings(profile: Profile) -> Iterator[Diagnostic]:
    """Yield every problem in a profile, like the `check` method of a dataclass."""
    yield from _sources(profile)
    yield from _dates(profile)
    yield from _queue(profile)
    for name, partition in profile.partitions.items():
        path = f"partitions.{_quoted(name)}"
        if partition.gpus == 0 and (partition.gpu_type or partition.gres or partition.gpu_memory):
            message = f"partition `{name}` has `gpus: 0` and GPUs of type `{partition.gpu_type or partition.gres}`"
            yield f"{path}.gpus", message, "conflicting-options", "set the GPUs of a node, or remove their type"
        if partition.num_nodes and partition.max_nodes > partition.num_nodes:
            message = f"`max_nodes` of `{name}` is {partition.max_nodes}, but it has {partition.num_nodes} nodes"
            yield f"{path}.max_nodes", message, "conflicting-options", f"write at most {partition.num_nodes}"
        if partition.cpus and not profile.scheduler.exclusive and profile.ray.cpus > partition.cpus:
            message = f"`ray.cpus` is {profile.ray.cpus}, but a node of `{name}` has {partition.cpus} CPUs"
            yield "ray.cpus", message, "conflicting-options", f"write at most {partition.cpus}"
    yield from _variables(profile)
    yield from _folders(profile)
    yield from _software(profile)
    yield from beaker_findings(profile)


def fact_exists(profile: Profile, fact: str) -> bool:
    """Return whether a source's fact, such as `net.vars.NCCL_PROTO`, exists in this profile."""
    return _wrong_part(profile, _parts(fact)) is None


def stale_sources(profile: Profile, today: str) -> list[ProfileSource]:
    """Return the sources that have expired; `today` is YYYY-MM-DD."""
    return [source for source in profile.sources if source.expires and source.expires < today]


def unknown_facts(profile: Profile) -> list[str]:
    """Return the paths of empty fields that a run could use."""
    found = []
    if not profile.fs.shared:
        found.append("fs.shared")
    if profile.kind == "beaker":
        keys = ("workspace", "clusters", "image")
        found += [f"beaker.{key}" for key in keys if not getattr(profile.beaker, key)]
    elif not profile.scheduler.partition:
        found.append("scheduler.partition")
    if not profile.net.interconnect:
        found.append("net.interconnect")
    if not profile.net.interface:
        found.append("net.interface")
    worth_knowing = ("gpus",) if profile.kind == "beaker" else _WORTH_KNOWING  # Beaker checks the rest
    for name, partition in profile.partitions.items():
        values = {key: getattr(partition, key) for key in worth_knowing}
        missing = [key for key, value in values.items() if not value and not (key == "gpus" and value == 0)]
        found += [f"partitions.{_quoted(name)}.{key}" for key in missing]
    return found


def _sources(profile: Profile) -> Iterator[Diagnostic]:
    for index, source in enumerate(profile.sources):
        path = f"sources.{index}"
        for place, fact in enumerate(source.facts):
            wrong = _wrong_part(profile, _parts(fact))
            if wrong is not None:
                part, known = wrong
                close = nearest(part, known)
                hint = f"did you mean `{close}`?" if close else f"known: {', '.join(known) or 'none'}"
                yield f"{path}.facts.{place}", f"unknown field `{fact}`: no `{part}`", "unknown-key", hint
        if source.status == "official" and not source.url:
            yield path, "an official source needs a `url`", "conflicting-options", "add `url:`, or use another status"
        if source.status != "unverified" and not source.seen:
            hint = "add `seen: YYYY-MM-DD`, because facts about machines become outdated"
            yield path, f"a source with the status {source.status} needs a date", "conflicting-options", hint
        if source.seen and source.expires and source.expires < source.seen:
            message = f"the facts expire on {source.expires}, before they were seen on {source.seen}"
            yield f"{path}.expires", message, "conflicting-options", "write a later date"


def _parts(fact: str) -> tuple[str, ...]:
    try:
        return split_path(fact)
    except ValueError:
        return (fact,)


def _wrong_part(value: object, parts: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the first unknown part of a path, and the known names; None if all parts exist."""
    if not parts:
        return None
    below = _members(value)
    if parts[0] not in below:
        return parts[0], list(below)
    return _wrong_part(below[parts[0]], parts[1:])


def _members(value: object) -> Mapping[str, object]:
    """Return a value's members that a path can name: fields, keys, and items with a name."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple):
        return {_called(item): item for item in value}
    return {}


def _called(item: object) -> str:
    if is_dataclass(item):
        return re.split(r"[=<>!~ ]", str(getattr(item, fields(item)[0].name)))[0]
    return str(item)


def _dates(profile: Profile) -> Iterator[Diagnostic]:
    for path, text in _dated(profile):
        if text and not _is_date(text):
            yield path, f"invalid date `{text}`", "invalid-value", "write YYYY-MM-DD, such as 2026-11-21"


def _dated(profile: Profile) -> Iterator[tuple[str, str]]:
    for index, source in enumerate(profile.sources):
        yield f"sources.{index}.seen", source.seen
        yield f"sources.{index}.expires", source.expires
    for index, exclusion in enumerate(profile.scheduler.exclude):
        yield f"scheduler.exclude.{index}.seen", exclusion.seen
    for index, override in enumerate(profile.env.overrides):
        yield f"env.overrides.{index}.seen", override.seen
    for index, patch in enumerate(profile.env.patches):
        yield f"env.patches.{index}.seen", patch.seen


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _queue(profile: Profile) -> Iterator[Diagnostic]:
    scheduler = profile.scheduler
    wishes = {f"scheduler.priority.{name}": mapped for name, mapped in scheduler.priority.items()}
    for name in scheduler.priority:
        if name not in PRIORITIES:
            close = nearest(name, PRIORITIES)
            hint = f"did you mean `{close}`?" if close else f"known: {', '.join(PRIORITIES)}"
            message = f"unknown priority `{name}`"
            yield f"scheduler.priority.{_quoted(name)}", message, "unknown-name", hint
    if scheduler.preemptible is not None:
        wishes["scheduler.preemptible"] = scheduler.preemptible
    asked = [("scheduler", scheduler.partition, scheduler.qos)]
    asked += [(path, mapped.partition, mapped.qos) for path, mapped in wishes.items()]
    for path, partition, qos in asked:
        yield from _known(f"{path}.partition", "partition", partition, list(profile.partitions))
        yield from _known(f"{path}.qos", "QOS", qos, scheduler.qos_known)
    yield from _known("scheduler.cpu_partition", "partition", scheduler.cpu_partition, list(profile.partitions))
    yield from _known("env.build_partition", "partition", profile.env.build_partition, list(profile.partitions))
    yield from _known("scheduler.account", "account", scheduler.account, scheduler.accounts)


def _known(path: str, what: str, name: str, known: Sequence[str]) -> Iterator[Diagnostic]:
    """Yield a problem if a name is not in the list; an empty list allows any name."""
    if name and known and name not in known:
        close = nearest(name, known)
        hint = f"did you mean `{close}`?" if close else f"known: {', '.join(known)}"
        yield path, f"unknown {what} `{name}`", "unknown-queue", hint


def _variables(profile: Profile) -> Iterator[Diagnostic]:
    groups: tuple[tuple[str, Sequence[SiteVariable]], ...] = (
        ("net.vars", profile.net.vars),
        ("env.vars", profile.env.vars),
    )
    for path, variables in groups:
        seen = set()
        for index, variable in enumerate(variables):
            key = (variable.name, variable.role, frozenset(variable.when))
            if key in seen:
                message = f"`{variable.name}` is set twice for the same role and case"
                yield f"{path}.{index}", message, "conflicting-options", "keep one of them"
            seen.add(key)
            if {"multi-node", "one-node"} <= set(variable.when) or {"ray", "torchrun"} <= set(variable.when):
                message = f"`{variable.name}` is never set: {' and '.join(variable.when)} are mutually exclusive"
                yield f"{path}.{index}.when", message, "conflicting-options", "all conditions in `when` must hold"
            yield from _tokens(f"{path}.{index}.value", variable.value or "", _VALUE_TOKENS)


def _tokens(path: str, text: str, known: Sequence[str]) -> Iterator[Diagnostic]:
    for token in _TOKEN.findall(text):
        if token not in known:
            hint = f"known: {', '.join(f'${{{name}}}' for name in known)}"
            yield path, f"unknown variable `${{{token}}}`", "unknown-token", hint


def _folders(profile: Profile) -> Iterator[Diagnostic]:
    for name in ("shared", "node_local"):
        folder: str = getattr(profile.fs, name)
        yield from _tokens(f"fs.{name}", folder, ("user",))
        if folder and not folder.startswith("/"):
            message = f"`{folder}` is not an absolute path"
            yield f"fs.{name}", message, "invalid-value", "start it with `/`; `${user}` is replaced by the user's name"


def _software(profile: Profile) -> Iterator[Diagnostic]:
    env, containers = profile.env, profile.containers
    for module in env.modules:
        # A forbidden `brics/nccl` includes all of its versions.
        if any(module == name or module.startswith(f"{name}/") for name in env.modules_forbidden):
            message = f"module `{module}` is in both `modules` and `modules_forbidden`"
            yield "env.modules", message, "conflicting-options", "remove it from one of the two lists"
    packages = [_called(override) for override in env.overrides]
    for index, package in enumerate(packages):
        if package in packages[:index]:
            message = f"package `{package}` is overridden twice"
            yield f"env.overrides.{index}", message, "conflicting-options", "keep one of them"
    if containers.kind == "none" and (containers.program or containers.options or containers.binds):
        hint = "set `kind: apptainer` or `kind: enroot`, or remove the rest"
        yield "containers", "`containers` has settings, but `kind: none`", "setting-unused", hint
    for option in containers.options if containers.kind == "apptainer" else ():
        if option in _CLEANING:
            message = f"`{option}` would remove the task's variables from its container"
            hint = "remove it: a task inherits only a few variables from the node anyway"
            yield "containers.options", message, "conflicting-options", hint


def _quoted(name: str) -> str:
    """Quote a key for use in a dotted path."""
    return join_path((name,))
