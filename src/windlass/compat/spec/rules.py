"""Beaker's rules for a spec, checked before submission. All problems are reported with their positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from windlass.compat.spec import keys
from windlass.config.document import MappingNode, Node, ScalarNode, SequenceNode, kind_of
from windlass.core.errors import Problem
from windlass.core.names import nearest
from windlass.plan.beaker.quantities import NS_PER_S, parse_duration_ns, parse_size_bytes

__all__ = ["check_datasets", "problems_of", "short_durations", "unknown_keys"]

_VERSIONS = ("v2", "v2-alpha")
_MAX_RETRIES = 10
_MAX_START_NS = 48 * 3600 * NS_PER_S
_KINDS = {
    "text": "text",
    "texts": "a list of texts",
    "names": "a text or a list of texts",
    "words": "a list of words",
    "scalar": "text or a number",
    "number": "a number",
    "whole": "a whole number",
    "flag": "`true` or `false`",
    "duration": "a duration such as `1h30m`",
    "size": "a size such as `2.5GiB`",
    "mapping": "a mapping",
    "list": "a list",
}
_HINTS = {
    "size": "write a unit: `10GiB`",
    "texts": "write each item after `- `, or all in `[...]`",
    "names": "write one name, or each name after `- `",
    "words": "write each item after `- `, or all in `[...]`",
    "list": "write each entry after `- `",
    "mapping": "write `key: value` lines",
    "text": "put it in quotes",
    "scalar": "put it in quotes",
    "duration": "write a number with a unit: `1h30m`",
    "flag": "write `true` or `false`, without quotes",
}
_INNER = {"names": "text", "texts": "text", "words": "scalar"}
_OBJECTS = {
    "image": keys.IMAGE,
    "result": keys.RESULT,
    "resources": keys.RESOURCES,
    "context": keys.CONTEXT,
    "constraints": keys.CONSTRAINTS,
}


def problems_of(spec: Node) -> list[Problem]:
    """Return all problems in a spec; empty if Beaker should accept it."""
    if not isinstance(spec, MappingNode):
        message = f"a spec is a mapping, not {kind_of(spec)}"
        return [Problem(message, "beaker-refused", spec.place, "begin with `version: v2` and `tasks:`")]
    newer = list(_version(spec))
    if newer:
        return newer  # the keys of a newer version may have other meanings
    return [*_shape(spec, keys.EXPERIMENT, ""), *_retry(spec), *_tasks(spec)]


def unknown_keys(spec: Node) -> Iterator[tuple[str, str]]:
    """Yield (path, closest known key) for every unknown key.

    The closest key is an empty string if none is close. Unknown keys are kept.
    """
    if not isinstance(spec, MappingNode):
        return
    yield from _unknown(spec, keys.EXPERIMENT, "")
    tasks = _get(spec, "tasks")
    for at, task in enumerate(tasks.items if isinstance(tasks, SequenceNode) else ()):
        if isinstance(task, MappingNode):
            yield from _unknown(task, keys.TASK, f"tasks.{at}.")
            for key, known in _OBJECTS.items():
                inner = _get(task, key)
                if isinstance(inner, MappingNode) and key != "constraints":
                    yield from _unknown(inner, known, f"tasks.{at}.{key}.")


def short_durations(spec: Node) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for every bare number, except 0, that Beaker reads as nanoseconds within a second."""
    tasks = _get(spec, "tasks") if isinstance(spec, MappingNode) else None
    for at, task in enumerate(tasks.items if isinstance(tasks, SequenceNode) else ()):
        if isinstance(task, MappingNode):
            yield from _short(task, keys.TASK, f"tasks.{at}.")
            yield from _short(_get(task, "context"), keys.CONTEXT, f"tasks.{at}.context.")


def _short(node: Node | None, known: Mapping[str, str], path: str) -> Iterator[tuple[str, str]]:
    for entry in node.entries if isinstance(node, MappingNode) else ():
        value = entry.node.value if isinstance(entry.node, ScalarNode) else None
        if known.get(entry.key) == "duration" and isinstance(value, int | float) and 0 < value < NS_PER_S:
            yield path + entry.key, str(value)


def _unknown(node: MappingNode, known: Mapping[str, str], path: str) -> Iterator[tuple[str, str]]:
    for entry in node.entries:
        if entry.key not in known:
            yield path + entry.key, nearest(entry.key, known)


def _version(spec: MappingNode) -> Iterator[Problem]:
    version = _get(spec, "version")
    if isinstance(version, ScalarNode) and version.value is not None and version.value not in _VERSIONS:
        message = f"the spec has version `{version.text}`; this windlass reads {' and '.join(_VERSIONS)}"
        hint = "write `version: v2`, or update windlass: pip install -U windlass"
        yield Problem(message, "beaker-refused", version.place, hint)


def _tasks(spec: MappingNode) -> Iterator[Problem]:
    tasks = _get(spec, "tasks")
    if tasks is None or _is_null(tasks) or (isinstance(tasks, SequenceNode) and not tasks.items):
        yield Problem("the spec has no task", "beaker-refused", (tasks or spec).place, "add `tasks:` with one entry")
        return
    if not isinstance(tasks, SequenceNode):
        return  # reported with its type
    names: dict[str, Node] = {}
    for at, task in enumerate(tasks.items):
        if not isinstance(task, MappingNode):
            yield Problem(f"tasks.{at} must be a mapping, not {kind_of(task)}", "beaker-refused", task.place, "")
            continue
        name = _text(_get(task, "name"))
        if name and name in names:
            message = f"two tasks are named `{name}`"
            yield Problem(message, "beaker-refused", _get(task, "name").place, "give each its own name")  # type: ignore[union-attr]  # it has a name
        names[name] = task
    for at, task in enumerate(tasks.items):
        if isinstance(task, MappingNode):
            yield from _task(task, f"tasks.{at}.", names)


def _task(task: MappingNode, path: str, names: Mapping[str, Node]) -> Iterator[Problem]:
    yield from _shape(task, keys.TASK, path)
    for key, known in _OBJECTS.items():
        inner = _get(task, key)
        if isinstance(inner, MappingNode):
            yield from _shape(inner, known, f"{path}{key}.")
    yield from _one_of(task, "image", ("beaker", "docker"), path)
    yield from _variables(task, path)
    yield from check_datasets(task, path, names)
    yield from _ranges(task, path)


def _ranges(task: MappingNode, path: str) -> Iterator[Problem]:
    yield from _within(task, "replicas", path, 1, None)
    resources = _get(task, "resources")
    if isinstance(resources, MappingNode):
        yield from _within(resources, "gpuCount", f"{path}resources.", 0, None)
        yield from _within(resources, "cpuCount", f"{path}resources.", 0, None)
    context = _get(task, "context")
    priority = _get(context, "priority") if isinstance(context, MappingNode) else None
    if isinstance(priority, ScalarNode) and isinstance(priority.value, str) and priority.value not in keys.PRIORITIES:
        close = nearest(priority.value, keys.PRIORITIES)
        hint = f"did you mean `{close}`?" if close else f"use one of: {', '.join(keys.PRIORITIES[:-1])}"
        yield Problem(f"unknown priority `{priority.value}`", "beaker-refused", priority.place, hint)
    start = _get(task, "synchronizedStartTimeout")
    if isinstance(start, ScalarNode) and start.value is not None and _is_kind(start, "duration"):
        nanoseconds = parse_duration_ns(start.value)
        if not 0 < nanoseconds <= _MAX_START_NS:
            message = f"{path}synchronizedStartTimeout is `{start.text}`; Beaker accepts more than 0 and at most 48h"
            hint = "a number without a unit is in nanoseconds; write `10m`"
            yield Problem(message, "beaker-refused", start.place, hint)


def _within(node: MappingNode, key: str, path: str, low: float, high: float | None) -> Iterator[Problem]:
    scalar = _get(node, key)
    if (
        not isinstance(scalar, ScalarNode)
        or isinstance(scalar.value, bool)
        or not isinstance(scalar.value, int | float)
    ):
        return
    if not (scalar.value >= low and (high is None or scalar.value <= high)):
        legal = f"between {low:g} and {high:g}" if high is not None else f"at least {low:g}"
        yield Problem(f"{path}{key} is `{scalar.text}`", "beaker-refused", scalar.place, f"allowed: {legal}")


def _retry(spec: MappingNode) -> Iterator[Problem]:
    retry = _get(spec, "retry")
    if isinstance(retry, MappingNode):
        yield from _shape(retry, keys.RETRY, "retry.")
        yield from _within(retry, "allowedTaskRetries", "retry.", 0, _MAX_RETRIES)


def _variables(task: MappingNode, path: str) -> Iterator[Problem]:
    variables = _get(task, "envVars")
    seen: set[str] = set()
    for at, variable in enumerate(variables.items if isinstance(variables, SequenceNode) else ()):
        where = f"{path}envVars.{at}"
        if not isinstance(variable, MappingNode):
            yield Problem(f"{where} must be a mapping, not {kind_of(variable)}", "beaker-refused", variable.place, "")
            continue
        yield from _shape(variable, keys.ENV_VAR, f"{where}.")
        name = _text(_get(variable, "name"))
        if not name:
            yield Problem(f"{where} has no name", "beaker-refused", variable.place, "write `name: VARIABLE`")
        elif name in seen:
            message = f"duplicate variable `{name}` in {path}envVars"
            yield Problem(message, "beaker-refused", variable.place, "keep one of them")
        seen.add(name)
        given = [key for key in ("value", "secret") if not _is_null(_get(variable, key))]
        if len(given) == 2:
            message = f"the variable `{name}` has a value and a secret"
            yield Problem(message, "beaker-refused", variable.place, "keep one of them")


def _one_of(node: MappingNode, key: str, names: tuple[str, ...], path: str) -> Iterator[Problem]:
    inner = _get(node, key)
    if inner is not None and not _is_null(inner) and not isinstance(inner, MappingNode):
        return  # reported with its type
    given = [name for name in names if isinstance(inner, MappingNode) and not _is_null(_get(inner, name))]
    if len(given) != 1:
        found = f"has {' and '.join(given)}" if given else "is missing"
        message = f"{path}{key} {found}; it takes exactly one of {', '.join(names)}"
        place = node.place if inner is None else inner.place
        yield Problem(message, "beaker-refused", place, f"write `{key}: {{{names[0]}: NAME}}`")


def _shape(node: MappingNode, known: Mapping[str, str], path: str) -> Iterator[Problem]:
    for entry in node.entries:
        kind = known.get(entry.key)
        if kind is None or _is_null(entry.node) or _is_kind(entry.node, kind):
            continue
        where, found = path + entry.key, entry.node
        if kind in _INNER and isinstance(found, SequenceNode):  # it is a list, but one of its entries is wrong
            kind = _INNER[kind]
            at = next(at for at, item in enumerate(found.items) if not _is_word(item, kind))
            where, found = f"{where}.{at}", found.items[at]
        message = f"{where} must be {_KINDS[kind]}, not {kind_of(found)}"
        yield Problem(message, "beaker-refused", found.place, _hint(found, kind))


def _hint(node: Node, kind: str) -> str:
    try:
        if isinstance(node, ScalarNode) and isinstance(node.value, str) and kind in ("duration", "size"):
            (parse_duration_ns if kind == "duration" else parse_size_bytes)(node.value)
    except ValueError as error:
        return str(error)
    if isinstance(node, ScalarNode) and isinstance(node.value, str) and "\0" in node.value:
        return "remove the NUL character"
    return "" if kind == "text" and not isinstance(node, ScalarNode) else _HINTS.get(kind, "")


def _is_kind(node: Node, kind: str) -> bool:
    if kind in ("mapping", "list"):
        return isinstance(node, MappingNode if kind == "mapping" else SequenceNode)
    if kind == "names" and isinstance(node, ScalarNode):
        return _is_scalar(node.value, "text")
    if kind in _INNER:
        return isinstance(node, SequenceNode) and all(_is_word(item, _INNER[kind]) for item in node.items)
    return isinstance(node, ScalarNode) and _is_scalar(node.value, kind)


def _is_word(node: Node, kind: str) -> bool:
    return _is_kind(node, kind) and not _is_null(node)


def _is_scalar(value: object, kind: str) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        match kind:
            case "text":
                return isinstance(value, str) and "\0" not in value
            case "scalar":
                return is_number or isinstance(value, bool) or (isinstance(value, str) and "\0" not in value)
            case "flag":
                return isinstance(value, bool)
            case "whole":
                return isinstance(value, int) and is_number
            case "number":
                return is_number
            case "duration":
                return is_number or (isinstance(value, str) and parse_duration_ns(value) >= 0)
            case _:
                return isinstance(value, str) and parse_size_bytes(value) >= 0
    except ValueError:
        return False


def _get(node: MappingNode, key: str) -> Node | None:
    entry = node.find(key)
    return None if entry is None else entry.node


def _is_null(node: Node | None) -> bool:
    return node is None or (isinstance(node, ScalarNode) and node.value is None)


def _text(node: Node | None) -> str:
    return node.value if isinstance(node, ScalarNode) and isinstance(node.value, str) else ""


_MODES = ("readonly", "readwrite")
_READ_ONLY = ("beaker", "result", "secret")


def check_datasets(task: MappingNode, path: str, names: Mapping[str, Node]) -> Iterator[Problem]:
    """Yield the problems with one task's mounts; `names` are the names of all tasks."""
    entry = task.find("datasets")
    mounts: dict[str, str] = {}
    for at, dataset in enumerate(
        entry.node.items if entry is not None and isinstance(entry.node, SequenceNode) else ()
    ):
        where = f"{path}datasets.{at}"
        if not isinstance(dataset, MappingNode):
            yield Problem(f"{where} must be a mapping, not {kind_of(dataset)}", "beaker-refused", dataset.place, "")
            continue
        yield from _texts(dataset, where)
        yield from _mount(dataset, where, mounts)
        yield from _source(dataset, where, task, names)


def _texts(dataset: MappingNode, where: str) -> Iterator[Problem]:
    for key in ("mountPath", "subPath", "mode"):
        found = dataset.find(key)
        if found is not None and not (isinstance(found.node, ScalarNode) and isinstance(found.node.value, str | None)):
            message = f"{where}.{key} must be text, not {kind_of(found.node)}"
            yield Problem(message, "beaker-refused", found.node.place, "")
    mode = _text_of(dataset, "mode")
    if mode and mode not in _MODES:
        yield Problem(f"{where}.mode is `{mode}`", "beaker-refused", dataset.place, "use `readonly` or `readwrite`")


def _mount(dataset: MappingNode, where: str, mounts: dict[str, str]) -> Iterator[Problem]:
    mount = _text_of(dataset, "mountPath")
    if not mount.startswith("/"):
        message = f"{where}.mountPath is `{mount}`" if mount else f"{where} has no mountPath"
        yield Problem(message, "beaker-refused", dataset.place, "write an absolute path, such as `/data`")
        return
    place = str(PurePosixPath(mount.lower()))
    for other, written in mounts.items():
        first, second = sorted((PurePosixPath(other), PurePosixPath(place)), key=lambda each: len(each.parts))
        if second.is_relative_to(first):
            message = f"{where}.mountPath `{mount}` overlaps `{written}`"
            hint = "use paths that do not contain each other; letter case is ignored"
            yield Problem(message, "beaker-refused", dataset.place, hint)
            break
    mounts.setdefault(place, mount)


def _source(dataset: MappingNode, where: str, task: MappingNode, names: Mapping[str, Node]) -> Iterator[Problem]:
    entry = dataset.find("source")
    source = entry.node if entry is not None else None
    found = source.entries if isinstance(source, MappingNode) else ()
    given = {each.key: _text_of(source, each.key) for each in found if not _is_empty(each.node)}
    if len(given) != 1:
        has = f"has {' and '.join(given)}" if given else "has none"
        message = f"{where}.source takes exactly one of {', '.join(keys.SOURCE)}; it {has}"
        yield Problem(message, "beaker-refused", dataset.place, "keep one of them" if given else "add one of them")
        return
    ((kind, value),) = given.items()  # may be a kind that only a newer Beaker knows
    if kind in keys.SOURCE and not value:
        yield Problem(f"{where}.source.{kind} must be text", "beaker-refused", dataset.place, "write its name")
    if kind in _READ_ONLY and _text_of(dataset, "mode") == "readwrite":
        message = f"{where}.mode is `readwrite`, but a `{kind}` source is read-only"
        yield Problem(message, "beaker-refused", dataset.place, "remove the mode")
    if kind == "result" and (value not in names or names[value] is task):
        close = nearest(value, (name for name in names if names[name] is not task))
        message = f"{where} waits for the result of `{value}`, which is not another task of this spec"
        yield Problem(
            message, "beaker-refused", dataset.place, f"did you mean `{close}`?" if close else "name the task"
        )


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value in (None, "")


def _text_of(node: Node | None, key: str) -> str:
    entry = node.find(key) if isinstance(node, MappingNode) else None
    value = entry.node.value if entry is not None and isinstance(entry.node, ScalarNode) else ""
    return value if isinstance(value, str) else ""
