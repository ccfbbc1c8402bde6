"""Unions of dataclasses that differ in `kind`: the implied kind of a mapping, and changes of the kind."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from windlass.config.document import MappingEntry, MappingNode, Node, ScalarNode
from windlass.config.field_types import FieldType, OneOfType, RecordType, fields_of, tag_of
from windlass.core.errors import SourcePlace

__all__ = ["DEFAULT", "assume_kind", "bare_kind", "kinds_with", "take_kind"]

DEFAULT: Final = "default"
"""Source name for places of default values."""


def _options(field_type: FieldType) -> list[type[object]]:
    """Return the dataclasses in a union of dataclasses; none for other types."""
    if isinstance(field_type, OneOfType):
        return [cls for option in field_type.options for cls in _options(option)]
    return [field_type.cls] if isinstance(field_type, RecordType) else []


def assume_kind(node: Node, field_type: FieldType, *, default: object = None, name: str = "") -> Node:
    """Add the implied `kind` to a mapping; return other nodes unchanged.

    The implied kind is that of the field's default; in a mapping of names, a name that is a kind; else that of a
    dataclass with `IS_ASSUMED`. A default or assumed kind is not used if a key belongs only to another kind.
    """
    options = _options(field_type)
    if not isinstance(node, MappingNode) or len(options) < 2 or node.find("kind") is not None:
        return node
    kind: object = next((name for cls in options if name in tag_of(cls)), None)
    if type(default) in options and not _is_of_another(node, type(default), options):
        kind = getattr(default, "kind", None)
    if kind is None:
        assumed = [cls for cls in options if getattr(cls, "IS_ASSUMED", False)]
        kind = next((tag_of(cls)[0] for cls in assumed if not _is_of_another(node, cls, options)), None)
    if not isinstance(kind, str):
        return node
    place = SourcePlace(DEFAULT, excerpt=f"kind = {kind!r}")
    return MappingNode((MappingEntry("kind", place, ScalarNode(kind, kind, place)), *node.entries), node.place)


def bare_kind(node: Node, field_type: FieldType, *, name: str) -> Node:
    """Add the `kind` of the dataclass whose `BARE` has exactly these entries.

    A `name` that is a kind keeps that kind if it needs no other key.
    """
    if not isinstance(node, MappingNode):
        return node
    written = {entry.key: entry.node for entry in node.entries if not _is_assumed(entry)}
    values = {key: inner.value if isinstance(inner, ScalarNode) else inner for key, inner in written.items()}
    for cls in _options(field_type):
        if values and values == getattr(cls, "BARE", None) and not _is_complete(name, _options(field_type)):
            kind = str(tag_of(cls)[0])
            place = SourcePlace(DEFAULT, excerpt=f"kind = {kind!r}")
            rest = tuple(entry for entry in node.entries if entry.key != "kind")
            return MappingNode((MappingEntry("kind", place, ScalarNode(kind, kind, place)), *rest), node.place)
    return node


def _is_assumed(entry: MappingEntry) -> bool:
    return entry.key == "kind" and entry.place.source == DEFAULT


def _is_complete(name: str, options: Sequence[type[object]]) -> bool:
    """Return whether the name is a kind whose fields all have defaults."""
    named = [cls for cls in options if name in tag_of(cls)]
    return bool(named) and not any(field.is_required for field in fields_of(named[0]).values())


def _is_of_another(node: MappingNode, cls: type[object], options: Sequence[type[object]]) -> bool:
    """Return whether the node has a key that is a field of another dataclass but not of this one."""
    foreign = [entry.key for entry in node.entries if entry.key not in fields_of(cls)]
    return any(key in fields_of(option) for key in foreign for option in options)


def take_kind(node: MappingNode, kind: object, field_type: FieldType, yielding: Container[str]) -> MappingNode:
    """Change the kind of a mapping, dropping defaults and fields of the old kind.

    Args:
        yielding: sources whose values may be dropped; other values stay, and the decoder refuses them.
    """
    target = next((cls for cls in _options(field_type) if kind in tag_of(cls)), None)
    old = node.find("kind")
    if target is None or (old is not None and isinstance(old.node, ScalarNode) and old.node.value in tag_of(target)):
        return node
    fields = fields_of(target)
    kept = tuple(
        entry
        for entry in node.entries
        if entry.key == "kind"
        or not (entry.place.source == DEFAULT or (entry.place.source in yielding and entry.key not in fields))
    )
    return MappingNode(kept, node.place)


def kinds_with(key: str, options: Sequence[RecordType]) -> list[str]:
    """Return the kinds whose dataclass has this field."""
    return [str(kind) for option in options if key in fields_of(option.cls) for kind in tag_of(option.cls)]
