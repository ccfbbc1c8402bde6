"""Words and values that Beaker's own client takes for text, since it reads YAML 1.1: `1e-4` is no number there."""

from __future__ import annotations

import re
from collections.abc import Callable

from windlass.config.document import MappingEntry, MappingNode, Node, ScalarNode, SequenceNode

__all__ = ["as_client_reads"]

# Source: YAML 1.1, the types `int` and `float`, as PyYAML has them; decimal forms alone.
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*|[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?|\.[0-9]+(?:[eE][-+][0-9]+)?|\.inf)\Z")


def as_client_reads(spec: Node) -> Node:
    """The same spec, in whose commands and variables a number that only YAML 1.2 knows is the text that was written."""
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
    """The tree with what stands at a path changed; `*` is every item of a list."""
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
