"""Parsed and checked search space: its grid, its presets, and a configuration for each number.

Values of a configuration are computed on demand and may depend on any other value.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any

from windlass.tune.errors import RecursiveDependencyError, SpaceError
from windlass.tune.rng import draw_int
from windlass.tune.space.computed import Computed, ConfigView, ListView
from windlass.tune.space.domains import NUM_BITS
from windlass.tune.space.tree import ContainerNode, DomainNode, Fixed, Node, Path, Pick, copied, name_of, parse, walk
from windlass.tune.space.values import is_same

__all__ = ["Bits", "Draw", "Space", "check_same_names", "resolve"]

Bits = Callable[[str], int]
"""Function from a parameter's key to its 64 bits."""


class Space:
    """Search space parsed from a `param_space`. Immutable."""

    def __init__(self, param_space: Mapping[str, Any]) -> None:
        """Parse the space.

        Raises:
            SpaceError: part of it is invalid; the message names the parameter.
        """
        if not isinstance(param_space, Mapping):
            raise SpaceError(f"a search space is a mapping of names, not {param_space!r}")
        self.root = parse(param_space)

    @classmethod
    def _of(cls, root: Node) -> Space:
        made = cls.__new__(cls)
        made.root = root
        return made

    @cached_property
    def parameters(self) -> tuple[DomainNode | Pick, ...]:
        """All nodes that are sampled, chosen or computed, top down, including those below a single choice."""
        return tuple(walk(self.root, inside_picks=True))

    @cached_property
    def grid_axes(self) -> tuple[Pick, ...]:
        """Grids that every trial has, of which the first varies fastest."""
        axes = [node for node in walk(self.root) if isinstance(node, Pick) and node.is_grid]
        return tuple(sorted(axes, key=lambda axis: tuple(map(str, axis.path))))

    @cached_property
    def grid_size(self) -> int:
        """Number of trials in one sample: the product of the sizes of all grids, or 1 without grids."""
        return _size(self.root)

    @property
    def is_fixed(self) -> bool:
        """True if nothing is sampled, so that every trial would be the same."""
        return isinstance(self.root, Fixed)

    @cached_property
    def is_random(self) -> bool:
        """True if anything but grids is sampled."""
        return any(not (isinstance(node, Pick) and node.is_grid) for node in self.parameters)

    def grid_point(self, index: int) -> dict[str, int]:
        """Return the option of every grid at a point of their product, by key.

        Grids inside an option are enumerated too.
        """
        chosen: dict[str, int] = {}
        _place(self.root, index, chosen)
        return chosen

    def at(self, bits: Bits, grid_index: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the configuration, nested, and the sampled values by name.

        Args:
            bits: random bits of a parameter, by key.
            grid_index: point of the grid, below `grid_size`.

        Raises:
            SpaceError: a computed value failed, or such values depend on each other in a cycle.
        """
        grid = self.grid_point(grid_index)

        def draw(node: DomainNode | Pick) -> Any:
            if isinstance(node, Pick):
                return grid[node.key] if node.is_grid else (bits(node.key) * len(node.options)) >> NUM_BITS
            return bits(node.key) if isinstance(node.domain, Computed) else node.domain.at(bits(node.key))

        return self.resolve(draw)

    def draw(self, seed: int, *purpose: object, grid_index: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Sample a configuration that depends only on the seed and the purpose."""
        return self.at(lambda key: draw_int(seed, "space", *purpose, key), grid_index)

    def resolve(self, draw: Draw) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the configuration whose values are sampled or chosen by `draw`."""
        config, assigned = resolve(self.root, draw)
        return config, assigned

    def preset(self, point: Mapping[str, Any]) -> Space:
        """Return the space with the values of a point fixed.

        Raises:
            SpaceError: the space lacks a name of the point.
        """
        return Space._of(_fixed_at(self.root, point, ()))

    def locate(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the samples that produce a configuration, by key; for a pick, this is the index of its option.

        None if the space cannot give it: a value is out of bounds, or an option unknown.
        """
        found: dict[str, Any] = {}
        return found if _located(self.root, config, found) else None


def _size(node: Node) -> int:
    if isinstance(node, ContainerNode):
        return prod(_size(child) for child in node.children.values())
    if isinstance(node, Pick) and node.is_grid:
        return sum(_size(option) for option in node.options)
    return 1


def _place(node: Node, index: int, chosen: dict[str, int]) -> None:
    """Set the option of each grid below the node, at a point of the product of all grids."""
    axes = [below for below in walk(node) if isinstance(below, Pick) and below.is_grid]
    for axis in sorted(axes, key=lambda axis: tuple(map(str, axis.path))):
        index, local = divmod(index, _size(axis))
        for number, option in enumerate(axis.options):
            size = _size(option)
            if local < size:
                chosen[axis.key] = number
                _place(option, local, chosen)
                break
            local -= size


def _fixed_at(node: Node, value: Any, path: tuple[str | int, ...]) -> Node:
    if isinstance(value, Mapping) and isinstance(node, (ContainerNode, Pick)):
        for candidate in node.options if isinstance(node, Pick) else (node,):
            if isinstance(candidate, ContainerNode) and issubclass(candidate.kind, dict):
                if isinstance(node, Pick) and not _agrees(candidate, value):
                    continue
                return _fixed_in(candidate, value, path)
    if isinstance(node, Fixed) and isinstance(node.value, Mapping) and isinstance(value, Mapping):
        return Fixed({**node.value, **value})
    return parse(value, path)


def _fixed_in(branch: ContainerNode, point: Mapping[str, Any], path: tuple[str | int, ...]) -> ContainerNode:
    children = dict(branch.children)
    for name, value in point.items():
        if name not in children:
            near = difflib.get_close_matches(str(name), list(map(str, children)), 1)
            raise SpaceError(
                f"a point in points_to_evaluate has `{name_of((*path, name))}`, which the space does not have",
                hint=f"did you mean `{name_of((*path, near[0]))}`?" if near else "add it to param_space",
                code="searcher-option",
            )
        children[name] = _fixed_at(children[name], value, (*path, name))
    return ContainerNode(branch.kind, children)


def _agrees(option: ContainerNode, point: Mapping[str, Any]) -> bool:
    """Return whether an option of a choice fits a point, that is, has its names and equal fixed values."""
    return all(
        name in option.children and not (isinstance(child := option.children[name], Fixed) and child.value != value)
        for name, value in point.items()
    )


def _located(node: Node, value: Any, found: dict[str, Any]) -> bool:
    if isinstance(node, Fixed):
        return is_same(node.value, value)
    if isinstance(node, DomainNode):
        found[node.key] = value
        return node.domain.is_valid(value)
    if isinstance(node, Pick):
        for index, option in enumerate(node.options):
            below: dict[str, Any] = {}
            if _located(option, value, below):
                found.update({node.key: index, **below})
                return True
        return False
    return all(there and _located(child, below, found) for child, there, below in _pairs(node, value)) and len(
        value
    ) == len(node.children)


def _pairs(branch: ContainerNode, value: Any) -> Iterator[tuple[Node, bool, Any]]:
    wants_mapping = issubclass(branch.kind, dict)
    if isinstance(value, Mapping) is not wants_mapping or not hasattr(value, "__getitem__"):
        yield Fixed(None), False, None
        return
    for name, child in branch.children.items():
        there = name in value if wants_mapping else int(name) < len(value)
        yield child, there, value[name] if there else None


def check_same_names(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Check that a new space has the same names as the old one.

    Raises:
        SpaceError: a name was added or removed (`sweep-differs`).
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
                hint="the names of the space cannot change when a sweep continues; start a new sweep with points_to_evaluate",
                code="sweep-differs",
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


Draw = Callable[[DomainNode | Pick], Any]
"""Function to a domain's value, the option index of a pick, or the 64 bits of a computed value."""


def resolve(root: Node, draw: Draw) -> tuple[Any, dict[str, Any]]:
    """Return the configuration, and by name the values that were sampled or computed for it.

    Raises:
        RecursiveDependencyError: computed values depend on each other.
        SpaceError: a function failed.
    """
    made = _Making(draw)
    value = made.value(root, ())
    return value, made.assigned


class _Making:
    def __init__(self, draw: Draw) -> None:
        self.assigned: dict[str, Any] = {}
        self._draw = draw
        self._root: Node | None = None
        self._known: dict[str, Any] = {}
        self._open: list[str] = []

    def value(self, node: Node, path: Path) -> Any:
        """Return the value of a node, including its subtree."""
        if self._root is None:
            self._root = node
        if isinstance(node, Fixed):
            return copied(node.value)
        if isinstance(node, DomainNode):
            return copied(self._leaf(node))
        if isinstance(node, Pick):
            return self.value(self._option(node), path)
        values = {name: self.value(child, (*path, name)) for name, child in node.children.items()}
        if issubclass(node.kind, dict):
            return values
        return tuple(values.values()) if issubclass(node.kind, tuple) else list(values.values())

    def _look(self, node: Node, path: Path) -> Any:
        """Return a node as a function sees it, creating containers only as they are read."""
        if isinstance(node, Pick):
            return self._look(self._option(node), path)
        if isinstance(node, DomainNode):
            return _plain_view(self._leaf(node))
        if isinstance(node, Fixed):
            return _plain_view(node.value)
        children = node.children

        def look(name: str | int) -> Any:
            return self._look(children[name], (*path, name))

        if issubclass(node.kind, dict):
            return ConfigView(tuple(children), look, is_top=not path)
        return ListView(len(children), look)

    def _option(self, node: Pick) -> Node:
        if node.key not in self._known:
            index = self._draw(node)
            self._known[node.key] = index
            self.assigned[node.name] = node.labels[index]
        return node.options[int(self._known[node.key])]

    def _leaf(self, leaf: DomainNode) -> Any:
        if leaf.key not in self._known:
            value = self._draw(leaf)
            self._known[leaf.key] = self._compute(leaf, leaf.domain, value) if _is_computed(leaf) else value
            self.assigned[leaf.name] = self._known[leaf.key]
        return self._known[leaf.key]

    def _compute(self, leaf: DomainNode, domain: Any, bits: int) -> Any:
        if leaf.name in self._open:
            circle = " -> ".join([*self._open[self._open.index(leaf.name) :], leaf.name])
            raise RecursiveDependencyError(
                f"values depend on each other in a cycle: {circle}", hint="draw one of them independently"
            )
        assert self._root is not None
        self._open.append(leaf.name)
        try:
            value = domain.compute(self._look(self._root, ()), bits)
        except SpaceError:
            raise
        except Exception as error:
            raise SpaceError(
                f"`{leaf.name}`: {domain} failed: {type(error).__name__}: {error}",
                hint="the function is called with the configuration",
                code="user-code-failed",
            ) from error
        finally:
            self._open.pop()
        return value


def _is_computed(leaf: DomainNode) -> bool:
    return isinstance(leaf.domain, Computed)


def _plain_view(value: Any) -> Any:
    """Return a finished value as a function sees it; mappings can also be read by attributes."""
    if isinstance(value, dict):
        return ConfigView(tuple(value), lambda name: _plain_view(value[name]))
    return value
