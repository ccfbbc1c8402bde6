"""The rules of mounts: one source each, absolute places that do not overlap, and results of tasks that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from windlass.compat.spec import keys
from windlass.config.document import MappingNode, Node, ScalarNode, SequenceNode, kind_of
from windlass.core.errors import Problem
from windlass.core.names import nearest

__all__ = ["check_datasets"]

_MODES = ("readonly", "readwrite")
_READ_ONLY = ("beaker", "result", "secret")


def check_datasets(task: MappingNode, path: str, names: Mapping[str, Node]) -> Iterator[Problem]:
    """Problems of the mounts of one task; `names` are those of all tasks."""
    entry = task.find("datasets")
    mounts: dict[str, str] = {}
    for at, dataset in enumerate(
        entry.node.items if entry is not None and isinstance(entry.node, SequenceNode) else ()
    ):
        where = f"{path}datasets.{at}"
        if not isinstance(dataset, MappingNode):
            yield Problem(f"{where} must be a mapping, not {kind_of(dataset)}", "beaker-spec", dataset.place, "")
            continue
        yield from _texts(dataset, where)
        yield from _mount(dataset, where, mounts)
        yield from _source(dataset, where, task, names)


def _texts(dataset: MappingNode, where: str) -> Iterator[Problem]:
    for key in ("mountPath", "subPath", "mode"):
        found = dataset.find(key)
        if found is not None and not (isinstance(found.node, ScalarNode) and isinstance(found.node.value, str | None)):
            message = f"{where}.{key} must be text, not {kind_of(found.node)}"
            yield Problem(message, "beaker-spec", found.node.place, "")
    mode = _text(dataset, "mode")
    if mode and mode not in _MODES:
        yield Problem(f"{where}.mode is `{mode}`", "beaker-spec", dataset.place, "use `readonly` or `readwrite`")


def _mount(dataset: MappingNode, where: str, mounts: dict[str, str]) -> Iterator[Problem]:
    mount = _text(dataset, "mountPath")
    if not mount.startswith("/"):
        message = f"{where}.mountPath is `{mount}`" if mount else f"{where} has no mountPath"
        yield Problem(message, "beaker-spec", dataset.place, "write an absolute path, such as `/data`")
        return
    place = str(PurePosixPath(mount.lower()))
    for other, written in mounts.items():
        first, second = sorted((PurePosixPath(other), PurePosixPath(place)), key=lambda each: len(each.parts))
        if second.is_relative_to(first):
            message = f"{where}.mountPath `{mount}` overlaps `{written}`"
            hint = "use paths outside of each other; letter case does not count"
            yield Problem(message, "beaker-spec", dataset.place, hint)
            break
    mounts.setdefault(place, mount)


def _source(dataset: MappingNode, where: str, task: MappingNode, names: Mapping[str, Node]) -> Iterator[Problem]:
    entry = dataset.find("source")
    source = entry.node if entry is not None else None
    found = source.entries if isinstance(source, MappingNode) else ()
    given = {each.key: _text(source, each.key) for each in found if not _is_empty(each.node)}
    if len(given) != 1:
        has = f"has {' and '.join(given)}" if given else "has none"
        message = f"{where}.source takes exactly one of {', '.join(keys.SOURCE)}; it {has}"
        yield Problem(message, "beaker-spec", dataset.place, "keep one of them" if given else "add one of them")
        return
    ((kind, value),) = given.items()  # perhaps one that only a newer Beaker knows
    if kind in keys.SOURCE and not value:
        yield Problem(f"{where}.source.{kind} must be text", "beaker-spec", dataset.place, "write its name")
    if kind in _READ_ONLY and _text(dataset, "mode") == "readwrite":
        message = f"{where}.mode is `readwrite`, and what comes from `{kind}` can only be read"
        yield Problem(message, "beaker-spec", dataset.place, "remove the mode")
    if kind == "result" and (value not in names or names[value] is task):
        close = nearest(value, (name for name in names if names[name] is not task))
        message = f"{where} waits for the result of `{value}`, which is not another task of this spec"
        yield Problem(message, "beaker-spec", dataset.place, f"did you mean `{close}`?" if close else "name the task")


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value in (None, "")


def _text(node: Node | None, key: str) -> str:
    entry = node.find(key) if isinstance(node, MappingNode) else None
    value = entry.node.value if entry is not None and isinstance(entry.node, ScalarNode) else ""
    return value if isinstance(value, str) else ""
