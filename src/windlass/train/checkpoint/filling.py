"""In-place loading of a state from a checkpoint, resharded as needed, after names and shapes are checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from windlass.core.json_text import decode_json
from windlass.core.names import nearest
from windlass.train.checkpoint.reading import CheckpointReader, tensors_by_name
from windlass.train.checkpoint.tensors import DTYPES, LooseState, dtype_name, set_value
from windlass.train.errors import CheckpointError

__all__ = ["check_match", "fill", "plain_values"]

Shapes = Mapping[tuple[str, str], tuple[int, ...] | None]
_MAX_SHOWN = 5


def check_match(
    path: str,
    wanted: Shapes,
    found: Shapes,
    *,
    is_strict: bool,
    elsewhere: Collection[tuple[str, str]] = (),
) -> None:
    """Compare the names and shapes in a state with those in a checkpoint, within the state's sections.

    Args:
        wanted: the state's shapes by section and name; None for values that are not tensors.
        found: the checkpoint's shapes, in the same form.
        is_strict: whether missing and unexpected names are both errors.
        elsewhere: names that other processes need, such as other pipeline stages.

    Raises:
        CheckpointError: lists the missing and unexpected names, and differing shapes.
    """
    sections = {section for section, _ in wanted}
    missing = sorted(wanted.keys() - found.keys())
    unexpected = sorted(key for key in found.keys() - wanted.keys() - set(elsewhere) if key[0] in sections)
    misshaped = sorted(key for key in wanted.keys() & found.keys() if wanted[key] != found[key])
    if misshaped or (is_strict and (missing or unexpected)):
        lines = [
            *_shapes(misshaped, wanted, found),
            *(_names("missing", missing, unexpected) if is_strict else []),
            *(_names("unexpected", unexpected, missing) if is_strict else []),
        ]
        sections = {section for section, _ in (*misshaped, *missing, *unexpected)}
        what, hint = _what(sections)
        raise CheckpointError(
            f"{path} {what}: " + "; ".join(lines),
            hint=hint + ("" if misshaped else ", or set `checkpoint.load.is_strict=false` to load what matches"),
            code="checkpoint-mismatch",
        )


def _what(sections: Collection[str]) -> tuple[str, str]:
    """Return a description of the difference and a hint, given the sections that differ."""
    compare = "compare `config.json` in the checkpoint with this recipe's"
    if sections == {"optim"}:
        other = (
            "to load the weights alone, set a new `checkpoint.folder` and `checkpoint.load={path: PATH, optim: false}`"
        )
        return "has the state of a different optimiser", f"{compare} `optim`; {other}"
    if "model" not in sections:
        return f"differs in its {' and '.join(sorted(sections))}", f"{compare} settings"
    return "is of a different model", f"{compare} model"


def _shapes(
    keys: Collection[tuple[str, str]],
    wanted: Shapes,
    found: Shapes,
) -> Iterable[str]:
    shown = [f"`{'.'.join(key)}` is {_shape(found[key])} there, {_shape(wanted[key])} here" for key in keys]
    return shown[:_MAX_SHOWN] + _more(len(shown))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else str(list(shape))


def _names(verb: str, keys: Collection[tuple[str, str]], others: Collection[tuple[str, str]]) -> list[str]:
    if not keys:
        return []
    names = [".".join(key) for key in keys]
    candidates = [".".join(key) for key in others]
    shown = []
    for name in names[:_MAX_SHOWN]:
        close = nearest(name, candidates)
        shown.append(f"`{name}`" + (f" (near: `{close}`)" if close else ""))
    return [f"{verb} " + ", ".join(shown + _more(len(names)))]


def _more(number: int) -> list[str]:
    return [f"and {number - _MAX_SHOWN} more"] if number > _MAX_SHOWN else []


def fill(
    reader: CheckpointReader, loose: LooseState, *, is_strict: bool, elsewhere: Collection[tuple[str, str]] = ()
) -> None:
    """Fill this process's boxes of a state from a checkpoint; types may differ, shapes may not.

    Args:
        elsewhere: names that other processes fill.

    Raises:
        CheckpointError: it does not match, or a file is damaged; the state may be partly filled.
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
                hint="only types of the same kind are converted, such as float32 to bfloat16",
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
    """Return the current values other than tensors, by section."""
    values: dict[str, dict[str, Any]] = {}
    for (section, name), (parent, key) in loose.values.items():
        values.setdefault(section, {})[name] = _copy(parent[key])
    return values


def _copy(value: Any) -> Any:
    return decode_json(json.dumps(value)) if isinstance(value, list | tuple | Mapping) else value
