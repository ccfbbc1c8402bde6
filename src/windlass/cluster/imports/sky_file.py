"""SkyPilot's task file as data: every key of its schema.

Source: get_task_schema and get_resources_schema in sky/utils/schemas.py of SkyPilot 0.14.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from windlass.config.annotations import Free, JsonValue, Range, ScalarText
from windlass.core.dataclass import dataclass
from windlass.spec.variables import VariableName

__all__ = ["SkyFile"]

_Any = Annotated[object, Free()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyFile:
    """A whole file; `resources` is read by `SkyResources`, since its keys have several forms."""

    name: str = ""
    workdir: _Any = None
    num_nodes: Annotated[int, Range(min=1, max=10_000)] = 1
    setup: str = ""
    run: str = ""
    envs: Mapping[VariableName, Annotated[str, ScalarText()] | None] = field(default_factory=dict)
    secrets: Mapping[VariableName, Annotated[str, ScalarText()] | None] = field(default_factory=dict)
    file_mounts: Mapping[str, JsonValue] = field(default_factory=dict)
    resources: Mapping[str, JsonValue] = field(default_factory=dict)
    managed_secrets: _Any = None
    volumes: _Any = None
    volume_mounts: _Any = None
    service: _Any = None
    pool: _Any = None
    config: _Any = None
    event_callback: _Any = None
    inputs: _Any = None
    outputs: _Any = None
    api_server_access: _Any = None
    experimental: _Any = None
    file_mounts_mapping: _Any = None
    _metadata: _Any = None
