"""Unions by `kind`: which dataclass a mapping is meant to be where `kind` is not written, and what a new kind leaves over."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from windlass.config.document import Branch, Entry, Leaf, Tree
from windlass.config.shape import OneOf, Record, Shape, fields_of, tag_of
from windlass.core.errors import Place

__all__ = ["DEFAULT", "assume_kind", "bare_kind", "kinds_with", "take_kind"]

DEFAULT: Final = "default"
"""Source of the places of values that nobody wrote."""


def _options(shape: Shape) -> list[type[object]]:
    """The dataclasses of a union by kind; none for any other shape."""
    if isinstance(shape, OneOf):
        return [cls for option in shape.options for cls in _options(option)]
    return [shape.cls] if isinstance(shape, Record) else []


def assume_kind(tree: Tree, shape: Shape, *, default: object = None, name: str = "") -> Tree:
    """A mapping with the `kind` that goes without saying; anything else as it is.

    It is the kind of the field's default, unless a key is of another kind alone; in a mapping of names, a name that is
    itself a kind; else that of a dataclass that says so (`IS_ASSUMED`), unless a key is of another kind alone.
    """
    options = _options(shape)
    if not isinstance(tree, Branch) or len(options) < 2 or tree.find("kind") is not None:
        return tree
    kind: object = next((name for cls in options if name in tag_of(cls)), None)
    if type(default) in options and not _is_of_another(tree, type(default), options):
        kind = getattr(default, "kind", None)
    if kind is None:
        assumed = [cls for cls in options if getattr(cls, "IS_ASSUMED", False)]
        kind = next((tag_of(cls)[0] for cls in assumed if not _is_of_another(tree, cls, options)), None)
    if not isinstance(kind, str):
        return tree
    place = Place(DEFAULT, excerpt=f"kind = {kind!r}")
    return Branch((Entry("kind", place, Leaf(kind, kind, place)), *tree.entries), tree.place)


def bare_kind(tree: Tree, shape: Shape, *, name: str) -> Tree:
    """A mapping with the `kind` whose dataclass names these very keys and values as its `BARE`; anything else as it is.

    A `name` that is itself a kind stays that kind where it needs no other key.
    """
    if not isinstance(tree, Branch):
        return tree
    written = {entry.key: entry.tree for entry in tree.entries if not _is_assumed(entry)}
    values = {key: inner.value if isinstance(inner, Leaf) else inner for key, inner in written.items()}
    for cls in _options(shape):
        if values and values == getattr(cls, "BARE", None) and not _is_complete(name, _options(shape)):
            kind = str(tag_of(cls)[0])
            place = Place(DEFAULT, excerpt=f"kind = {kind!r}")
            rest = tuple(entry for entry in tree.entries if entry.key != "kind")
            return Branch((Entry("kind", place, Leaf(kind, kind, place)), *rest), tree.place)
    return tree


def _is_assumed(entry: Entry) -> bool:
    return entry.key == "kind" and entry.place.source == DEFAULT


def _is_complete(name: str, options: Sequence[type[object]]) -> bool:
    """Whether the name is a kind that has a default for every field."""
    named = [cls for cls in options if name in tag_of(cls)]
    return bool(named) and not any(field.is_required for field in fields_of(named[0]).values())


def _is_of_another(tree: Branch, cls: type[object], options: Sequence[type[object]]) -> bool:
    """Whether a key is a field of another of the dataclasses, and none of this one."""
    foreign = [entry.key for entry in tree.entries if entry.key not in fields_of(cls)]
    return any(key in fields_of(option) for key in foreign for option in options)


def take_kind(tree: Branch, kind: object, shape: Shape, yielding: Container[str]) -> Branch:
    """The mapping as the new kind begins: without defaults of the old one, and without fields that only that had.

    Args:
        yielding: sources whose values give way; what another source wrote stays, for the decoder to refuse.
    """
    target = next((cls for cls in _options(shape) if kind in tag_of(cls)), None)
    old = tree.find("kind")
    if target is None or (old is not None and isinstance(old.tree, Leaf) and old.tree.value in tag_of(target)):
        return tree
    fields = fields_of(target)
    kept = tuple(
        entry
        for entry in tree.entries
        if entry.key == "kind"
        or not (entry.place.source == DEFAULT or (entry.place.source in yielding and entry.key not in fields))
    )
    return Branch(kept, tree.place)


def kinds_with(key: str, options: Sequence[Record]) -> list[str]:
    """The kinds whose dataclass has this field."""
    return [str(kind) for option in options if key in fields_of(option.cls) for kind in tag_of(option.cls)]
