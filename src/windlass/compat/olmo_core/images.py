"""Names of OLMo-core's images, read from the installed OLMo-core because they depend on its version.

The source of its launch module is read; importing it would also import torch and gantry.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.core.names import nearest

__all__ = ["OLMoCoreBeakerImage", "default_image", "owners"]

_CLASS = "OLMoCoreBeakerImage"


class _Images(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _images()
        if name not in found:
            close = nearest(name, found)
            hint = f"did you mean `{close}`?" if close else "pip install ai2-olmo-core, or write the image's full name"
            raise PreconditionError(f"OLMo-core has no image `{name}`", hint=hint, code="beaker-not-found")
        return found[name]

    def __iter__(cls) -> Iterator[str]:
        return iter(_images().values())


class OLMoCoreBeakerImage(metaclass=_Images):
    """Images under OLMo-core's names, such as `OLMoCoreBeakerImage.stable`; each value is a str."""


def default_image() -> str:
    """Return the image that is used by default."""
    return OLMoCoreBeakerImage.stable


def owners() -> tuple[str, ...]:
    """Return the owners of the images; an image name without an owner may belong to any of them."""
    return tuple(dict.fromkeys(image.partition("/")[0] for image in _images().values() if "/" in image))


@cache
def _images() -> dict[str, str]:
    found = find_spec("olmo_core")
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    for folder in folders:
        path = Path(folder, "launch", "beaker.py")
        if path.is_file():
            return _read(ast.parse(path.read_text(encoding="utf-8")))
    return {}


def _read(module: ast.Module) -> dict[str, str]:
    constants: dict[str, str] = {}
    images: dict[str, str] = {}
    for statement in module.body:
        if isinstance(statement, ast.ClassDef) and statement.name == _CLASS:
            for each in statement.body:
                _assign(each, images, constants)
        else:
            _assign(statement, constants, constants)
    return images


def _assign(statement: ast.stmt, into: dict[str, str], known: dict[str, str]) -> None:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        value = _text(statement.value, known)
        if value is not None:
            into[statement.targets[0].id] = value


def _text(node: ast.expr, known: dict[str, str]) -> str | None:
    """Evaluate an expression made of str literals, names, f-strings and `replace`; return None for any other."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            return known.get(name)
        case ast.FormattedValue(value=value):
            return _text(value, known)
        case ast.JoinedStr(values=values):
            parts = [_text(value, known) for value in values]
            return None if None in parts else "".join(part or "" for part in parts)
        case ast.Call(func=ast.Attribute(value=value, attr="replace"), args=[old, new], keywords=[]):
            base, was, becomes = (_text(each, known) for each in (value, old, new))
            return None if base is None or was is None or becomes is None else base.replace(was, becomes)
    return None
