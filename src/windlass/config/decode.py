"""Decoding of a document into a dataclass; all problems are collected, with their place and the valid form."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from windlass.config.annotations import Diagnostic
from windlass.config.document import MappingNode, Node, ScalarNode, SequenceNode, kind_of
from windlass.config.field_types import (
    BooleanType,
    ChoiceType,
    Field,
    FieldType,
    FloatType,
    Free,
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
    tag_of,
)
from windlass.config.numbers import read_float, read_integer
from windlass.config.override import COMMAND_LINE
from windlass.config.path import join_path, split_path
from windlass.config.phrases import accepted, name_hint, one_of, type_hint, unknown_key
from windlass.config.shorthand import long_form, move_shorthand_keys
from windlass.config.union import assume_kind, bare_kind, kinds_with
from windlass.core.errors import Problem, SourcePlace
from windlass.core.names import nearest

__all__ = ["DocumentDecoder"]

_Path: TypeAlias = tuple[str, ...]


class _Failed(enum.Enum):
    FAILED = "failed"


_FAILED: Final = _Failed.FAILED


class DocumentDecoder:
    """Decoder for one document, which collects `problems` and `origins`."""

    def __init__(self, root: type[object]) -> None:
        self._root = root
        self.problems: list[Problem] = []
        self.origins: dict[str, SourcePlace] = {}
        self._failed: list[_Path] = []

    def decode(self, node: Node, path: tuple[str, ...] = ()) -> object:
        """Return the decoded document; the value is valid only if no problem was found.

        Args:
            path: position of the tree in a larger document, for messages and origins.
        """
        return self._any(node, RecordType(self._root), path)

    def _any(self, node: Node, field_type: FieldType, path: _Path) -> object:
        self.origins[join_path(path)] = node.place
        match field_type:
            case RecordType():
                return self._record_or_shorthand(node, field_type, path)
            case MapType():
                return self._map(node, field_type, path)
            case ListType():
                return self._list(node, field_type, path)
            case OneOfType():
                return self._one_of(node, field_type, path)
            case Free():
                return self._free(node, path)
            case _:
                return self._scalar(node, field_type, path)

    def _fail(self, path: _Path, message: str, code: str, place: SourcePlace, hint: str = "") -> _Failed:
        self.problems.append(Problem(message, code, place, hint))
        self._failed.append(path)
        return _FAILED

    def _wrong_type(self, node: Node, field_type: FieldType, path: _Path, hint: str = "") -> _Failed:
        message = f"{_subject(path)} must be {accepted(field_type)}, not {kind_of(node)}"
        return self._fail(
            path, message, "invalid-value", node.place, hint or type_hint(node, field_type, path[-1] if path else "")
        )

    # Collections

    def _record_or_shorthand(self, node: Node, field_type: RecordType, path: _Path) -> object:
        if isinstance(node, MappingNode):
            return self._record(node, field_type.cls, path)
        try:
            long = long_form(node, field_type.cls)
        except ValueError as error:
            message = f"{_subject(path)} cannot be {kind_of(node)}"
            return self._fail(path, message, "invalid-value", node.place, str(error))
        return self._wrong_type(node, field_type, path) if long is None else self._record(long, field_type.cls, path)

    def _record(self, node: MappingNode, cls: type[object], path: _Path) -> object:
        fields = fields_of(cls)
        node, conflicts = move_shorthand_keys(node, cls)
        self.problems.extend(conflicts)
        for entry in node.entries:
            if entry.key not in fields:
                self.problems.append(unknown_key(entry, cls, path, self._root))
                self._excuse(entry.key, cls, path)
        values: dict[str, object] = {}
        is_whole = True
        for field in fields.values():
            value = self._field(node, field, path)
            is_whole = is_whole and value is not _FAILED
            values[field.name] = value
        return self._construct(cls, values, node.place, path) if is_whole else _FAILED

    def _excuse(self, key: str, cls: type[object], path: _Path) -> None:
        """Suppress the problem that a key is missing, if it was probably misspelt."""
        shorthands = key_shorthands(cls)
        close = nearest(key, [*fields_of(cls), *shorthands])
        if close:
            self._failed.append((*path, *split_path(shorthands.get(close, close))))

    def _field(self, node: MappingNode, field: Field, path: _Path) -> object:
        entry = node.find(field.key)
        inner = (*path, field.key)
        if entry is None:
            if field.is_required and inner not in self._failed:
                where = f" in {join_path(path)}" if path else ""
                doc = field.doc[:1].lower() + field.doc[1:].rstrip(".")
                hint = f"add `{field.key}:` ({doc})" if doc else f"add `{field.key}:`"
                self._fail(inner, f"missing key `{field.key}`{where}", "missing-key", node.place, hint)
            return _stand_in(field)
        tree_of_kind = assume_kind(entry.node, field.type, default=None if field.is_required else field.default())
        value = self._any(tree_of_kind, field.type, inner)
        return _stand_in(field) if value is _FAILED else value

    def _construct(self, cls: type[object], values: dict[str, object], place: SourcePlace, path: _Path) -> object:
        try:
            value = cls(**values)
        except ValueError as error:
            return self._fail(path, f"{_subject(path)}: {error}", "invalid-value", place)
        check: Callable[[], Iterator[Diagnostic]] | None = getattr(value, "check", None)
        if check is not None:
            for relative, message, code, hint in check():
                full = (*path, *split_path(relative)) if relative else path
                if not any(_is_related(full, failed) for failed in self._failed):
                    self.problems.append(Problem(message, code, self._place_of(full, place), hint))
        return value

    def _place_of(self, path: _Path, fallback: SourcePlace) -> SourcePlace:
        for length in range(len(path), 0, -1):
            found = self.origins.get(join_path(path[:length]))
            if found is not None:
                return found
        return fallback

    def _map(self, node: Node, field_type: MapType, path: _Path) -> object:
        if not isinstance(node, MappingNode):
            return self._wrong_type(node, field_type, path)
        values: dict[str, object] = {}
        is_whole = True
        for entry in node.entries:
            inner = (*path, entry.key)
            if field_type.key.rule is not None and not field_type.key.rule.holds(entry.key):
                message = f"`{entry.key}` in {join_path(path)} is not a valid name"
                hint = name_hint(entry.key, field_type.key.rule)
                self.problems.append(Problem(message, field_type.key.rule.code, entry.place, hint))
            before = len(self.problems)
            item = assume_kind(bare_kind(entry.node, field_type.item, name=entry.key), field_type.item, name=entry.key)
            values[entry.key] = value = self._any(item, field_type.item, inner)
            is_whole = is_whole and value is not _FAILED
            if entry.place.source == COMMAND_LINE:
                self._suggest_sibling(node, entry.key, path, before)
        return values if is_whole else _FAILED

    def _suggest_sibling(self, node: MappingNode, key: str, path: _Path, start: int) -> None:
        """Suggest the entry that was meant by an override with a misspelt name."""
        close = nearest(key, [entry.key for entry in node.entries if entry.place.source != COMMAND_LINE])
        for index in range(start, len(self.problems)):
            problem = self.problems[index]
            if close and problem.code == "missing-key":
                hint = f"did you mean `{join_path((*path, close))}`?"
                self.problems[index] = Problem(problem.message, problem.code, problem.place, hint)

    def _list(self, node: Node, field_type: ListType, path: _Path) -> object:
        if isinstance(node, SequenceNode):
            items: Sequence[Node] = node.items
        elif field_type.is_one_or_many and not (isinstance(node, ScalarNode) and node.value is None):
            value = self._any(node, field_type.item, path)
            return _FAILED if value is _FAILED else _sequence([value], field_type)
        else:
            return self._wrong_type(node, field_type, path)
        values = [
            self._any(assume_kind(item, field_type.item), field_type.item, (*path, str(index)))
            for index, item in enumerate(items)
        ]
        return _FAILED if any(value is _FAILED for value in values) else _sequence(values, field_type)

    def _one_of(self, node: Node, field_type: OneOfType, path: _Path) -> object:
        options = [option for option in field_type.options if _may_hold(option, node)]
        tagged = [option for option in options if isinstance(option, RecordType)]
        if len(tagged) > 1 and isinstance(node, MappingNode):
            return self._tagged(node, tagged, path)
        if len(options) == 1:
            return self._any(node, options[0], path)
        if isinstance(node, ScalarNode) and isinstance(node.value, int):
            # A whole number stays an integer if the union has both.
            options.sort(key=lambda option: not isinstance(option, IntegerType))
        for option in options:
            trial = DocumentDecoder(self._root)
            value = trial._any(node, option, path)
            if value is not _FAILED and not trial.problems:
                self.origins.update(trial.origins)
                return value
        return self._wrong_type(node, field_type, path)

    def _tagged(self, node: MappingNode, options: Sequence[RecordType], path: _Path) -> object:
        entry = node.find("kind")
        kinds = [kind for option in options for kind in tag_of(option.cls)]
        if entry is None:
            return self._fail(
                (*path, "kind"),
                f"missing key `kind` in {join_path(path)}",
                "missing-key",
                node.place,
                f"it must be {one_of(kinds)}",
            )
        value = entry.node.value if isinstance(entry.node, ScalarNode) else None
        for option in options:
            if value in tag_of(option.cls):
                start = len(self.problems)
                made = self._record(node, option.cls, path)
                self._name_kinds(start, node, option, options)
                return made
        return self._wrong_choice(entry.node, ChoiceType(tuple(kinds)), (*path, "kind"))

    def _name_kinds(self, start: int, node: MappingNode, chosen: RecordType, options: Sequence[RecordType]) -> None:
        """To each problem about an unknown key, add the kinds that have that key."""
        for entry in node.entries:
            kinds = kinds_with(entry.key, options) if entry.key not in fields_of(chosen.cls) else []
            for index in range(start, len(self.problems)):
                problem = self.problems[index]
                if kinds and problem.code == "unknown-key" and problem.place is entry.place:
                    hint = f"`{entry.key}` is a key of kind {', '.join(kinds)}; remove it, or write that `kind`"
                    self.problems[index] = Problem(problem.message, problem.code, problem.place, hint)

    def _free(self, node: Node, path: _Path) -> object:
        if isinstance(node, MappingNode):
            return {entry.key: self._any(entry.node, Free(), (*path, entry.key)) for entry in node.entries}
        if isinstance(node, SequenceNode):
            return [self._any(item, Free(), (*path, str(index))) for index, item in enumerate(node.items)]
        return node.value

    # Scalars

    def _scalar(self, node: Node, field_type: FieldType, path: _Path) -> object:
        if not isinstance(node, ScalarNode):
            return self._wrong_type(node, field_type, path)
        match field_type:
            case TextType():
                return self._text(node, field_type, path)
            case ChoiceType():
                return self._choice(node, field_type, path)
            case IntegerType() | FloatType():
                return self._number(node, field_type, path)
            case BooleanType() if isinstance(node.value, bool):
                return node.value
            case NullType() if node.value is None:
                return None
        return self._wrong_type(node, field_type, path)

    def _text(self, scalar: ScalarNode, field_type: TextType, path: _Path) -> object:
        text = scalar.value
        if field_type.is_scalar and text is not None:
            text = scalar.text
        if not isinstance(text, str):
            return self._wrong_type(scalar, field_type, path)
        if field_type.rule is not None and not field_type.rule.holds(text):
            message = f"{_subject(path)} cannot be {kind_of(scalar)}"
            return self._fail(path, message, field_type.rule.code, scalar.place, name_hint(text, field_type.rule))
        if "\0" in text:
            return self._fail(
                path, f"{_subject(path)} contains a NUL character", "invalid-value", scalar.place, "remove it"
            )
        return Path(text) if field_type.is_path else text

    def _choice(self, scalar: ScalarNode, field_type: ChoiceType, path: _Path) -> object:
        for value in field_type.values:
            # True == 1 in Python, but not in a file.
            if scalar.value == value and type(scalar.value) is type(value):
                return value if field_type.enum is None else field_type.enum(value)
        return self._wrong_choice(scalar, field_type, path)

    def _wrong_choice(self, node: Node, field_type: ChoiceType, path: _Path) -> _Failed:
        if not isinstance(node, ScalarNode) or node.value is None:
            return self._wrong_type(node, field_type, path)
        words = [str(value) for value in field_type.offered]
        close = nearest(node.text, words)
        legal = f"it must be {one_of(field_type.offered)}"
        hint = f"did you mean `{close}`? {legal}" if close else legal
        return self._fail(path, f"{_subject(path)} cannot be {kind_of(node)}", "invalid-value", node.place, hint)

    def _number(self, scalar: ScalarNode, field_type: IntegerType | FloatType, path: _Path) -> object:
        read = (
            read_integer(scalar, field_type) if isinstance(field_type, IntegerType) else read_float(scalar, field_type)
        )
        if isinstance(read, int | float):
            return read
        if read is None:
            return self._wrong_type(scalar, field_type, path)
        return self._fail(path, f"{_subject(path)} {read.message}", read.code, scalar.place, read.hint)


def _stand_in(field: Field) -> object:
    """Return a value to use for an invalid field, so that further problems are found."""
    if not field.is_required:
        return field.default()
    options = field.type.options if isinstance(field.type, OneOfType) else (field.type,)
    return "" if any(isinstance(option, TextType) and not option.is_path for option in options) else _FAILED


def _subject(path: _Path) -> str:
    return f"`{join_path(path)}`" if path else "the file"


def _is_related(first: _Path, second: _Path) -> bool:
    """Return whether one path is a parent of the other."""
    length = min(len(first), len(second))
    return first[:length] == second[:length]


def _sequence(values: list[object], field_type: ListType) -> object:
    return tuple(values) if field_type.is_tuple else values


def _may_hold(field_type: FieldType, node: Node) -> bool:
    """Return whether a node of this kind could have the given type."""
    if isinstance(field_type, OneOfType):
        return any(_may_hold(option, node) for option in field_type.options)
    if isinstance(field_type, Free):
        return True
    if isinstance(node, MappingNode):
        return isinstance(field_type, RecordType | MapType)
    if isinstance(node, SequenceNode):
        return isinstance(field_type, ListType)
    if node.value is None:
        return isinstance(field_type, NullType)
    if isinstance(field_type, RecordType):
        return shorthand_type(field_type.cls) is not None
    return isinstance(field_type, TextType | ChoiceType | IntegerType | FloatType | BooleanType) or (
        isinstance(field_type, ListType) and field_type.is_one_or_many
    )
