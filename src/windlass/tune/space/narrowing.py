"""Whether a search space lies within another: what a sweep that goes on may be given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.tune.space.domains import Categorical, Domain, Float, Integer, Normal
from windlass.tune.space.errors import SpaceError
from windlass.tune.space.space import Space
from windlass.tune.space.tree import Branch, Fixed, Leaf, Node, Pick

__all__ = ["check_narrower", "check_same_names"]


def check_narrower(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse a space that could give what another one could not.

    Raises:
        SpaceError: a parameter is new, gone, or wider than it was; names it.
    """
    _check(Space(old).root, Space(new).root, "")


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
    if isinstance(node, Branch):
        return issubclass(node.kind, dict)
    return isinstance(node, Fixed) and isinstance(node.value, Mapping)


def _check(old: Node, new: Node, place: str) -> None:
    if isinstance(old, Fixed) and isinstance(old.value, Mapping) and not isinstance(new, Fixed):
        raise _wider(place, "nothing in it was drawn")
    if isinstance(old, Branch):
        values = _children(new)
        for name in {**old.children, **values}:
            inner = f"{place}/{name}" if place else str(name)
            if name not in values:
                raise _wider(inner, "it is gone")
            if name not in old.children:
                raise _wider(inner, "it is new")
            _check(old.children[name], values[name], inner)
    elif isinstance(old, Pick):
        for option in new.options if isinstance(new, Pick) else (new,):
            if not any(_fits(mine, option) for mine in old.options):
                raise _wider(place, "it has another option")
    elif not _is_within(old, new):
        raise _wider(place, f"it was {old.domain if isinstance(old, Leaf) else old.value}")


def _children(node: Node) -> dict[str | int, Node]:
    if isinstance(node, Branch):
        return node.children
    value = node.value if isinstance(node, Fixed) else {}
    if isinstance(value, Mapping):
        return {name: Fixed(below) for name, below in value.items()}
    return {index: Fixed(below) for index, below in enumerate(value)} if isinstance(value, (list, tuple)) else {}


def _fits(old: Node, new: Node) -> bool:
    try:
        _check(old, new, "")
    except SpaceError:
        return False
    return True


def _is_within(old: Node, new: Node) -> bool:
    if isinstance(old, Fixed):
        return isinstance(new, Fixed) and bool(old.value == new.value)
    if not isinstance(old, Leaf):
        return False
    if isinstance(new, Fixed):
        return old.domain.is_valid(new.value)
    if isinstance(new, Pick):
        return all(isinstance(option, Fixed) and old.domain.is_valid(option.value) for option in new.options)
    return isinstance(new, Leaf) and _is_domain_within(old.domain, new.domain)


def _is_domain_within(old: Domain, new: Domain) -> bool:
    if isinstance(old, Categorical):
        return isinstance(new, Categorical) and all(map(old.is_valid, new.categories))
    if isinstance(old, Float) and isinstance(new, (Float, Integer)):
        return old.lower <= new.lower and new.upper <= old.upper
    if isinstance(old, Integer) and isinstance(new, Integer):
        least, most = new.first * new.step, new.last * new.step
        return old.first * old.step <= least and most <= old.last * old.step and new.step % old.step == 0
    if isinstance(old, Normal):
        return isinstance(new, (Normal, Float))
    return old == new


def _wider(place: str, how: str) -> SpaceError:
    return SpaceError(
        f"`{place}` of the new space is not within the old one: {how}",
        hint="a sweep that goes on may search less, not more; begin another one, with points_to_evaluate",
        code="space-wider",
    )
