"""Resolution of a tree to a configuration.

Values are computed on demand and may depend on any other value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass.tune.space.computed import Computed, ConfigView, ListView
from windlass.tune.space.errors import RecursiveDependencyError, SpaceError
from windlass.tune.space.tree import DomainNode, Fixed, Node, Path, Pick, copied

__all__ = ["Draw", "resolve"]

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
