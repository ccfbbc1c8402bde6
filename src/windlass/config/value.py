"""Python values with overrides applied, checked like a file, with the origin of each part."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TypeVar, cast

from windlass.config.decode import DocumentDecoder
from windlass.config.document import MappingEntry, MappingNode, Node, ScalarNode, SequenceNode, node_of_data
from windlass.config.encode import to_data
from windlass.config.loading import LoadedConfig, raise_any
from windlass.config.override import apply_overrides
from windlass.config.union import DEFAULT
from windlass.core.errors import Problem, SourcePlace, SpecError

__all__ = ["with_overrides"]

T = TypeVar("T")


def with_overrides(
    value: T, overrides: Sequence[str] = (), *, source: str, yielding: Container[str] = (DEFAULT,)
) -> LoadedConfig[T]:
    """Apply overrides to a value, and check it completely: types, ranges, `check` methods.

    Args:
        source: creator of the value, for messages; the origin of every field that differs from its default.
        yielding: sources whose values are dropped if an override selects another `kind` without such a field.

    Returns:
        Origins by dotted path: `source`, "default" or "command line" in each place's `source`.

    Raises:
        SpecError: contains every problem in the value and the overrides.
    """
    try:
        full = node_of_data(to_data(value, keep_defaults=True), source)
        written = node_of_data(to_data(value), source)
    except (TypeError, ValueError) as error:
        raise SpecError([Problem(str(error), "invalid-value", SourcePlace(source), "")]) from error
    node = _marked(full, written)
    assert isinstance(node, MappingNode)  # the data of a dataclass is a mapping
    changed, problems = apply_overrides(node, type(value), overrides, yielding=yielding)
    decoder = DocumentDecoder(type(value))
    decoded = decoder.decode(changed)
    raise_any([*problems, *decoder.problems])
    return LoadedConfig(cast(T, decoded), decoder.origins)


def _marked(node: Node, written: Node | None) -> Node:
    """Return a copy of the node with "default" as the source of all parts that were not written."""
    place = node.place if written is not None else SourcePlace(DEFAULT, excerpt=node.place.excerpt)
    if isinstance(node, ScalarNode):
        return ScalarNode(node.value, node.text, place)
    if isinstance(node, SequenceNode):
        inner = written.items if isinstance(written, SequenceNode) else ()
        return SequenceNode(
            tuple(_marked(item, inner[at] if at < len(inner) else None) for at, item in enumerate(node.items)), place
        )
    return MappingNode(tuple(_marked_entry(entry, written) for entry in node.entries), place)


def _marked_entry(entry: MappingEntry, written: Node | None) -> MappingEntry:
    found = written.find(entry.key) if isinstance(written, MappingNode) else None
    node = _marked(entry.node, None if found is None else found.node)
    return MappingEntry(entry.key, node.place, node)
