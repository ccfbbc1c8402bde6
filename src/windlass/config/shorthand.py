"""Short forms: a scalar in place of a dataclass, or a key in place of a longer path."""

from __future__ import annotations

from collections.abc import Callable

from windlass.config.document import (
    MappingEntry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    data_of_node,
    node_of_data,
)
from windlass.config.encode import to_data
from windlass.config.field_types import (
    BooleanType,
    FieldType,
    FloatType,
    IntegerType,
    ListType,
    OneOfType,
    TextType,
    key_shorthands,
    shorthand_type,
)
from windlass.config.path import split_path
from windlass.core.errors import Problem, SourcePlace

__all__ = ["long_form", "move_shorthand_keys"]


def long_form(node: Node, cls: type[object]) -> MappingNode | None:
    """Expand a short form to a mapping; None if the dataclass has no such form.

    Raises:
        ValueError: the value is invalid; the message gives the accepted forms.
    """
    field_type = shorthand_type(cls)
    if field_type is None or not _is_exactly(node, field_type):
        return None
    from_shorthand: Callable[[object], object] = getattr(cls, "from_shorthand")  # noqa: B009 (a method by convention)
    data = to_data(from_shorthand(data_of_node(node)), is_long=True)
    placed = _placed(node_of_data(data, ""), node.place)
    return placed if isinstance(placed, MappingNode) else None


def _is_exactly(node: Node, field_type: FieldType) -> bool:
    """Return whether the node has the type without being converted."""
    if isinstance(field_type, OneOfType):
        return any(_is_exactly(node, option) for option in field_type.options)
    if isinstance(node, SequenceNode):
        return isinstance(field_type, ListType)
    if isinstance(node, MappingNode) or node.value is None:
        return False
    kinds: dict[type[object], type[object]] = {str: TextType, bool: BooleanType, int: IntegerType, float: FloatType}
    return isinstance(field_type, kinds[type(node.value)])


def _placed(node: Node, place: SourcePlace) -> Node:
    """Return a copy of the node in which all parts have the same place."""
    if isinstance(node, ScalarNode):
        return ScalarNode(node.value, node.text, place)
    if isinstance(node, SequenceNode):
        return SequenceNode(tuple(_placed(item, place) for item in node.items), place)
    return MappingNode(
        tuple(MappingEntry(entry.key, place, _placed(entry.node, place)) for entry in node.entries), place
    )


def move_shorthand_keys(node: MappingNode, cls: type[object]) -> tuple[MappingNode, list[Problem]]:
    """Move keys such as `run` to the path they stand for (`tasks.main.run`)."""
    problems = []
    for key, target in key_shorthands(cls).items():
        entry = node.find(key)
        if entry is None:
            continue
        node = node.drop(key)
        first, *rest = split_path(target)
        if node.find(first) is not None:
            hint = f"`{key}` is short for `{target}`; keep one of them"
            problems.append(Problem(f"both `{key}` and `{first}` are set", "conflicting-options", entry.place, hint))
            continue
        moved: Node = entry.node
        for part in reversed(rest):
            moved = MappingNode((MappingEntry(part, entry.place, moved),), entry.place)
        node = node.put(first, moved, entry.place)
    return node, problems
