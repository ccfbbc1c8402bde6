"""Short forms written out: a scalar for a whole dataclass, a key for a deeper path."""

from __future__ import annotations

from collections.abc import Callable

from windlass.config.document import Branch, Entry, Items, Leaf, Tree, data_of_tree, tree_of_data
from windlass.config.encode import to_data
from windlass.config.path import split_path
from windlass.config.shape import Boolean, Float, Integer, ListOf, OneOf, Shape, Text, key_shorthands, short_shape
from windlass.core.errors import Place, Problem

__all__ = ["long_form", "move_shorthand_keys"]


def long_form(tree: Tree, cls: type[object]) -> Branch | None:
    """The mapping that a short form stands for; None where the dataclass has no such short form.

    Raises:
        ValueError: with the accepted forms.
    """
    shape = short_shape(cls)
    if shape is None or not _is_exactly(tree, shape):
        return None
    from_shorthand: Callable[[object], object] = getattr(cls, "from_shorthand")  # noqa: B009 (a method by convention)
    data = to_data(from_shorthand(data_of_tree(tree)), is_long=True)
    placed = _placed(tree_of_data(data, ""), tree.place)
    return placed if isinstance(placed, Branch) else None


def _is_exactly(tree: Tree, shape: Shape) -> bool:
    """Whether the tree is of the kind of the shape, with no conversion."""
    if isinstance(shape, OneOf):
        return any(_is_exactly(tree, option) for option in shape.options)
    if isinstance(tree, Items):
        return isinstance(shape, ListOf)
    if isinstance(tree, Branch) or tree.value is None:
        return False
    kinds: dict[type[object], type[object]] = {str: Text, bool: Boolean, int: Integer, float: Float}
    return isinstance(shape, kinds[type(tree.value)])


def _placed(tree: Tree, place: Place) -> Tree:
    """The same tree with everything at one place."""
    if isinstance(tree, Leaf):
        return Leaf(tree.value, tree.text, place)
    if isinstance(tree, Items):
        return Items(tuple(_placed(item, place) for item in tree.items), place)
    return Branch(tuple(Entry(entry.key, place, _placed(entry.tree, place)) for entry in tree.entries), place)


def move_shorthand_keys(tree: Branch, cls: type[object]) -> tuple[Branch, list[Problem]]:
    """Move keys such as `run` to the path they stand for (`tasks.main.run`)."""
    problems = []
    for key, target in key_shorthands(cls).items():
        entry = tree.find(key)
        if entry is None:
            continue
        tree = tree.drop(key)
        first, *rest = split_path(target)
        if tree.find(first) is not None:
            hint = f"`{key}` is short for `{target}`; keep one of them"
            problems.append(Problem(f"both `{key}` and `{first}` are set", "settings-conflict", entry.place, hint))
            continue
        moved: Tree = entry.tree
        for part in reversed(rest):
            moved = Branch((Entry(part, entry.place, moved),), entry.place)
        tree = tree.put(first, moved, entry.place)
    return tree, problems
