"""Words and values that Beaker's own client takes for text, since it reads YAML 1.1: `1e-4` is no number there."""

from __future__ import annotations

import re
from collections.abc import Callable

from windlass.config.document import Branch, Entry, Items, Leaf, Tree

__all__ = ["as_client_reads"]

# Source: YAML 1.1, the types `int` and `float`, as PyYAML has them; decimal forms alone.
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*|[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?|\.[0-9]+(?:[eE][-+][0-9]+)?|\.inf)\Z")


def as_client_reads(spec: Tree) -> Tree:
    """The same spec, in whose commands and variables a number that only YAML 1.2 knows is the text that was written."""
    return _at(spec, ("tasks", "*"), _task)


def _task(tree: Tree) -> Tree:
    for path in (("command", "*"), ("arguments", "*"), ("envVars", "*", "value")):
        tree = _at(tree, path, _word)
    return tree


def _word(tree: Tree) -> Tree:
    is_number = isinstance(tree, Leaf) and isinstance(tree.value, int | float) and not isinstance(tree.value, bool)
    if isinstance(tree, Leaf) and is_number and not _NUMBER.match(tree.text):
        return Leaf(tree.text, tree.text, tree.place)
    return tree


def _at(tree: Tree, path: tuple[str, ...], change: Callable[[Tree], Tree]) -> Tree:
    """The tree with what stands at a path changed; `*` is every item of a list."""
    if not path:
        return change(tree)
    if path[0] == "*":
        return (
            Items(tuple(_at(item, path[1:], change) for item in tree.items), tree.place)
            if isinstance(tree, Items)
            else tree
        )
    if not isinstance(tree, Branch):
        return tree
    entries = (
        Entry(entry.key, entry.place, _at(entry.tree, path[1:], change)) if entry.key == path[0] else entry
        for entry in tree.entries
    )
    return Branch(tuple(entries), tree.place)
