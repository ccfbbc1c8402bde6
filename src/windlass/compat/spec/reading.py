"""Reader of spec files (YAML or JSON), which reports every problem for which Beaker would reject a file."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

from windlass.compat.spec.rules import problems_of, short_durations, unknown_keys
from windlass.config.document import (
    MappingEntry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    data_of_node,
    node_of_data,
)
from windlass.config.loading import raise_any
from windlass.config.yaml_reader.parser import compose, decode_text, too_large
from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, NotFoundError, Problem, SourcePlace, SpecError
from windlass.core.json_text import decode_json
from windlass.plan.beaker.quantities import parse_duration_ns

__all__ = ["SpecFile", "as_client_reads", "checked_spec", "read_spec", "sent"]

_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """Spec as written in a file.

    Attributes:
        data: plain data; durations and sizes are unchanged text.
        notes: unknown keys, which are kept, and numbers whose unit is probably wrong.
    """

    path: Path
    data: dict[str, Any]
    notes: tuple[str, ...] = ()


def read_spec(path: Path) -> SpecFile:
    """Read a spec file. Makes no requests.

    Raises:
        NotFoundError: there is no such file.
        AccessError: it cannot be read.
        SpecError: Beaker would reject the spec; contains all problems.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        hint = "name a spec file: windlass beaker import SPEC.yaml"
        raise NotFoundError(f"no such file: `{path}`", hint=hint, code="file-not-found") from error
    except (OSError, ValueError) as error:
        raise AccessError(f"cannot read `{path}`: {error}", hint="check the path", code="file-unreadable") from error
    if len(content) > _MAX_BYTES:
        raise SpecError([too_large(SourcePlace(str(path)), _MAX_BYTES)])
    node = _tree(decode_text(content, source=str(path)), str(path))
    node = as_client_reads(node)
    raise_any(problems_of(node))
    notes = [_note(key, close) for key, close in unknown_keys(node)]
    notes += [
        f"{key} is {text} nanoseconds, because it has no unit; for seconds write `{text}s`"
        for key, text in short_durations(node)
    ]
    return SpecFile(path=path, data=cast(dict[str, Any], data_of_node(node)), notes=tuple(notes))


def checked_spec(spec: Mapping[str, Any], source: str = "<spec>") -> dict[str, Any]:
    """Return the data unchanged, after the same checks as for a file; raises SpecError with every problem."""
    try:
        node = node_of_data(spec, source)
    except ValueError as error:
        raise SpecError([Problem(str(error), "beaker-refused", SourcePlace(source), "use plain JSON data")]) from error
    raise_any(problems_of(node))
    return cast(dict[str, Any], data_of_node(node))


def sent(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec as Beaker's client sends it.

    Durations are in nanoseconds; command words and variables are strings.

    `preemptible` is dropped next to `minRuntime` or `autoResume`, because Beaker rejects the combination.
    """
    data = deepcopy(dict(spec))
    for task in data.get("tasks") or []:
        for key in ("timeout", "synchronizedStartTimeout"):
            _to_nanoseconds(task, key)
        for key in ("command", "arguments"):
            if task.get(key):
                task[key] = [word if isinstance(word, str) else str(word) for word in task[key]]
        for variable in task.get("envVars") or []:
            if variable.get("value") is not None:
                variable["value"] = value_text(variable["value"])
        context = task.get("context")
        if isinstance(context, dict):
            _to_nanoseconds(context, "minRuntime")
            if context.get("minRuntime") is not None or context.get("autoResume") is not None:
                context.pop("preemptible", None)
    return data


def value_text(value: object) -> str:
    """Return the value of a variable as a string: `true` for a boolean, the digits for a number."""
    return value if isinstance(value, str) else json.dumps(value)


def _to_nanoseconds(mapping: dict[str, Any], key: str) -> None:
    if mapping.get(key) is not None:
        mapping[key] = parse_duration_ns(mapping[key])


def _tree(text: str, source: str) -> Node:
    node, problems = compose(text, source=source, merges=True)  # as the client reads it
    if node is None and problems and text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):  # otherwise the YAML reader reports better positions
            return node_of_data(decode_json(text), source)  # JSON that is not YAML: lone surrogate escapes, tabs
    raise_any(problems)
    if node is None:
        raise SpecError([Problem("the file is empty", "no-tasks", SourcePlace(source), "write `tasks:` lines")])
    return node


def _note(key: str, close: str) -> str:
    return f"{key} is not a key of Beaker's spec v2 and is kept" + (f"; did you mean `{close}`?" if close else "")


# Source: YAML 1.1, the types `int` and `float`, as PyYAML has them; decimal forms only.
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*|[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?|\.[0-9]+(?:[eE][-+][0-9]+)?|\.inf)\Z")


def as_client_reads(spec: Node) -> Node:
    """Return the spec with numbers that only YAML 1.2 recognizes kept as strings, in commands and variables."""
    return _at(spec, ("tasks", "*"), _task)


def _task(node: Node) -> Node:
    for path in (("command", "*"), ("arguments", "*"), ("envVars", "*", "value")):
        node = _at(node, path, _word)
    return node


def _word(node: Node) -> Node:
    is_number = (
        isinstance(node, ScalarNode) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
    )
    if isinstance(node, ScalarNode) and is_number and not _NUMBER.match(node.text):
        return ScalarNode(node.text, node.text, node.place)
    return node


def _at(node: Node, path: tuple[str, ...], change: Callable[[Node], Node]) -> Node:
    """Return the tree with the value at a path changed; `*` stands for every item in a list."""
    if not path:
        return change(node)
    if path[0] == "*":
        return (
            SequenceNode(tuple(_at(item, path[1:], change) for item in node.items), node.place)
            if isinstance(node, SequenceNode)
            else node
        )
    if not isinstance(node, MappingNode):
        return node
    entries = (
        MappingEntry(entry.key, entry.place, _at(entry.node, path[1:], change)) if entry.key == path[0] else entry
        for entry in node.entries
    )
    return MappingNode(tuple(entries), node.place)
