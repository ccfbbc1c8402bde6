"""Code for Ray's autoscaler on the head: the modules of windlass that it needs, as one zip file for PYTHONPATH."""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import windlass

__all__ = ["scaling_code", "scaling_modules"]

_FIRST = (
    "windlass",
    "windlass.cluster.scaling.monitor",
    "windlass.cluster.scaling.node_provider",
    "windlass.cluster.providers.{kind}.provider",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


def scaling_code(kind: str = "") -> bytes:
    """Return the zip file; the same code is the same bytes.

    Args:
        kind: the place; empty: all that are rented.
    """
    content = io.BytesIO()
    root = Path(windlass.__file__).parent.parent
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        files = set(scaling_modules(kind))
        files |= {path for module in files for path in module.parent.glob("*.json") if "cluster" in path.parts}
        for path in sorted(files):
            info = zipfile.ZipInfo(str(path.relative_to(root)), _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())
    return content.getvalue()


def scaling_modules(kind: str = "") -> list[Path]:
    """Return the files that the autoscaler imports, those that are imported inside functions included."""
    root = Path(windlass.__file__).parent.parent
    kinds = [kind] if kind else ["aws", "virtual"]
    left = [name.format(kind=each) for each in kinds for name in _FIRST]
    found: dict[str, Path] = {}
    while left:
        name = left.pop()
        path = _file_of(root, name)
        if name in found or path is None:
            continue
        found[name] = path
        parents = name.split(".")
        left += [".".join(parents[:number]) for number in range(1, len(parents))]
        left += [each for each in _imports(path) if _is_needed(each, kinds)]
    return sorted(found.values())


def _is_needed(name: str, kinds: list[str]) -> bool:
    parts = name.split(".")
    if parts[:3] == ["windlass", "cluster", "providers"] and len(parts) > 3:
        return parts[3] in {*kinds, "protocol"} or parts[4:5] == ["settings"]
    return parts[0] == "windlass"


def _file_of(root: Path, name: str) -> Path | None:
    path = root.joinpath(*name.split("."))
    for each in (path / "__init__.py", path.with_suffix(".py")):
        if each.is_file():
            return each
    return None


def _imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file may import, and names in them, which may be modules too."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
