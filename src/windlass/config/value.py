"""A value that was made in Python, with overrides: checked like a file, each field with its origin."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TypeVar, cast

from windlass.config.decode import Decoder
from windlass.config.document import Branch, Entry, Items, Leaf, Tree, tree_of_data
from windlass.config.encode import to_data
from windlass.config.load import Loaded, raise_any
from windlass.config.override import apply_overrides
from windlass.config.union import DEFAULT
from windlass.core.errors import Place, Problem, SpecError

__all__ = ["with_overrides"]

T = TypeVar("T")


def with_overrides(
    value: T, overrides: Sequence[str] = (), *, source: str, yielding: Container[str] = (DEFAULT,)
) -> Loaded[T]:
    """The value with overrides applied, checked whole: types, ranges, and what its `check` methods find.

    Args:
        source: what made the value, for messages; the origin of every field that is not its default.
        yielding: sources whose values go where an override selects another `kind` that has no such field.

    Returns:
        Origins by dotted path: `source`, "default" or "command line" in each place's `source`.

    Raises:
        SpecError: with every problem of the value and the overrides.
    """
    try:
        full = tree_of_data(to_data(value, keep_defaults=True), source)
        written = tree_of_data(to_data(value), source)
    except (TypeError, ValueError) as error:
        raise SpecError([Problem(str(error), "wrong-type", Place(source), "")]) from error
    tree = _marked(full, written)
    assert isinstance(tree, Branch)  # data of a dataclass is a mapping
    changed, problems = apply_overrides(tree, type(value), overrides, yielding=yielding)
    decoder = Decoder(type(value))
    decoded = decoder.decode(changed)
    raise_any([*problems, *decoder.problems])
    return Loaded(cast(T, decoded), decoder.origins)


def _marked(tree: Tree, written: Tree | None) -> Tree:
    """The tree in which what nobody wrote has the source "default"."""
    place = tree.place if written is not None else Place(DEFAULT, excerpt=tree.place.excerpt)
    if isinstance(tree, Leaf):
        return Leaf(tree.value, tree.text, place)
    if isinstance(tree, Items):
        inner = written.items if isinstance(written, Items) else ()
        return Items(
            tuple(_marked(item, inner[at] if at < len(inner) else None) for at, item in enumerate(tree.items)), place
        )
    return Branch(tuple(_marked_entry(entry, written) for entry in tree.entries), place)


def _marked_entry(entry: Entry, written: Tree | None) -> Entry:
    found = written.find(entry.key) if isinstance(written, Branch) else None
    tree = _marked(entry.tree, None if found is None else found.tree)
    return Entry(entry.key, tree.place, tree)
