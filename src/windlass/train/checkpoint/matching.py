"""Whether a checkpoint fits a state: names and shapes, all that is wrong at once, with the nearest names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from windlass.core.names import nearest
from windlass.train.errors import CheckpointError

__all__ = ["check_match"]

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
    """Compare what a state needs with what a checkpoint holds, in the sections that the state has.

    Args:
        wanted: shapes by section and name; None for what is no tensor.
        found: likewise.
        is_strict: whether each wanted one must be there, and each one there be wanted.
        elsewhere: what other processes want, such as other stages of a pipeline.

    Raises:
        CheckpointError: names those that are missing, unexpected or of another shape.
    """
    sections = {section for section, _ in wanted}
    missing = sorted(wanted.keys() - found.keys())
    unexpected = sorted(key for key in found.keys() - wanted.keys() - set(elsewhere) if key[0] in sections)
    misshaped = sorted(key for key in wanted.keys() & found.keys() if wanted[key] != found[key])
    if misshaped or (is_strict and (missing or unexpected)):
        lines = [
            *_shapes(misshaped, wanted, found),
            *(_names("it lacks", missing, unexpected) if is_strict else []),
            *(_names("it has also", unexpected, missing) if is_strict else []),
        ]
        sections = {section for section, _ in (*misshaped, *missing, *unexpected)}
        what, hint = _what(sections)
        raise CheckpointError(
            f"{path} {what}: " + "; ".join(lines),
            hint=hint + ("" if misshaped else ", or set `checkpoint.load.is_strict=false` to take what fits"),
            code="checkpoint-mismatch",
        )


def _what(sections: Collection[str]) -> tuple[str, str]:
    """What is of another kind, by the sections that differ, and what to do."""
    compare = "compare `config.json` in the checkpoint with this recipe's"
    if sections == {"optim"}:
        other = (
            "give a new `checkpoint.folder` and `checkpoint.load={path: PATH, optim: false}` to take the weights alone"
        )
        return "has the state of another optimiser", f"{compare} `optim`; {other}"
    if "model" not in sections:
        return f"differs in its {' and '.join(sorted(sections))}", f"{compare} settings"
    return "is of another model", f"{compare} model"


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
