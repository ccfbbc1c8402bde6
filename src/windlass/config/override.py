"""Overrides such as `tasks.train.nodes=2`, applied to a document before decoding.

Grammar: `PATH=VALUE`, `--PATH=VALUE`, `--PATH` (true), `~PATH` (remove). A path is keys and list positions joined by
dots; a key with a dot is quoted. A value is YAML if it begins with a quote, `[` or `{`; otherwise the whole rest is
one plain scalar, so that `why=faster: yes #2` keeps every character.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import replace

from windlass.config.document import (
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    data_of_node,
    has_surrogate,
    kind_of,
    printable,
)
from windlass.config.field_types import (
    Field,
    FieldType,
    Free,
    ListType,
    MapType,
    OneOfType,
    RecordType,
    fields_of,
    key_shorthands,
    tag_of,
)
from windlass.config.path import join_path, split_path
from windlass.config.phrases import accepted
from windlass.config.shorthand import long_form, move_shorthand_keys
from windlass.config.union import DEFAULT, assume_kind, take_kind
from windlass.config.yaml_reader.parser import compose
from windlass.config.yaml_reader.scalars import resolve_scalar
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem, SourcePlace, SpecError
from windlass.core.names import nearest

__all__ = ["COMMAND_LINE", "apply_overrides", "parse_override"]

COMMAND_LINE = "command line"
_HEAD = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^=\"'])*", re.DOTALL)
_FORMS = "write `a.b=VALUE`, `--a.b=VALUE`, `--a.b` (true) or `~a.b` (remove)"
_Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Override:
    """Parsed override; `node` is None for a removal. `yielding`: sources whose values a new `kind` may drop."""

    parts: _Parts
    node: Node | None
    place: SourcePlace
    yielding: Container[str] = (DEFAULT,)


class _Refused(Exception):
    """Raised for an override that cannot be applied; contains the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def parse_override(text: str) -> tuple[str, object]:
    """Parse an override; return its path and plain value, which is None for a removal.

    Raises:
        SpecError: the override is malformed.
    """
    try:
        override = _read(text)
    except _Refused as refused:
        raise SpecError([refused.problem]) from None
    return join_path(override.parts), None if override.node is None else data_of_node(override.node)


def apply_overrides(
    node: MappingNode, schema: type[object], overrides: Sequence[str], *, yielding: Container[str] = (DEFAULT,)
) -> tuple[MappingNode, list[Problem]]:
    """Apply all overrides in order; return the document and the problems.

    Args:
        yielding: sources whose values are dropped if an override selects another `kind` without such a field.
    """
    problems: list[Problem] = []
    for text in overrides:
        try:
            override = replace(_read(text), yielding=yielding)
            changed = _change(node, RecordType(schema), override, 0)
        except _Refused as refused:
            problems.append(refused.problem)
            continue
        # The root is always a mapping.
        node = changed if isinstance(changed, MappingNode) else node
    return node, problems


def _read(text: str) -> _Override:
    place = SourcePlace(COMMAND_LINE, excerpt=printable(text))
    if has_surrogate(text):
        raise _refused(f"the override {text!r} is not UTF-8", place, "check the terminal's encoding")
    match = _HEAD.match(text)
    head = match.group() if match is not None else ""
    rest = text[len(head) :]
    if rest and not rest.startswith("="):
        raise _refused(f"the override `{text}` has an open quote", place, _FORMS)
    is_removal, is_option = head.startswith("~"), head.startswith("--")
    if is_removal and rest:
        raise _refused(f"the override `{text}` both removes and sets", place, _FORMS)
    if not rest and not is_removal and not is_option:
        raise _refused(
            f"the override `{text}` sets nothing", place, f"write `{text}=VALUE`" if text.strip() else _FORMS
        )
    try:
        parts = split_path((head[1:] if is_removal else head[2:] if is_option else head).strip())
    except ValueError as error:
        raise _refused(f"the override `{text}` has no path", place, str(error)) from None
    if is_removal:
        return _Override(parts, None, place)
    return _Override(parts, _value(rest[1:].strip(), place) if rest else ScalarNode(True, "true", place), place)


def _refused(message: str, place: SourcePlace, hint: str) -> _Refused:
    return _Refused(Problem(message, "invalid-override", place, hint))


def _value(text: str, place: SourcePlace) -> Node:
    if text[:1] not in ("[", "{", '"', "'"):
        try:
            return ScalarNode(resolve_scalar(text), text, place)
        except ValueError as error:
            raise _Refused(Problem(str(error), "invalid-value", place, "quote it if it is meant as text")) from None
    node, problems = compose(text, source=COMMAND_LINE, place=place)
    if problems or node is None:
        first = problems[0].message if problems else "no value"
        raise _refused(f"the value `{text}` is not YAML: {first}", place, "put the whole value in quotes if it is text")
    return node


def _change(node: Node | None, field_type: FieldType, override: _Override, depth: int) -> Node | None:
    """Apply an override to a node and return the new node; None if it was removed."""
    if depth == len(override.parts):
        return override.node
    if node is None or (isinstance(node, ScalarNode) and node.value is None):
        if override.node is None:
            raise _nothing_to_remove(override, node, depth)
        node = _empty(field_type, override)
    if isinstance(node, MappingNode) and isinstance(override.node, ScalarNode) and override.parts[depth:] == ("kind",):
        node = take_kind(node, override.node.value, field_type, override.yielding)
    opened, field_type = _open(node, field_type, override, depth)
    if isinstance(opened, SequenceNode):
        return _change_item(opened, field_type, override, depth)
    return _change_entry(opened, field_type, override, depth)


def _nothing_to_remove(override: _Override, node: Node | None, depth: int) -> _Refused:
    path = join_path(override.parts)
    keys = [entry.key for entry in node.entries] if isinstance(node, MappingNode) else []
    close = nearest(override.parts[depth], keys)
    hint = f"did you mean `~{join_path((*override.parts[:depth], close))}`?" if close else "leave the override out"
    return _refused(f"`{path}` is not set, so it cannot be removed", override.place, hint)


def _empty(field_type: FieldType, override: _Override) -> Node:
    """Return an empty collection for a path that the file does not set."""
    options = _options(field_type)
    if any(isinstance(option, ListType) for option in options) and not any(
        isinstance(o, RecordType | MapType) for o in options
    ):
        return SequenceNode((), override.place)
    return MappingNode((), override.place)


def _options(field_type: FieldType) -> list[FieldType]:
    return (
        [inner for option in field_type.options for inner in _options(option)]
        if isinstance(field_type, OneOfType)
        else [field_type]
    )


def _open(
    node: Node, field_type: FieldType, override: _Override, depth: int
) -> tuple[MappingNode | SequenceNode, FieldType]:
    """Return the collection to change, with short forms expanded, and its type."""
    options = _options(field_type)
    for option in options:
        if isinstance(option, RecordType) and not isinstance(node, MappingNode):
            try:
                long = long_form(node, option.cls)
            except ValueError:
                long = None
            if long is not None:
                return long, option
        if isinstance(option, ListType) and option.is_one_or_many and not isinstance(node, SequenceNode):
            return SequenceNode((node,), node.place), option
    if isinstance(node, ScalarNode):
        path = join_path(override.parts[:depth])
        message = f"`{join_path(override.parts)}` cannot be set: `{path}` is {kind_of(node)}"
        raise _refused(message, override.place, f"`{path}` takes {accepted(field_type)}: write `{path}=VALUE`")
    kinds = (RecordType, MapType, Free) if isinstance(node, MappingNode) else (ListType, Free)
    fitting = [option for option in options if isinstance(option, kinds)]
    return node, _tagged(node, fitting) if fitting else Free()


def _tagged(node: MappingNode | SequenceNode, options: Sequence[FieldType]) -> FieldType:
    """Return the dataclass that the node's `kind` selects, or the first option if none matches."""
    kind = node.find("kind") if isinstance(node, MappingNode) else None
    value = kind.node.value if kind is not None and isinstance(kind.node, ScalarNode) else None
    for option in options:
        if isinstance(option, RecordType) and value is not None and value in tag_of(option.cls):
            return option
    return options[0]


def _change_item(node: SequenceNode, field_type: FieldType, override: _Override, depth: int) -> SequenceNode:
    part = override.parts[depth]
    path = join_path(override.parts[:depth]) or "the file"
    count = len(node.items)
    legal = (
        f"positions 0 to {count}"
        if override.node is not None
        else f"positions 0 to {count - 1}"
        if count
        else "no items"
    )
    if re.fullmatch("[0-9]{1,6}", part) is None or int(part) > count:
        raise _refused(f"`{part}` is not a position in `{path}`", override.place, f"`{path}` has {legal}")
    index = int(part)
    if index == count and override.node is None:
        raise _nothing_to_remove(override, node, depth)
    old = node.items[index] if index < count else None
    new = _change(old, field_type.item if isinstance(field_type, ListType) else Free(), override, depth + 1)
    items = [*node.items[:index], *([] if new is None else [new]), *node.items[index + 1 :]]
    return SequenceNode(tuple(items), node.place)


def _change_entry(node: MappingNode, field_type: FieldType, override: _Override, depth: int) -> MappingNode:
    if isinstance(field_type, RecordType):
        node, override = _without_shorthand_keys(node, field_type.cls, override, depth)
    part = override.parts[depth]
    entry = node.find(part)
    if entry is None and override.node is None:
        raise _nothing_to_remove(override, node, depth)
    # An unknown key is set anyway: the decoder refuses it together with all other problems.
    inner = _inner_type(field_type, part)
    is_whole = depth + 1 == len(override.parts)
    held = None if entry is None else entry.node
    new = _change(held if is_whole else _assumed(held, field_type, part, override), inner, override, depth + 1)
    if new is None:
        return node.drop(part)
    for other in _alternatives(node, field_type, part):
        node = node.drop(other)
    return node.put(part, new, override.place if entry is None or is_whole else entry.place)


def _alternatives(node: MappingNode, field_type: FieldType, part: str) -> list[str]:
    """Return the keys in the file that an override replaces, such as `env.uv` for `env.image`.

    A dataclass lists such keys in `ALTERNATIVES`. Two overrides do not replace each other; the dataclass refuses both.
    """
    keys = getattr(field_type.cls, "ALTERNATIVES", ()) if isinstance(field_type, RecordType) else ()
    others = [entry for key in keys if part in keys and key != part and (entry := node.find(key)) is not None]
    return [entry.key for entry in others if entry.place.source != COMMAND_LINE]


def _assumed(held: Node | None, field_type: FieldType, part: str, override: _Override) -> Node | None:
    """Return the node that an override changes, with the implied `kind` added."""
    is_nothing = held is None or (isinstance(held, ScalarNode) and held.value is None)
    if is_nothing and override.node is None:
        return held
    node = MappingNode((), override.place) if held is None or is_nothing else held
    field = fields_of(field_type.cls).get(part) if isinstance(field_type, RecordType) else None
    default = field.default() if field is not None and not field.is_required else None
    assumed = assume_kind(node, _inner_type(field_type, part), default=default, name=part if field is None else "")
    return held if assumed is node else assumed


def _inner_type(field_type: FieldType, part: str) -> FieldType:
    if isinstance(field_type, RecordType):
        field: Field | None = fields_of(field_type.cls).get(part)
        return field.type if field is not None else Free()
    return field_type.item if isinstance(field_type, MapType) else Free()


def _without_shorthand_keys(
    node: MappingNode, cls: type[object], override: _Override, depth: int
) -> tuple[MappingNode, _Override]:
    """Expand keys such as `run` in the document and in the override's path."""
    target = key_shorthands(cls).get(override.parts[depth])
    moved, conflicts = move_shorthand_keys(node, cls)
    # A conflict stays in the document, so that the decoder reports it with all other problems.
    node = node if conflicts else moved
    if target is None:
        return node, override
    long = split_path(target)
    holder = node.find(long[0])
    if (
        holder is not None
        and isinstance(holder.node, MappingNode)
        and holder.node.entries
        and holder.node.find(long[1]) is None
    ):
        names = ", ".join(f"`{long[0]}.{entry.key}`" for entry in holder.node.entries)
        key = override.parts[depth]
        raise _refused(
            f"`{key}` cannot be set: the file has {names}", override.place, f"`{key}` is short for `{target}`"
        )
    parts = (*override.parts[:depth], *long, *override.parts[depth + 1 :])
    return node, _Override(parts, override.node, override.place)
