"""A document tree to a value of a dataclass: every problem at once, each with its place and the accepted form."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from windlass.config.document import Branch, Items, Leaf, Tree, kind_of
from windlass.config.numbers import read_float, read_integer
from windlass.config.override import COMMAND_LINE
from windlass.config.path import join_path, split_path
from windlass.config.phrases import accepted, name_hint, one_of, type_hint, unknown_key
from windlass.config.shape import (
    Boolean,
    Choice,
    Field,
    Float,
    Free,
    Integer,
    ListOf,
    MapOf,
    Null,
    OneOf,
    Record,
    Shape,
    Text,
    fields_of,
    key_shorthands,
    short_shape,
    tag_of,
)
from windlass.config.shorthand import long_form, move_shorthand_keys
from windlass.config.union import assume_kind, bare_kind, kinds_with
from windlass.core.errors import Place, Problem
from windlass.core.names import nearest

__all__ = ["Decoder", "Finding"]

Finding: TypeAlias = tuple[str, str, str, str]
"""What a dataclass's `check` yields: dotted path relative to it, message, slug, hint."""

_Path: TypeAlias = tuple[str, ...]


class _Failed(enum.Enum):
    FAILED = "failed"


_FAILED: Final = _Failed.FAILED


class Decoder:
    """One decoding; collects `problems` and `origins` on the way."""

    def __init__(self, root: type[object]) -> None:
        self._root = root
        self.problems: list[Problem] = []
        self.origins: dict[str, Place] = {}
        self._failed: list[_Path] = []

    def decode(self, tree: Tree, path: tuple[str, ...] = ()) -> object:
        """The value of the whole document; only meaningful when no problem was found.

        Args:
            path: where in a larger document the tree stands, for messages and origins.
        """
        return self._any(tree, Record(self._root), path)

    def _any(self, tree: Tree, shape: Shape, path: _Path) -> object:
        self.origins[join_path(path)] = tree.place
        match shape:
            case Record():
                return self._record_or_shorthand(tree, shape, path)
            case MapOf():
                return self._map(tree, shape, path)
            case ListOf():
                return self._list(tree, shape, path)
            case OneOf():
                return self._one_of(tree, shape, path)
            case Free():
                return self._free(tree, path)
            case _:
                return self._scalar(tree, shape, path)

    def _fail(self, path: _Path, message: str, code: str, place: Place, hint: str = "") -> _Failed:
        self.problems.append(Problem(message, code, place, hint))
        self._failed.append(path)
        return _FAILED

    def _wrong_type(self, tree: Tree, shape: Shape, path: _Path, hint: str = "") -> _Failed:
        message = f"{_subject(path)} must be {accepted(shape)}, not {kind_of(tree)}"
        return self._fail(
            path, message, "wrong-type", tree.place, hint or type_hint(tree, shape, path[-1] if path else "")
        )

    # Collections

    def _record_or_shorthand(self, tree: Tree, shape: Record, path: _Path) -> object:
        if isinstance(tree, Branch):
            return self._record(tree, shape.cls, path)
        try:
            long = long_form(tree, shape.cls)
        except ValueError as error:
            message = f"{_subject(path)} cannot be {kind_of(tree)}"
            return self._fail(path, message, "wrong-value", tree.place, str(error))
        return self._wrong_type(tree, shape, path) if long is None else self._record(long, shape.cls, path)

    def _record(self, tree: Branch, cls: type[object], path: _Path) -> object:
        fields = fields_of(cls)
        tree, conflicts = move_shorthand_keys(tree, cls)
        self.problems.extend(conflicts)
        for entry in tree.entries:
            if entry.key not in fields:
                self.problems.append(unknown_key(entry, cls, path, self._root))
                self._excuse(entry.key, cls, path)
        values: dict[str, object] = {}
        is_whole = True
        for field in fields.values():
            value = self._field(tree, field, path)
            is_whole = is_whole and value is not _FAILED
            values[field.name] = value
        return self._construct(cls, values, tree.place, path) if is_whole else _FAILED

    def _excuse(self, key: str, cls: type[object], path: _Path) -> None:
        """What a misspelt key was meant to set is not missing as well."""
        shorthands = key_shorthands(cls)
        close = nearest(key, [*fields_of(cls), *shorthands])
        if close:
            self._failed.append((*path, *split_path(shorthands.get(close, close))))

    def _field(self, tree: Branch, field: Field, path: _Path) -> object:
        entry = tree.find(field.key)
        inner = (*path, field.key)
        if entry is None:
            if field.is_required and inner not in self._failed:
                where = f" in {join_path(path)}" if path else ""
                doc = field.doc[:1].lower() + field.doc[1:].rstrip(".")
                hint = f"add `{field.key}:` ({doc})" if doc else f"add `{field.key}:`"
                self._fail(inner, f"missing key `{field.key}`{where}", "missing-key", tree.place, hint)
            return _stand_in(field)
        tree_of_kind = assume_kind(entry.tree, field.shape, default=None if field.is_required else field.default())
        value = self._any(tree_of_kind, field.shape, inner)
        return _stand_in(field) if value is _FAILED else value

    def _construct(self, cls: type[object], values: dict[str, object], place: Place, path: _Path) -> object:
        try:
            value = cls(**values)
        except ValueError as error:
            return self._fail(path, f"{_subject(path)}: {error}", "wrong-value", place)
        check: Callable[[], Iterator[Finding]] | None = getattr(value, "check", None)
        if check is not None:
            for relative, message, code, hint in check():
                full = (*path, *split_path(relative)) if relative else path
                if not any(_is_related(full, failed) for failed in self._failed):
                    self.problems.append(Problem(message, code, self._place_of(full, place), hint))
        return value

    def _place_of(self, path: _Path, fallback: Place) -> Place:
        for length in range(len(path), 0, -1):
            found = self.origins.get(join_path(path[:length]))
            if found is not None:
                return found
        return fallback

    def _map(self, tree: Tree, shape: MapOf, path: _Path) -> object:
        if not isinstance(tree, Branch):
            return self._wrong_type(tree, shape, path)
        values: dict[str, object] = {}
        is_whole = True
        for entry in tree.entries:
            inner = (*path, entry.key)
            if shape.key.rule is not None and not shape.key.rule.holds(entry.key):
                message = f"`{entry.key}` in {join_path(path)} is no legal name"
                hint = name_hint(entry.key, shape.key.rule)
                self.problems.append(Problem(message, shape.key.rule.code, entry.place, hint))
            before = len(self.problems)
            item = assume_kind(bare_kind(entry.tree, shape.item, name=entry.key), shape.item, name=entry.key)
            values[entry.key] = value = self._any(item, shape.item, inner)
            is_whole = is_whole and value is not _FAILED
            if entry.place.source == COMMAND_LINE:
                self._suggest_sibling(tree, entry.key, path, before)
        return values if is_whole else _FAILED

    def _suggest_sibling(self, tree: Branch, key: str, path: _Path, start: int) -> None:
        """An override with a misspelt name made an incomplete entry: name the entry that was meant."""
        close = nearest(key, [entry.key for entry in tree.entries if entry.place.source != COMMAND_LINE])
        for index in range(start, len(self.problems)):
            problem = self.problems[index]
            if close and problem.code == "missing-key":
                hint = f"did you mean `{join_path((*path, close))}`?"
                self.problems[index] = Problem(problem.message, problem.code, problem.place, hint)

    def _list(self, tree: Tree, shape: ListOf, path: _Path) -> object:
        if isinstance(tree, Items):
            items: Sequence[Tree] = tree.items
        elif shape.is_one_or_many and not (isinstance(tree, Leaf) and tree.value is None):
            value = self._any(tree, shape.item, path)
            return _FAILED if value is _FAILED else _sequence([value], shape)
        else:
            return self._wrong_type(tree, shape, path)
        values = [
            self._any(assume_kind(item, shape.item), shape.item, (*path, str(index)))
            for index, item in enumerate(items)
        ]
        return _FAILED if any(value is _FAILED for value in values) else _sequence(values, shape)

    def _one_of(self, tree: Tree, shape: OneOf, path: _Path) -> object:
        options = [option for option in shape.options if _may_hold(option, tree)]
        tagged = [option for option in options if isinstance(option, Record)]
        if len(tagged) > 1 and isinstance(tree, Branch):
            return self._tagged(tree, tagged, path)
        if len(options) == 1:
            return self._any(tree, options[0], path)
        if isinstance(tree, Leaf) and isinstance(tree.value, int):
            # A whole number stays one where the union has both.
            options.sort(key=lambda option: not isinstance(option, Integer))
        for option in options:
            trial = Decoder(self._root)
            value = trial._any(tree, option, path)
            if value is not _FAILED and not trial.problems:
                self.origins.update(trial.origins)
                return value
        return self._wrong_type(tree, shape, path)

    def _tagged(self, tree: Branch, options: Sequence[Record], path: _Path) -> object:
        entry = tree.find("kind")
        kinds = [kind for option in options for kind in tag_of(option.cls)]
        if entry is None:
            return self._fail(
                (*path, "kind"),
                f"missing key `kind` in {join_path(path)}",
                "missing-key",
                tree.place,
                f"it must be {one_of(kinds)}",
            )
        value = entry.tree.value if isinstance(entry.tree, Leaf) else None
        for option in options:
            if value in tag_of(option.cls):
                start = len(self.problems)
                made = self._record(tree, option.cls, path)
                self._name_kinds(start, tree, option, options)
                return made
        return self._wrong_choice(entry.tree, Choice(tuple(kinds)), (*path, "kind"))

    def _name_kinds(self, start: int, tree: Branch, chosen: Record, options: Sequence[Record]) -> None:
        """Say of each key that only another kind has, which kind that is."""
        for entry in tree.entries:
            kinds = kinds_with(entry.key, options) if entry.key not in fields_of(chosen.cls) else []
            for index in range(start, len(self.problems)):
                problem = self.problems[index]
                if kinds and problem.code == "unknown-key" and problem.place is entry.place:
                    hint = f"`{entry.key}` is a key of kind {', '.join(kinds)}; remove it, or write that `kind`"
                    self.problems[index] = Problem(problem.message, problem.code, problem.place, hint)

    def _free(self, tree: Tree, path: _Path) -> object:
        if isinstance(tree, Branch):
            return {entry.key: self._any(entry.tree, Free(), (*path, entry.key)) for entry in tree.entries}
        if isinstance(tree, Items):
            return [self._any(item, Free(), (*path, str(index))) for index, item in enumerate(tree.items)]
        return tree.value

    # Scalars

    def _scalar(self, tree: Tree, shape: Shape, path: _Path) -> object:
        if not isinstance(tree, Leaf):
            return self._wrong_type(tree, shape, path)
        match shape:
            case Text():
                return self._text(tree, shape, path)
            case Choice():
                return self._choice(tree, shape, path)
            case Integer() | Float():
                return self._number(tree, shape, path)
            case Boolean() if isinstance(tree.value, bool):
                return tree.value
            case Null() if tree.value is None:
                return None
        return self._wrong_type(tree, shape, path)

    def _text(self, leaf: Leaf, shape: Text, path: _Path) -> object:
        text = leaf.value
        if shape.is_scalar and text is not None:
            text = leaf.text
        if not isinstance(text, str):
            return self._wrong_type(leaf, shape, path)
        if shape.rule is not None and not shape.rule.holds(text):
            message = f"{_subject(path)} cannot be {kind_of(leaf)}"
            return self._fail(path, message, shape.rule.code, leaf.place, name_hint(text, shape.rule))
        if "\0" in text:
            return self._fail(path, f"{_subject(path)} holds a NUL character", "wrong-value", leaf.place, "remove it")
        return Path(text) if shape.is_path else text

    def _choice(self, leaf: Leaf, shape: Choice, path: _Path) -> object:
        for value in shape.values:
            # True == 1 in Python, never in a file.
            if leaf.value == value and type(leaf.value) is type(value):
                return value if shape.enum is None else shape.enum(value)
        return self._wrong_choice(leaf, shape, path)

    def _wrong_choice(self, tree: Tree, shape: Choice, path: _Path) -> _Failed:
        if not isinstance(tree, Leaf) or tree.value is None:
            return self._wrong_type(tree, shape, path)
        words = [str(value) for value in shape.offered]
        close = nearest(tree.text, words)
        legal = f"it must be {one_of(shape.offered)}"
        hint = f"did you mean `{close}`? {legal}" if close else legal
        return self._fail(path, f"{_subject(path)} cannot be {kind_of(tree)}", "wrong-value", tree.place, hint)

    def _number(self, leaf: Leaf, shape: Integer | Float, path: _Path) -> object:
        read = read_integer(leaf, shape) if isinstance(shape, Integer) else read_float(leaf, shape)
        if isinstance(read, int | float):
            return read
        if read is None:
            return self._wrong_type(leaf, shape, path)
        return self._fail(path, f"{_subject(path)} {read.message}", read.code, leaf.place, read.hint)


def _stand_in(field: Field) -> object:
    """What to go on with after a problem of one field, so that it does not hide the problems of others."""
    if not field.is_required:
        return field.default()
    options = field.shape.options if isinstance(field.shape, OneOf) else (field.shape,)
    return "" if any(isinstance(option, Text) and not option.is_path for option in options) else _FAILED


def _subject(path: _Path) -> str:
    return f"`{join_path(path)}`" if path else "the file"


def _is_related(first: _Path, second: _Path) -> bool:
    """Whether one path lies on the way to the other."""
    length = min(len(first), len(second))
    return first[:length] == second[:length]


def _sequence(values: list[object], shape: ListOf) -> object:
    return tuple(values) if shape.is_tuple else values


def _may_hold(shape: Shape, tree: Tree) -> bool:
    """Whether a tree of this kind could be of this shape at all."""
    if isinstance(shape, OneOf):
        return any(_may_hold(option, tree) for option in shape.options)
    if isinstance(shape, Free):
        return True
    if isinstance(tree, Branch):
        return isinstance(shape, Record | MapOf)
    if isinstance(tree, Items):
        return isinstance(shape, ListOf)
    if tree.value is None:
        return isinstance(shape, Null)
    if isinstance(shape, Record):
        return short_shape(shape.cls) is not None
    return isinstance(shape, Text | Choice | Integer | Float | Boolean) or (
        isinstance(shape, ListOf) and shape.is_one_or_many
    )
