"""Which file of a package imports which, the circles in that, and files that only one neighbour needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["Graph", "circles", "import_graph", "single_importers"]

Graph = Mapping[Path, frozenset[Path]]
"""File -> files that it imports."""


def import_graph(trees: Mapping[Path, ast.Module], *, inner: bool) -> Graph:
    """The imports between the files.

    A name that a package's `__init__` hands on counts as an import of that `__init__`; that importing a module also
    imports the packages above it does not count.

    Args:
        trees: files by path from the folder that holds the package.
        inner: also imports in functions and those under TYPE_CHECKING.
    """
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in trees}
    graph = {}
    for path, tree in trees.items():
        names = (name for statement in _statements(tree, inner) for name in _names(statement, modules))
        graph[path] = frozenset(modules[name] for name in names) - {path}
    return graph


def _statements(tree: ast.AST, inner: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif inner or not _is_inner(node):
            yield from _statements(node, inner)


def _is_inner(node: ast.AST) -> bool:
    """Return whether imports below the node do not run when the file is imported."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _names(statement: ast.Import | ast.ImportFrom, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules of the package that a statement names: `from a import b` is `a.b` where that is a module, else `a`."""
    for alias in statement.names:
        if isinstance(statement, ast.Import):
            name = alias.name
        else:
            outer = statement.module or ""
            name = f"{outer}.{alias.name}" if f"{outer}.{alias.name}" in modules else outer
        if name in modules:
            yield name


def circles(graph: Graph) -> list[frozenset[Path]]:
    """Strongly connected components of more than one file, the largest first.

    Source: Tarjan 1972, "Depth-first search and linear graph algorithms"; here without recursion.
    """
    order: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    found = []
    for root in graph:
        work = [(root, iter(sorted(graph[root])))] if root not in order else []
        while work:
            node, following = work[-1]
            if node not in order:
                order[node] = low[node] = len(order)
                stack.append(node)
            child = next((each for each in following if each not in order or each in stack), None)
            if child is not None and child not in order:
                work.append((child, iter(sorted(graph[child]))))
                continue
            if child is not None:
                low[node] = min(low[node], order[child])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == order[node]:
                place = stack.index(node)
                found.append(frozenset(stack[place:]))
                del stack[place:]
    return sorted((ring for ring in found if len(ring) > 1), key=lambda ring: (-len(ring), sorted(ring)))


def single_importers(graph: Graph) -> dict[Path, Path]:
    """File -> its only importer, where that is in the same folder; a package's `__init__` counts as an importer."""
    importers: dict[Path, list[Path]] = {}
    for path, targets in graph.items():
        for target in targets:
            importers.setdefault(target, []).append(path)
    return {
        path: by[0]
        for path, by in importers.items()
        if len(by) == 1 and by[0].parent == path.parent and path.name != "__init__.py"
    }
