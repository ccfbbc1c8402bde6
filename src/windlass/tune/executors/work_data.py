"""`Work` as JSON, for workers that are other processes; the trainable goes by its import path, or pickled."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from windlass.tune.executors.protocol import Work
from windlass.tune.trainable.serialization import deserialize, serialize

__all__ = ["rebuild_work", "work_to_data"]


def work_to_data(work: Work) -> dict[str, Any]:
    """The JSON form.

    Raises:
        WindlassError: the trainable cannot be sent; see `serialize`.
    """
    data = {field.name: getattr(work, field.name) for field in fields(Work)}
    return data | {"trainable": serialize(work.trainable), "preload": list(work.preload), "options": dict(work.options)}


def rebuild_work(data: dict[str, Any]) -> Work:
    """Read back `work_to_data`; imports the trainable's module."""
    return Work(**(data | {"trainable": deserialize(data["trainable"])}))
