"""Tree of a search space: fixed, sampled and computed values, and choices with their subtrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from windlass.tune.errors import SpaceError
from windlass.tune.space.computed import Computed
from windlass.tune.space.domains import Categorical, Domain

__all__ = ["ContainerNode", "DomainNode", "Fixed", "Node", "Path", "Pick", "copied", "name_of", "parse", "walk"]

Path = tuple[str | int, ...]
"""Keys and list indexes from the top to a value."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Value that is the same in every trial."""

    value: Any


@dataclass(frozen=True, slots=True)
class DomainNode:
    """Value that is sampled or computed independently.

    Attributes:
        name: `model/lr`, for users; several options of a choice may have the same name.
        key: unique: `model=1/lr` below option 1 of `model`.
    """

    name: str
    key: str
    domain: Domain


@dataclass(frozen=True, slots=True)
class Pick:
    """Choice among values of which at least one is itself a space, or a grid of values.

    Attributes:
        labels: value in `assigned` for each option: the value itself, or words for one that holds a space.
    """

    name: str
    key: str
    path: Path
    options: tuple[Node, ...]
    labels: tuple[Any, ...]
    is_grid: bool


@dataclass(frozen=True, slots=True)
class ContainerNode:
    """Mapping, list or tuple that contains sampled values, with its children by key or index."""

    kind: type
    children: dict[str | int, Node]


Node = Fixed | DomainNode | Pick | ContainerNode


def name_of(path: Path) -> str:
    """Return the name of a path, such as `model/layers/0`."""
    return "/".join(map(str, path))


def parse(value: Any, path: Path = (), key: str = "") -> Node:
    """Parse a value that may contain domains, grids and computed values at any depth.

    Raises:
        SpaceError: part of it is invalid; the message names the parameter.
    """
    key = key or name_of(path)
    found = _special(value, path)
    if isinstance(found, Categorical):
        return _pick(found, path, key)
    if found is not None:
        return DomainNode(name_of(path), key, found)
    if isinstance(value, Mapping):
        children = {name: parse(below, (*path, name), _below(key, name)) for name, below in value.items()}
    elif isinstance(value, (list, tuple)):
        children = {index: parse(below, (*path, index), _below(key, index)) for index, below in enumerate(value)}
    else:
        return Fixed(value)
    if all(isinstance(child, Fixed) for child in children.values()):
        return Fixed(value)
    return ContainerNode(type(value), children)


def walk(node: Node, *, inside_picks: bool = False) -> Iterator[DomainNode | Pick]:
    """Yield all domains and picks, top down.

    Those within options of picks are included only with `inside_picks`.
    """
    if isinstance(node, ContainerNode):
        for child in node.children.values():
            yield from walk(child, inside_picks=inside_picks)
    elif not isinstance(node, Fixed):
        yield node
        if isinstance(node, Pick) and inside_picks:
            for option in node.options:
                yield from walk(option, inside_picks=True)


def copied(value: Any) -> Any:
    """Return the value with its containers copied, so that a trial may change them; other objects are shared."""
    if isinstance(value, dict):
        return {name: copied(below) for name, below in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(below) for below in value)
    return value


def _special(value: Any, path: Path) -> Domain | None:
    """Return the domain that a value stands for, if any; Ray Tune's plain mappings are recognized too."""
    if isinstance(value, Domain):
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        if "grid_search" in value:
            values = value["grid_search"]
            if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
                raise SpaceError(f"`{name_of(path)}`: a grid needs a list of values, not {values!r}")
            try:
                return Categorical(values, is_grid=True)
            except SpaceError as error:
                raise error.at(name_of(path)) from None
        if "eval" in value and isinstance(value["eval"], str):
            return Computed(value["eval"])
    return None


def _pick(domain: Categorical, path: Path, key: str) -> Node:
    options = tuple(parse(value, path, f"{key}={index}") for index, value in enumerate(domain.categories))
    if not domain.is_grid:
        if all(isinstance(option, Fixed) for option in options):
            return DomainNode(name_of(path), key, domain)
        for option in options:
            if any(isinstance(below, Pick) and below.is_grid for below in walk(option, inside_picks=True)):
                raise SpaceError(
                    f"`{name_of(path)}`: a grid within a choice, so the number of trials would depend on the draw",
                    hint="make the outer one a grid too, or the inner one a choice",
                    code="invalid-space",
                )
    has_space = not all(isinstance(option, Fixed) for option in options)
    labels = tuple(
        _label(option, index) if has_space else domain.categories[index] for index, option in enumerate(options)
    )
    return Pick(name_of(path), key, path, options, labels, domain.is_grid)


def _label(option: Node, index: int) -> Any:
    if isinstance(option, Fixed) and not isinstance(option.value, Mapping):
        return option.value
    if isinstance(option, Fixed):
        words = [f"{name}={value}" for name, value in option.value.items()]
    elif isinstance(option, ContainerNode):
        words = [f"{name}={child.value}" for name, child in option.children.items() if isinstance(child, Fixed)]
    else:
        words = []
    return ",".join(words) or f"option {index}"


def _below(key: str, name: str | int) -> str:
    return f"{key}/{name}" if key else str(cast("object", name))
