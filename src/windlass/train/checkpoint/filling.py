"""Filling a state in place from a checkpoint, whatever shape either has."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from windlass.core.json_text import decode_json
from windlass.train.checkpoint.matching import check_match
from windlass.train.checkpoint.reading import CheckpointReader, tensors_by_name
from windlass.train.checkpoint.tensors import DTYPES, LooseState, dtype_name, set_value
from windlass.train.errors import CheckpointError

__all__ = ["fill", "plain_values"]


def fill(
    reader: CheckpointReader, loose: LooseState, *, is_strict: bool, elsewhere: Collection[tuple[str, str]] = ()
) -> None:
    """Fill a state from a checkpoint, in the boxes that this process holds; types may differ, shapes may not.

    Args:
        elsewhere: names that other processes fill.

    Raises:
        CheckpointError: it does not fit, or a file is damaged; the state may be filled in part.
    """
    found = tensors_by_name(reader.layout)
    values = {(section, name): value for section, part in reader.layout.values.items() for name, value in part.items()}
    check_match(
        reader.files.path,
        {**{key: tensor.shape for key, tensor in loose.tensors.items()}, **dict.fromkeys(loose.values)},
        {**{key: entry.shape for key, entry in found.items()}, **dict.fromkeys(values)},
        is_strict=is_strict,
        elsewhere=elsewhere,
    )
    for key, tensor in loose.tensors.items():
        if key in found and tensor.dtype.is_floating_point != DTYPES[found[key].dtype].is_floating_point:
            raise CheckpointError(
                f"`{'.'.join(key)}` is {found[key].dtype} in {reader.files.path}, {dtype_name(tensor.dtype)} here",
                hint="only types of one kind are converted, such as float32 and bfloat16",
                code="checkpoint-mismatch",
            )
    reader.fill_all(
        (found[key], tensor.box, tensor.local)
        for key, tensor in loose.tensors.items()
        if key in found and tensor.box.num_elements
    )
    for key, place in loose.values.items():
        if key in values:
            set_value(place, values[key])


def plain_values(loose: LooseState) -> dict[str, dict[str, Any]]:
    """What is no tensor, by section, as it is now."""
    values: dict[str, dict[str, Any]] = {}
    for (section, name), (parent, key) in loose.values.items():
        values.setdefault(section, {})[name] = _copy(parent[key])
    return values


def _copy(value: Any) -> Any:
    return decode_json(json.dumps(value)) if isinstance(value, list | tuple | Mapping) else value
