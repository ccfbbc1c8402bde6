"""Conversion of dataclasses to and from YAML 1.2, with overrides and precise errors.

Independent of experiments: used by `spec` and by the trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.config.annotations import (
    Diagnostic,
    Doc,
    DurationText,
    JsonValue,
    Key,
    Name,
    OneOrMany,
    Pattern,
    Planned,
    Range,
    ScalarText,
    SizeText,
)
from windlass.config.path import join_path, split_path
from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.config.completion import override_paths
    from windlass.config.difference import ABSENT, Absent, Change, diff
    from windlass.config.emit import to_yaml
    from windlass.config.encode import to_data
    from windlass.config.loading import LoadedConfig, from_data, load
    from windlass.config.override import parse_override
    from windlass.config.schema_export import json_schema
    from windlass.config.value import with_overrides
    from windlass.config.yaml_reader.parser import decode_text, too_large
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.config.completion": ("override_paths",),
            "windlass.config.difference": ("ABSENT", "Absent", "Change", "diff"),
            "windlass.config.emit": ("to_yaml",),
            "windlass.config.encode": ("to_data",),
            "windlass.config.loading": ("LoadedConfig", "from_data", "load"),
            "windlass.config.override": ("parse_override",),
            "windlass.config.schema_export": ("json_schema",),
            "windlass.config.value": ("with_overrides",),
            "windlass.config.yaml_reader.parser": ("decode_text", "too_large"),
        },
    )

__all__ = [
    "ABSENT",
    "Absent",
    "Change",
    "Diagnostic",
    "Doc",
    "DurationText",
    "JsonValue",
    "Key",
    "LoadedConfig",
    "Name",
    "OneOrMany",
    "Pattern",
    "Planned",
    "Range",
    "ScalarText",
    "SizeText",
    "decode_text",
    "diff",
    "from_data",
    "join_path",
    "json_schema",
    "load",
    "override_paths",
    "parse_override",
    "split_path",
    "to_data",
    "to_yaml",
    "too_large",
    "with_overrides",
]
