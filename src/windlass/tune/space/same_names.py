"""Whether two search spaces have the same names: what a sweep that goes on must keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.tune.space.errors import SpaceError
from windlass.tune.space.space import Space
from windlass.tune.space.tree import ContainerNode, Fixed, Node

__all__ = ["check_same_names"]


def check_same_names(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse a space that has other names than another one.

    Raises:
        SpaceError: a name is new or gone (`space-names`); names it.
    """
    _check_names(Space(old).root, Space(new).root, "")


def _check_names(old: Node, new: Node, place: str) -> None:
    if not (_is_mapping(old) and _is_mapping(new)):
        return
    before, now = _children(old), _children(new)
    for name in {**before, **now}:
        inner = f"{place}/{name}" if place else str(name)
        if name not in before or name not in now:
            raise SpaceError(
                f"`{inner}` of the {'new' if name in now else 'old'} space is not in the "
                f"{'old' if name in now else 'new'} one",
                hint="a sweep that goes on keeps its names; begin another one, with points_to_evaluate",
                code="space-names",
            )
        _check_names(before[name], now[name], inner)


def _is_mapping(node: Node) -> bool:
    if isinstance(node, ContainerNode):
        return issubclass(node.kind, dict)
    return isinstance(node, Fixed) and isinstance(node.value, Mapping)


def _children(node: Node) -> dict[str | int, Node]:
    if isinstance(node, ContainerNode):
        return node.children
    value = node.value if isinstance(node, Fixed) else {}
    if isinstance(value, Mapping):
        return {name: Fixed(below) for name, below in value.items()}
    return {index: Fixed(below) for index, below in enumerate(value)} if isinstance(value, (list, tuple)) else {}
