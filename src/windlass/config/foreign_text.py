"""Reader for other programs' YAML and TOML files, which reads them as those programs do, with limits.

PyYAML and tomllib recurse once per level and raise plain ValueErrors for numbers and dates, and mappings that merge
other mappings (`<<`) can keep PyYAML busy forever. Windlass's files are read by `yaml_reader`, which reports places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windlass.config.yaml_reader.parser import MAX_TEXT, compose, too_large
from windlass.core.errors import SourcePlace, SpecError

__all__ = ["load_foreign_yaml", "load_toml"]

_MAX_TOML = 64 << 20
_MAX_LEVELS = 100


def load_foreign_yaml(text: str, *, source: str) -> Any:
    """Load YAML text with PyYAML's safe loader, within limits.

    Raises:
        yaml.YAMLError: the text is not YAML.
        SpecError: the text exceeds the limits on size, depth or expansion (`yaml-limits`).
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
    except ValueError as error:  # such as a number of 5,000 digits, or day 99 of a month
        raise yaml.YAMLError(str(error)) from error


def load_toml(text: str) -> dict[str, Any]:
    """Load TOML text with tomllib, within limits.

    Raises:
        ValueError: the text is not TOML, or exceeds the limits on size or depth.
    """
    import tomllib  # lazy: takes 5 ms

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
    """Yield the tables and lists that a table or list contains."""
    parts = value.values() if isinstance(value, dict) else value
    return (part for part in parts if isinstance(part, (dict, list)))
