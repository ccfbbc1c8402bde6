"""Phrases for error messages: accepted values, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from windlass.config.annotations import Name, Pattern
from windlass.config.document import MappingEntry, MappingNode, Node, ScalarNode
from windlass.config.field_types import (
    BooleanType,
    ChoiceType,
    FieldType,
    FloatType,
    IntegerType,
    ListType,
    MapType,
    NullType,
    OneOfType,
    RecordType,
    TextType,
    fields_of,
    key_shorthands,
    shorthand_type,
)
from windlass.config.path import join_path
from windlass.config.yaml_reader.scalars import resolve_scalar
from windlass.core.errors import Problem
from windlass.core.names import nearest

__all__ = ["accepted", "name_hint", "one_of", "type_hint", "unknown_key"]

_YES = {"yes": "true", "y": "true", "on": "true", "no": "false", "n": "false", "off": "false"}
_MAX_SEARCH_DEPTH = 5


def accepted(field_type: FieldType) -> str:
    """Describe the values that a field accepts, such as `a whole number` or `text or a list`."""
    words = list(dict.fromkeys(_accepted(field_type)))
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _accepted(field_type: FieldType) -> Iterator[str]:
    match field_type:
        case OneOfType():
            for option in field_type.options:
                if not isinstance(option, NullType):
                    yield from _accepted(option)
        case ListType():
            if field_type.is_one_or_many:
                yield from _accepted(field_type.item)
            yield "a list"
        case RecordType():
            short = shorthand_type(field_type.cls)
            if short is not None:
                yield from _accepted(short)
            yield "a mapping"
        case MapType():
            yield "a mapping"
        case _:
            yield _accepted_scalar(field_type)


def _accepted_scalar(field_type: FieldType) -> str:
    match field_type:
        case NullType():
            return "null"
        case BooleanType():
            return "`true` or `false`"
        case IntegerType():
            return "a size such as `16GiB`" if field_type.is_size else "a whole number"
        case FloatType():
            return "a duration such as `20m`" if field_type.is_duration else "a number"
        case TextType():
            return "text"
        case ChoiceType():
            return one_of(field_type.offered)
    return "any value"


def one_of(values: Sequence[object]) -> str:
    """Format values as `a` or `one of a, b, c`."""
    words = [("true" if value else "false") if isinstance(value, bool) else str(value) for value in values]
    return f"one of {', '.join(words)}" if len(words) > 1 else f"`{words[0]}`"


def type_hint(node: Node, field_type: FieldType, key: str) -> str:
    """Return a hint about a value of the wrong type; empty if the message suffices."""
    if not node.place.line and node.place.excerpt.startswith("--") and "=" not in node.place.excerpt:
        return f"write `{node.place.excerpt}=VALUE`"
    if isinstance(node, MappingNode):
        return "put quotes around text that contains `: `" if _takes(field_type, TextType) else ""
    if not isinstance(node, ScalarNode):
        return ""
    if node.value is None:
        if _takes(field_type, RecordType) or _takes(field_type, MapType):
            return f"indent what belongs to `{key}` below it, or remove `{key}`" if key else ""
        return (
            f'write a value, or remove `{key}`; empty text is `""`'
            if _takes(field_type, TextType)
            else f"write a value, or remove `{key}`"
        )
    if isinstance(node.value, str):
        return _hint_for_text(node.value, field_type)
    if _takes(field_type, TextType):
        return _quote_hint(node)
    if isinstance(node.value, bool):
        return ""
    return _unit_hint(node.text, field_type)


def _quote_hint(scalar: ScalarNode) -> str:
    if scalar.place.line == 0 and scalar.place.excerpt.endswith(f"={scalar.text}"):
        return f"quote it twice, for the shell and for YAML: {scalar.place.excerpt[: -len(scalar.text)]}'\"{scalar.text}\"'"
    return f'quote it: "{scalar.text}"'


def _unit_hint(text: str, field_type: FieldType) -> str:
    for option in _flat(field_type):
        if isinstance(option, FloatType) and option.is_duration:
            return f"add a unit: `{text}s`, `{text}m`, `{text}h` or `{text}d`"
        if isinstance(option, IntegerType) and option.is_size:
            return f"add a unit: `{text}MiB`, `{text}GiB` or `{text}TiB`"
        # A dataclass whose short form is a number and one of these words has this attribute.
        units: Sequence[str] = getattr(option.cls, "UNITS", ()) if isinstance(option, RecordType) else ()
        if units:
            return f"add a unit: {', '.join(f'`{text}{unit}`' for unit in units[:-1])} or `{text}{units[-1]}`"
    return ""


def _hint_for_text(text: str, field_type: FieldType) -> str:
    if "${" in text:
        return "`${...}` works in text only; write the value itself"
    if _takes(field_type, BooleanType) and text.lower() in _YES:
        return f"write `{_YES[text.lower()]}`"
    if _takes(field_type, IntegerType) or _takes(field_type, FloatType):
        try:
            is_number = isinstance(resolve_scalar(text), int | float)
        except ValueError:
            is_number = False
        if is_number:
            return f"remove the quotes: {text}"
    return ""


def _flat(field_type: FieldType) -> Iterator[FieldType]:
    if isinstance(field_type, OneOfType):
        for option in field_type.options:
            yield from _flat(option)
    elif isinstance(field_type, ListType) and field_type.is_one_or_many:
        yield from _flat(field_type.item)
    else:
        yield field_type


def _takes(field_type: FieldType, kind: type[object]) -> bool:
    return any(isinstance(option, kind) for option in _flat(field_type))


def unknown_key(entry: MappingEntry, cls: type[object], path: Sequence[str], root: type[object]) -> Problem:
    """Return the problem for an unknown key, with the key that was probably meant."""
    key, place = entry.key, entry.place
    known = [*fields_of(cls), *key_shorthands(cls)]
    where = f" in {join_path(path)}" if path else " at the top level"
    foreign = _foreign_hint(entry, path, root)
    if foreign:
        return Problem(f"unknown key `{key}`{where}", "unknown-key", place, foreign)
    close = nearest(key, known)
    # Precedence: a likely typo, then a key with exactly this name elsewhere, then a similar key.
    is_slip = bool(close) and abs(len(close) - len(key)) <= 1 and _likeness(key, close) >= 0.8
    elsewhere = "" if is_slip else _misplaced_hint(key, root)
    hint = elsewhere or (f"did you mean `{close}`?" if close else f"the keys here are: {', '.join(known)}")
    return Problem(f"unknown key `{key}`{where}", "unknown-key", place, hint)


def _foreign_hint(entry: MappingEntry, path: Sequence[str], root: type[object]) -> str:
    """Return a hint with windlass's name for another program's key, from the root class's `FOREIGN_KEYS`."""
    names: Mapping[str, str] = getattr(root, "FOREIGN_KEYS", {})
    found = [(key, names[key]) for key in _paths_below(entry, path) if key in names]
    return "; ".join(f"`{theirs}` is `{ours}` here" for theirs, ours in found)


def _paths_below(entry: MappingEntry, path: Sequence[str]) -> Iterator[str]:
    here = (*path, entry.key)
    yield join_path(here)
    if isinstance(entry.node, MappingNode):
        for inner in entry.node.entries:
            yield from _paths_below(inner, here)


def _likeness(first: str, second: str) -> float:
    import difflib  # lazy: only needed for errors

    return difflib.SequenceMatcher(None, first, second).ratio()


def name_hint(text: str, rule: Name | Pattern) -> str:
    """Return a hint with the rule and, if there is one, a similar valid text."""
    if isinstance(rule, Name):
        mended = re.sub("[^a-z0-9._-]+" if rule.is_dotted else "[^a-z0-9_-]+", "-", text.lower())[:64].strip("-._")
        if mended and rule.holds(mended):
            return f"did you mean `{mended}`? {rule.rule}"
    return rule.rule


def _misplaced_hint(key: str, root: type[object]) -> str:
    """Return a hint about a misplaced key, such as `nodes` at the top level; may be empty."""
    found = min(_places_of(key, RecordType(root), (), 0), key=len, default=())
    return f"`{key}` belongs elsewhere: `{'.'.join(found)}`" if found else ""


def _places_of(key: str, field_type: FieldType, path: tuple[str, ...], depth: int) -> Iterator[tuple[str, ...]]:
    """Yield the paths of fields named `key`, at any depth."""
    if depth > _MAX_SEARCH_DEPTH:
        return
    for option in _flat(field_type):
        if isinstance(option, RecordType):
            fields = fields_of(option.cls)
            if key in fields:
                yield (*path, join_path((key,)))
            for name, field in fields.items():
                yield from _places_of(key, field.type, (*path, name), depth + 1)
        elif isinstance(option, MapType):
            yield from _places_of(key, option.item, (*path, "NAME"), depth + 1)
        elif isinstance(option, ListType):
            yield from _places_of(key, option.item, (*path, "0"), depth + 1)
