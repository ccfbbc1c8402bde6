"""Names of results and their flat form, as in Ray Tune's data frames and CSV files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

__all__ = ["AUTO_FILLED", "NestedMetrics", "flatten", "is_nan", "is_nan_or_inf", "is_number", "tag_of"]

AUTO_FILLED = (
    "timestamp",
    "checkpoint_dir_name",
    "done",
    "training_iteration",
    "trial_id",
    "date",
    "time_this_iter_s",
    "time_total_s",
    "pid",
    "hostname",
    "node_ip",
    "config",
    "time_since_restore",
    "iterations_since_restore",
    "experiment_tag",
)
"""Columns of a row besides the user's metrics, in the order of Ray's files."""

_NOT_IN_TAGS = re.compile(r"[^a-zA-Z0-9_-]+")


def flatten(nested: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Join nested names with `/`: `{"a": {"b": 1}}` becomes `{"a/b": 1}`. Lists are left as they are."""
    return dict(_flat_items(nested, prefix))


def _flat_items(nested: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):  # the type that JSON gives; an abstract type would be ten times slower
            yield from _flat_items(value, f"{name}/")
        else:
            yield name, value


def is_number(value: object) -> bool:
    """Return whether a value can be compared as a score; as in Ray Tune, booleans can."""
    return isinstance(value, Number) and not isinstance(value, complex)


def is_nan(value: Any) -> bool:
    """Return whether a value is the float NaN."""
    return isinstance(value, float) and math.isnan(value)


def is_nan_or_inf(value: Any) -> bool:
    """Return whether a value is NaN or infinite."""
    return isinstance(value, float) and not math.isfinite(value)


def tag_of(number: int, assigned: Mapping[str, Any]) -> str:
    """Return a trial's tag, such as `3_lr=0.1000,layers=2`: its number and sampled values, sorted by path.

    Source: Ray Tune's `experiment_tag`, which scripts parse.
    """
    drawn = sorted((path.split("/"), value) for path, value in assigned.items())
    text = ",".join(f"{_clean(path[-1])}={_clean(value)}" for path, value in drawn)
    return f"{number}_{text}" if text else str(number)


def _clean(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else _NOT_IN_TAGS.sub("_", str(value)).strip("_")


class NestedMetrics(dict[str, Any]):
    """Flat metrics that can also be accessed by the first part of a nested name.

    `metrics["eval/loss"]` and `metrics["eval"]["loss"]` are the same value, however the trial reported it.
    """

    def __missing__(self, key: str) -> dict[str, Any]:
        found = self._below(key)
        if not found:
            raise KeyError(key)
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a flat name, the values below a nested name, or the default."""
        return super().get(key, default) if super().__contains__(key) else self._below(key) or default

    def copy(self) -> NestedMetrics:
        """Return a copy of the same kind."""
        return NestedMetrics(self)

    def _below(self, key: str) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for name, value in self.items():
            if name.startswith(f"{key}/"):
                *path, last = name[len(key) + 1 :].split("/")
                branch = tree
                for part in path:
                    branch = branch.setdefault(part, {})
                branch[last] = value
        return tree
