"""The public surface of windlass: every name in the `__all__` of a package.

python -m scripts.public_surface --write     after a change that is meant
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from scripts.tree import ROOT

SOURCE = ROOT / "src" / "windlass"
SURFACE = ROOT / "tests" / "public_surface.txt"


def surface() -> str:
    """One line per public name, `package.name`, sorted."""
    names = [f"{package}.{name}" for init in sorted(SOURCE.rglob("__init__.py")) for package, name in exports(init)]
    return "".join(f"{name}\n" for name in sorted(names))


def exports(init: Path) -> list[tuple[str, str]]:
    """(package, name) for every name in a package's `__all__`; none where it has no `__all__`."""
    package = ".".join(init.parent.relative_to(SOURCE.parent).parts)
    for node in ast.parse(init.read_text()).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = getattr(node, "value", None)
            return [(package, name) for name in ast.literal_eval(value)] if value is not None else []
    return []


def unlisted(init: Path) -> list[str]:
    """Names that a package takes lazily from modules of windlass and that its `__all__` lacks; submodules are no names."""
    package = ".".join(init.parent.relative_to(SOURCE.parent).parts)
    listed = {name for _, name in exports(init)}
    taken = [
        alias.asname or alias.name
        for node in ast.parse(init.read_text()).body
        if isinstance(node, ast.If)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom) and statement.module != package
        for alias in statement.names
    ]
    return [f"{package}.{name}" for name in taken if name not in listed]


if __name__ == "__main__":
    if "--write" in sys.argv:
        SURFACE.write_text(surface())
    else:
        print(surface(), end="")
