"""Resolved recipe as YAML, with the origin of each value in a comment; the output is a valid recipe file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from windlass.config.emit import yaml_of_data
from windlass.config.encode import to_data
from windlass.config.path import join_path
from windlass.train.recipe import Recipe
from windlass.train.resolve import ResolvedRecipe, class_name

__all__ = ["recipe_page"]

_MAX_COLUMN = 56


def recipe_page(resolved: ResolvedRecipe) -> list[str]:
    """Return the lines of the recipe, with comments aligned in one column if the lines are short enough."""
    pairs = list(_mapping(to_data(resolved.recipe, keep_defaults=True), (), 0, resolved.origins))
    if type(resolved.recipe) is not Recipe:
        pairs.insert(0, (f"class: {class_name(type(resolved.recipe))}", ""))
    widths = [len(text) for text, origin in pairs if origin and len(text) <= _MAX_COLUMN]
    column = max(widths, default=0)
    return [f"{text.ljust(column)}  # {origin}" if origin else text for text, origin in pairs]


_Lines = Iterator[tuple[str, str]]


def _mapping(data: Mapping[str, object], path: tuple[str, ...], indent: int, origins: Mapping[str, str]) -> _Lines:
    """Return (line, origin) pairs; lines without a value have no origin."""
    pad = " " * indent
    for key, value in data.items():
        inner = (*path, key)
        if isinstance(value, Mapping) and list(value) == ["value", "unit"]:
            yield f"{pad}{key}: {value['value']} {value['unit']}", origins.get(join_path((*inner, "value")), "")
        elif isinstance(value, Mapping) and value:
            yield f"{pad}{_key(key)}:", ""
            yield from _mapping(value, inner, indent + 2, origins)
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield f"{pad}{_key(key)}:", ""
            yield from _items(value, inner, indent + 2, origins)
        else:
            lines = yaml_of_data({key: value}).rstrip("\n").split("\n")
            yield pad + lines[0], origins.get(join_path(inner), "")
            yield from ((pad + line if line else "", "") for line in lines[1:])


def _items(items: list[object], path: tuple[str, ...], indent: int, origins: Mapping[str, str]) -> _Lines:
    pad = " " * indent
    for index, item in enumerate(items):
        inner = (*path, str(index))
        if isinstance(item, Mapping) and list(item) == ["value", "unit"]:
            yield f"{pad}- {item['value']} {item['unit']}", origins.get(join_path((*inner, "value")), "")
        elif isinstance(item, Mapping) and item:
            lines = list(_mapping(item, inner, indent + 2, origins))
            first, origin = lines[0]
            yield f"{pad}- {first.lstrip(' ')}", origin
            yield from lines[1:]
        else:
            yield f"{pad}- {yaml_of_data({'x': item}).rstrip().removeprefix('x: ')}", origins.get(join_path(inner), "")


def _key(key: str) -> str:
    return yaml_of_data({key: None}).rstrip("\n").removesuffix(": null")
