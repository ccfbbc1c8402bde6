"""Overrides such as `tasks.train.nodes=2`, applied to the document before it is decoded.

Grammar: `PATH=VALUE`, `--PATH=VALUE`, `--PATH` (true), `~PATH` (remove). A path is keys and list positions joined by
dots; a key with a dot is quoted. A value is YAML when it begins with a quote, `[` or `{`; else the whole rest is one
plain scalar, so that `why=faster: yes #2` keeps every character.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import replace

from windlass.config.document import Branch, Items, Leaf, Tree, data_of_tree, has_surrogate, kind_of, printable
from windlass.config.path import join_path, split_path
from windlass.config.phrases import accepted
from windlass.config.shape import Field, Free, ListOf, MapOf, OneOf, Record, Shape, fields_of, key_shorthands, tag_of
from windlass.config.shorthand import long_form, move_shorthand_keys
from windlass.config.union import DEFAULT, assume_kind, take_kind
from windlass.config.yaml_reader.scalars import resolve_scalar
from windlass.config.yaml_reader.text import compose
from windlass.core.dataclass import dataclass
from windlass.core.errors import Place, Problem, SpecError
from windlass.core.names import nearest

__all__ = ["COMMAND_LINE", "apply_overrides", "parse_override"]

COMMAND_LINE = "command line"
_HEAD = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^=\"'])*", re.DOTALL)
_FORMS = "write `a.b=VALUE`, `--a.b=VALUE`, `--a.b` (true) or `~a.b` (remove)"
_Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Override:
    """One override, read; `tree` is None when it removes. `yielding`: sources whose values a new `kind` may drop."""

    parts: _Parts
    tree: Tree | None
    place: Place
    yielding: Container[str] = (DEFAULT,)


class _Refused(Exception):
    """An override that cannot be applied; holds its problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def parse_override(text: str) -> tuple[str, object]:
    """The path and the plain value of an override; the value of a removal is None.

    Raises:
        SpecError: it has no legal form.
    """
    try:
        override = _read(text)
    except _Refused as refused:
        raise SpecError([refused.problem]) from None
    return join_path(override.parts), None if override.tree is None else data_of_tree(override.tree)


def apply_overrides(
    tree: Branch, schema: type[object], overrides: Sequence[str], *, yielding: Container[str] = (DEFAULT,)
) -> tuple[Branch, list[Problem]]:
    """The document with all overrides applied in order, and the problems of those that could not be.

    Args:
        yielding: sources whose values go where an override selects another `kind` that has no such field.
    """
    problems: list[Problem] = []
    for text in overrides:
        try:
            override = replace(_read(text), yielding=yielding)
            changed = _change(tree, Record(schema), override, 0)
        except _Refused as refused:
            problems.append(refused.problem)
            continue
        # The root is a mapping, and stays one.
        tree = changed if isinstance(changed, Branch) else tree
    return tree, problems


def _read(text: str) -> _Override:
    place = Place(COMMAND_LINE, excerpt=printable(text))
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
    return _Override(parts, _value(rest[1:].strip(), place) if rest else Leaf(True, "true", place), place)


def _refused(message: str, place: Place, hint: str) -> _Refused:
    return _Refused(Problem(message, "bad-override", place, hint))


def _value(text: str, place: Place) -> Tree:
    if text[:1] not in ("[", "{", '"', "'"):
        try:
            return Leaf(resolve_scalar(text), text, place)
        except ValueError as error:
            raise _Refused(Problem(str(error), "out-of-range", place, "quote it if it is meant as text")) from None
    tree, problems = compose(text, source=COMMAND_LINE, place=place)
    if problems or tree is None:
        first = problems[0].message if problems else "no value"
        raise _refused(f"the value `{text}` is not YAML: {first}", place, "put the whole value in quotes if it is text")
    return tree


def _change(tree: Tree | None, shape: Shape, override: _Override, depth: int) -> Tree | None:
    """The tree with the override applied below it; None removes it."""
    if depth == len(override.parts):
        return override.tree
    if tree is None or (isinstance(tree, Leaf) and tree.value is None):
        if override.tree is None:
            raise _nothing_to_remove(override, tree, depth)
        tree = _empty(shape, override)
    if isinstance(tree, Branch) and isinstance(override.tree, Leaf) and override.parts[depth:] == ("kind",):
        tree = take_kind(tree, override.tree.value, shape, override.yielding)
    opened, shape = _open(tree, shape, override, depth)
    if isinstance(opened, Items):
        return _change_item(opened, shape, override, depth)
    return _change_entry(opened, shape, override, depth)


def _nothing_to_remove(override: _Override, tree: Tree | None, depth: int) -> _Refused:
    path = join_path(override.parts)
    keys = [entry.key for entry in tree.entries] if isinstance(tree, Branch) else []
    close = nearest(override.parts[depth], keys)
    hint = f"did you mean `~{join_path((*override.parts[:depth], close))}`?" if close else "leave the override out"
    return _refused(f"`{path}` is not set, so it cannot be removed", override.place, hint)


def _empty(shape: Shape, override: _Override) -> Tree:
    """What to start from where the file has nothing."""
    options = _options(shape)
    if any(isinstance(option, ListOf) for option in options) and not any(
        isinstance(o, Record | MapOf) for o in options
    ):
        return Items((), override.place)
    return Branch((), override.place)


def _options(shape: Shape) -> list[Shape]:
    return [inner for option in shape.options for inner in _options(option)] if isinstance(shape, OneOf) else [shape]


def _open(tree: Tree, shape: Shape, override: _Override, depth: int) -> tuple[Branch | Items, Shape]:
    """The collection to change, short forms written out, and the one shape that fits it."""
    options = _options(shape)
    for option in options:
        if isinstance(option, Record) and not isinstance(tree, Branch):
            try:
                long = long_form(tree, option.cls)
            except ValueError:
                long = None
            if long is not None:
                return long, option
        if isinstance(option, ListOf) and option.is_one_or_many and not isinstance(tree, Items):
            return Items((tree,), tree.place), option
    if isinstance(tree, Leaf):
        path = join_path(override.parts[:depth])
        message = f"`{join_path(override.parts)}` cannot be set: `{path}` is {kind_of(tree)}"
        raise _refused(message, override.place, f"`{path}` takes {accepted(shape)}: write `{path}=VALUE`")
    kinds = (Record, MapOf, Free) if isinstance(tree, Branch) else (ListOf, Free)
    fitting = [option for option in options if isinstance(option, kinds)]
    return tree, _tagged(tree, fitting) if fitting else Free()


def _tagged(tree: Branch | Items, options: Sequence[Shape]) -> Shape:
    """Of several dataclasses the one that `kind` selects; the first without a match."""
    kind = tree.find("kind") if isinstance(tree, Branch) else None
    value = kind.tree.value if kind is not None and isinstance(kind.tree, Leaf) else None
    for option in options:
        if isinstance(option, Record) and value is not None and value in tag_of(option.cls):
            return option
    return options[0]


def _change_item(tree: Items, shape: Shape, override: _Override, depth: int) -> Items:
    part = override.parts[depth]
    path = join_path(override.parts[:depth]) or "the file"
    count = len(tree.items)
    legal = (
        f"positions 0 to {count}"
        if override.tree is not None
        else f"positions 0 to {count - 1}"
        if count
        else "no items"
    )
    if re.fullmatch("[0-9]{1,6}", part) is None or int(part) > count:
        raise _refused(f"`{part}` is no position in `{path}`", override.place, f"`{path}` has {legal}")
    index = int(part)
    if index == count and override.tree is None:
        raise _nothing_to_remove(override, tree, depth)
    old = tree.items[index] if index < count else None
    new = _change(old, shape.item if isinstance(shape, ListOf) else Free(), override, depth + 1)
    items = [*tree.items[:index], *([] if new is None else [new]), *tree.items[index + 1 :]]
    return Items(tuple(items), tree.place)


def _change_entry(tree: Branch, shape: Shape, override: _Override, depth: int) -> Branch:
    if isinstance(shape, Record):
        tree, override = _without_shorthand_keys(tree, shape.cls, override, depth)
    part = override.parts[depth]
    entry = tree.find(part)
    if entry is None and override.tree is None:
        raise _nothing_to_remove(override, tree, depth)
    # A key that the dataclass does not have is set all the same: the decoder refuses it together with all others.
    inner = _inner_shape(shape, part)
    is_whole = depth + 1 == len(override.parts)
    held = None if entry is None else entry.tree
    new = _change(held if is_whole else _assumed(held, shape, part, override), inner, override, depth + 1)
    if new is None:
        return tree.drop(part)
    for other in _alternatives(tree, shape, part):
        tree = tree.drop(other)
    return tree.put(part, new, override.place if entry is None or is_whole else entry.place)


def _alternatives(tree: Branch, shape: Shape, part: str) -> list[str]:
    """Keys of the file that an override replaces because only one of them may be set, such as `env.uv` by `env.image`.

    A dataclass lists such keys in `ALTERNATIVES`. Two overrides do not replace each other: the dataclass refuses them.
    """
    keys = getattr(shape.cls, "ALTERNATIVES", ()) if isinstance(shape, Record) else ()
    others = [entry for key in keys if part in keys and key != part and (entry := tree.find(key)) is not None]
    return [entry.key for entry in others if entry.place.source != COMMAND_LINE]


def _assumed(held: Tree | None, shape: Shape, part: str, override: _Override) -> Tree | None:
    """What an override changes the inside of, with the `kind` that goes without saying."""
    is_nothing = held is None or (isinstance(held, Leaf) and held.value is None)
    if is_nothing and override.tree is None:
        return held
    tree = Branch((), override.place) if held is None or is_nothing else held
    field = fields_of(shape.cls).get(part) if isinstance(shape, Record) else None
    default = field.default() if field is not None and not field.is_required else None
    assumed = assume_kind(tree, _inner_shape(shape, part), default=default, name=part if field is None else "")
    return held if assumed is tree else assumed


def _inner_shape(shape: Shape, part: str) -> Shape:
    if isinstance(shape, Record):
        field: Field | None = fields_of(shape.cls).get(part)
        return field.shape if field is not None else Free()
    return shape.item if isinstance(shape, MapOf) else Free()


def _without_shorthand_keys(
    tree: Branch, cls: type[object], override: _Override, depth: int
) -> tuple[Branch, _Override]:
    """Both the document and the path with keys such as `run` moved to what they stand for."""
    target = key_shorthands(cls).get(override.parts[depth])
    moved, conflicts = move_shorthand_keys(tree, cls)
    # A conflict stays in the document for the decoder to report with everything else.
    tree = tree if conflicts else moved
    if target is None:
        return tree, override
    long = split_path(target)
    holder = tree.find(long[0])
    if (
        holder is not None
        and isinstance(holder.tree, Branch)
        and holder.tree.entries
        and holder.tree.find(long[1]) is None
    ):
        names = ", ".join(f"`{long[0]}.{entry.key}`" for entry in holder.tree.entries)
        key = override.parts[depth]
        raise _refused(
            f"`{key}` cannot be set: the file has {names}", override.place, f"`{key}` is short for `{target}`"
        )
    parts = (*override.parts[:depth], *long, *override.parts[depth + 1 :])
    return tree, _Override(parts, override.tree, override.place)
