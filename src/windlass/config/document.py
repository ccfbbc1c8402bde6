"""Document as a tree of scalar, sequence and mapping nodes, each with its place in the source."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from windlass.config.path import join_path
from windlass.core.dataclass import dataclass
from windlass.core.errors import SourcePlace

__all__ = [
    "MAX_DEPTH",
    "MappingEntry",
    "MappingNode",
    "Node",
    "ScalarNode",
    "SequenceNode",
    "data_of_node",
    "has_surrogate",
    "kind_of",
    "node_of_data",
    "printable",
    "text_of",
]

MAX_DEPTH = 64
_MAX_EXCERPT = 120
_MAX_INT = 10**1000
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """Scalar: its YAML 1.2 value, and its text as written."""

    value: bool | int | float | str | None
    text: str
    place: SourcePlace


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """List of nodes."""

    items: tuple[Node, ...]
    place: SourcePlace


@dataclass(frozen=True, slots=True)
class MappingEntry:
    """Key of a mapping, with its place and value."""

    key: str
    place: SourcePlace
    node: Node


@dataclass(frozen=True, slots=True)
class MappingNode:
    """Mapping whose entries are in the order written; keys are unique."""

    entries: tuple[MappingEntry, ...]
    place: SourcePlace

    def find(self, key: str) -> MappingEntry | None:
        """Return the entry with `key`, or None."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def put(self, key: str, node: Node, place: SourcePlace) -> MappingNode:
        """Return a copy of this mapping with `key` set, in its previous position or at the end."""
        entry = MappingEntry(key, place, node)
        if self.find(key) is None:
            return MappingNode((*self.entries, entry), self.place)
        return MappingNode(tuple(entry if old.key == key else old for old in self.entries), self.place)

    def drop(self, key: str) -> MappingNode:
        """Return a copy of this mapping without `key`."""
        return MappingNode(tuple(entry for entry in self.entries if entry.key != key), self.place)


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode


def kind_of(node: Node) -> str:
    """Describe a node for messages: `the text "x"`, `the number 3`, `a list`."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    value = node.value
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"`{'true' if value else 'false'}`"
    if isinstance(value, str):
        return f"the text `{_short(value)}`"
    return f"the number `{_short(node.text)}`"


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= 80 else text[:77] + "..."


def printable(text: str) -> str:
    """Return the text with unprintable characters replaced by escapes."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def node_of_data(data: object, source: str) -> Node:
    """Convert plain Python data to a node; its places have paths instead of lines.

    Raises:
        ValueError: the data is nested too deeply or contains itself.
    """
    return _tree(data, source, "", 0)


def has_surrogate(text: str) -> bool:
    """Return whether the text contains a lone surrogate, which stands for bytes that are not UTF-8."""
    return _SURROGATE.search(text) is not None


def _tree(data: object, source: str, path: str, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(data, enum.Enum):
        data = data.value
    if isinstance(data, Mapping):
        place = SourcePlace(source, excerpt=path)
        entries = []
        for key, value in data.items():
            if not isinstance(key, str):
                raise ValueError(f"{path or 'the top level'}: the key {key!r} is not text")
            inner = f"{path}.{join_path((key,))}" if path else join_path((key,))
            child = _tree(value, source, inner, depth + 1)
            entries.append(MappingEntry(key, child.place, child))
        return MappingNode(tuple(entries), place)
    if isinstance(data, list | tuple):
        items = tuple(_tree(value, source, f"{path}.{index}", depth + 1) for index, value in enumerate(data))
        return SequenceNode(items, SourcePlace(source, excerpt=path))
    if isinstance(data, int) and abs(data) >= _MAX_INT:
        raise ValueError(f"{path}: a number of more than 1000 digits is too long")
    excerpt = f"{path} = {data!r}" if path else repr(data)
    place = SourcePlace(
        source, excerpt=excerpt if len(excerpt) <= _MAX_EXCERPT else excerpt[: _MAX_EXCERPT - 3] + "..."
    )
    if isinstance(data, str) and has_surrogate(data):
        raise ValueError(f"{path}: {data!r} is not Unicode text")
    if data is None or isinstance(data, bool | int | float | str):
        return ScalarNode(data, text_of(data), place)
    if isinstance(data, Path):
        return ScalarNode(str(data), str(data), place)
    raise ValueError(f"{path}: a {type(data).__qualname__} cannot be written to a file")


def text_of(value: bool | float | str | None) -> str:
    """Return a scalar as text, as a file would contain it without quotes."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    return str(value)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return repr(value).replace("e-0", "e-")


def data_of_node(node: Node) -> object:
    """Convert a node to plain Python data: None, bool, int, float, str, list, dict."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [data_of_node(item) for item in node.items]
    return {entry.key: data_of_node(entry.node) for entry in node.entries}
