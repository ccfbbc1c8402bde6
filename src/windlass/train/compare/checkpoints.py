"""Comparison for `windlass ckpt diff A B`: how two models differ, and where the difference begins."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from windlass.config.difference import ABSENT
from windlass.config.encode import to_data
from windlass.config.path import join_path
from windlass.core.phrases import count
from windlass.train.hf.mapped import ModelSource
from windlass.train.hf.sources import StoredCheckpoint, open_model

__all__ = ["CheckpointDiff", "Setting", "WeightDiff", "diff_checkpoints"]

_BLOCK = re.compile(r"(blocks\.[0-9]+)\.")
_MAX_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Setting, or part of the trainer's state, that differs.

    Attributes:
        before, after: the values; `windlass.config.difference.ABSENT` if a side has none.
        before_origin, after_origin: source of each value; empty if unknown.
    """

    path: str
    before: object
    after: object
    before_origin: str = ""
    after_origin: str = ""

    def __str__(self) -> str:
        if self.before is ABSENT:
            return f"+ {self.path}: {self.after!r}{_told(self.after_origin)}"
        if self.after is ABSENT:
            return f"- {self.path}: {self.before!r}{_told(self.before_origin)}"
        before, after = _told(self.before_origin), _told(self.after_origin)
        return f"~ {self.path}: {self.before!r}{before} -> {self.after!r}{after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDiff:
    """Weight that differs.

    Attributes:
        difference: largest absolute difference; infinite if only one value is finite; None if
            shapes differ or one side lacks it.
        scale: largest absolute value in A's weight.
        before, after: shapes; None if that side lacks the weight.
    """

    name: str
    before: tuple[int, ...] | None
    after: tuple[int, ...] | None
    difference: float | None = None
    scale: float | None = None

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            side, shape = ("+", self.after) if self.before is None else ("-", self.before)
            return f"{side} {self.name} {list(shape or ())}"
        if self.difference is None:
            return f"~ {self.name}: {list(self.before)} -> {list(self.after)}"
        return f"~ {self.name}: by {self.difference:.3g} (largest value {self.scale:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDiff:
    """Differences between checkpoints A and B.

    Attributes:
        settings: differences between their configurations.
        trainer: differences in the trainer's state: step, data position, random state.
        weights: weights that differ, in the model's order of computation.
        num_equal: number of bitwise equal weights.
    """

    a: str
    b: str
    settings: tuple[Setting, ...]
    trainer: tuple[Setting, ...]
    weights: tuple[WeightDiff, ...]
    num_equal: int

    @property
    def is_equal(self) -> bool:
        """Return whether the checkpoints are equal."""
        return not (self.settings or self.trainer or self.weights)

    @property
    def first_block(self) -> str:
        """First part of the model with a weight that differs, such as `blocks.3` or `norm`; empty if none differs."""
        return _part(self.weights[0].name) if self.weights else ""

    def __str__(self) -> str:
        if self.is_equal:
            return f"{self.a} and {self.b} are equal in all they share: {count(self.num_equal, 'weight')}, and settings"
        return "\n".join([f"- {self.a}", f"+ {self.b}", *self._lines()])

    def _lines(self) -> Iterator[str]:
        for title, settings in (("settings", self.settings), ("trainer", self.trainer)):
            if settings:
                yield title
                yield from (f"  {setting}" for setting in settings)
        total = self.num_equal + len(self.weights)
        if not self.weights:
            yield f"weights: all {total} are equal"
            return
        yield f"weights: {len(self.weights)} of {total} differ, first in {self.first_block}"
        yield from (f"  {weight}" for weight in self.weights[:_MAX_SHOWN])
        if len(self.weights) > _MAX_SHOWN:
            yield f"  and {len(self.weights) - _MAX_SHOWN} more"

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form. Absent values are omitted; NaN and infinities are strings."""
        return {
            "a": self.a,
            "b": self.b,
            "is_equal": self.is_equal,
            "first_block": self.first_block,
            "num_equal": self.num_equal,
            "settings": [_plain(setting) for setting in self.settings],
            "trainer": [_plain(setting) for setting in self.trainer],
            "weights": [_plain(weight) for weight in self.weights],
        }


def diff_checkpoints(a: str, b: str) -> CheckpointDiff:
    """Compare two models from any sources, reading all weights of both, one at a time.

    Args:
        a, b: paths that `windlass.train.hf.sources.open_model` accepts.

    Raises:
        NotFoundError, CheckpointError, SpecError: one of them is missing, damaged, or not supported.
    """
    with open_model(a) as left, open_model(b) as right:
        weights = list(_weights(left, right))
        return CheckpointDiff(
            a=left.source,
            b=right.source,
            settings=tuple(_configs(left, right)),
            trainer=tuple(_trainers(left, right)),
            weights=tuple(weight for weight in weights if weight is not None),
            num_equal=sum(weight is None for weight in weights),
        )


def _weights(left: ModelSource, right: ModelSource) -> Iterator[WeightDiff | None]:
    """Yield the difference for each weight, or None if it is equal."""
    before, after = left.shapes(), right.shapes()
    for name in sorted({**before, **after}, key=_order):
        shapes = before.get(name), after.get(name)
        if shapes[0] is None or shapes[0] != shapes[1]:
            yield WeightDiff(name=name, before=shapes[0], after=shapes[1])
        else:
            yield _compared(name, left.tensor(name), right.tensor(name))


def _compared(name: str, left: Tensor, right: Tensor) -> WeightDiff | None:
    if left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8)):
        return None  # so that NaN equals itself
    before, after = left.double(), right.double()
    gap = torch.where(before.isnan() & after.isnan(), torch.zeros_like(before), (before - after).abs())
    difference = float(gap.nan_to_num(nan=math.inf, posinf=math.inf).max()) if gap.numel() else 0.0
    if difference == 0:
        return None
    shape = tuple(left.shape)
    return WeightDiff(name=name, before=shape, after=shape, difference=difference, scale=float(before.abs().max()))


def _order(name: str) -> tuple[int, int, str]:
    """Return a sort key for the order of computation: embedding, blocks by number, the rest."""
    match = _BLOCK.match(name)
    if match is not None:
        return 1, int(match[1].partition(".")[2]), name
    return (0 if name.startswith("embed") else 2), 0, name


def _part(name: str) -> str:
    match = _BLOCK.match(name)
    return match[1] if match is not None else name.partition(".")[0]


def _configs(left: ModelSource, right: ModelSource) -> Iterator[Setting]:
    """Yield the settings that differ: those of the recipes or, if one side has no recipe, of the models."""
    records = [_recipe(source) for source in (left, right)]
    if records[0] is not None and records[1] is not None:
        (before, before_origins), (after, after_origins) = records[0], records[1]
        yield from _settings(before, after, before_origins, after_origins)
    else:
        first, second = (_leaves({"model": to_data(source.config, keep_defaults=True)}) for source in (left, right))
        yield from _settings(first, second)


def _recipe(source: ModelSource) -> tuple[Mapping[str, object], Mapping[str, str]] | None:
    """Return all settings by path and their known origins, or None if there is no recipe."""
    recipe = source.record.get("recipe") if isinstance(source, StoredCheckpoint) else None
    if not isinstance(source, StoredCheckpoint) or not isinstance(recipe, Mapping):
        return None
    return _leaves(recipe), source.record.get("origins") or {}


def _trainers(left: ModelSource, right: ModelSource) -> Iterator[Setting]:
    """Yield the parts of the trainers' states that differ, if both sides have a state."""
    states = [source.trainer if isinstance(source, StoredCheckpoint) else {} for source in (left, right)]
    if states[0] and states[1]:
        yield from _settings(_leaves(states[0]), _leaves(states[1]))


def _settings(
    before: Mapping[str, object],
    after: Mapping[str, object],
    before_origins: Mapping[str, str] | None = None,
    after_origins: Mapping[str, str] | None = None,
) -> Iterator[Setting]:
    for path in {**before, **after}:
        first, second = before.get(path, ABSENT), after.get(path, ABSENT)
        if repr(first) != repr(second):  # so that 1, 1.0 and true differ, and NaN equals itself
            yield Setting(
                path=path,
                before=first,
                after=second,
                before_origin=(before_origins or {}).get(path, ""),
                after_origin=(after_origins or {}).get(path, ""),
            )


def _leaves(data: Mapping[str, object], path: tuple[str, ...] = ()) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found.update(_leaves(value, (*path, str(key))))
        else:
            found[join_path((*path, str(key)))] = value
    return found


def _told(origin: str) -> str:
    return f" ({origin})" if origin else ""


def _plain(value: Setting | WeightDiff) -> dict[str, Any]:
    data = {key: item for key, item in asdict(value).items() if item is not ABSENT and item not in ("", None)}
    return {
        key: str(item) if isinstance(item, float) and not math.isfinite(item) else item for key, item in data.items()
    }
