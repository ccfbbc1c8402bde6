"""YAML and TOML files of other programs, read as those programs do, within limits.

PyYAML and tomllib recurse once for each level, and raise ValueErrors of their own for numbers and dates; a mapping that
merges others (`<<`) can take PyYAML for ever. Our own files go through `yaml_text`, which has places for all problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windlass.config.yaml_reader.text import MAX_TEXT, compose, too_large
from windlass.core.errors import SourcePlace, SpecError

__all__ = ["load_foreign_yaml", "load_toml"]

_MAX_TOML = 64 << 20
_MAX_LEVELS = 100


def load_foreign_yaml(text: str, *, source: str) -> Any:
    """Load a text with PyYAML's safe loader.

    Raises:
        yaml.YAMLError: it is not YAML.
        SpecError: it is larger, deeper or expands further than our own files may (`yaml-limits`).
    """
    import yaml  # lazy: PyYAML costs 25 ms

    if len(text) > MAX_TEXT:
        raise SpecError([too_large(SourcePlace(source), MAX_TEXT)])
    _, problems = compose(text, source=source, merges=True)
    limits = [problem for problem in problems if problem.code == "yaml-limits"]
    if limits:
        raise SpecError(limits)
    try:
        return yaml.safe_load(text)
    except RecursionError as error:
        raise yaml.YAMLError("nested too deep") from error
    except ValueError as error:  # a number of 5,000 digits, or the 99th of a month
        raise yaml.YAMLError(str(error)) from error


def load_toml(text: str) -> dict[str, Any]:
    """Load a text with tomllib.

    Raises:
        ValueError: it is not TOML, or larger or deeper than such files are.
    """
    import tomllib  # lazy: it takes 5 ms

    if len(text) > _MAX_TOML:
        raise ValueError(f"larger than {_MAX_TOML >> 20} MiB")
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    level: list[Any] = [tables]
    for _ in range(_MAX_LEVELS):
        level = [inner for outer in level for inner in _parts(outer)]
        if not level:
            return tables
    raise ValueError(f"nested more than {_MAX_LEVELS} levels deep")


def _parts(value: Any) -> Iterator[Any]:
    """Yield the tables and lists in a table or list."""
    parts = value.values() if isinstance(value, dict) else value
    return (part for part in parts if isinstance(part, (dict, list)))
