"""Search spaces as JSON or YAML, the form used in the journal and in `sweep:` in a file.

lr: {loguniform: [1e-5, 1e-1]}
layers: {choice: [2, 4, 8]}
model: {grid: [small, large]}
width: {eval: "config.layers * 64"}
seed: 7
init: {fixed: {uniform: [-1, 1]}}       # this mapping itself, not a draw
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from windlass.tune.errors import SpaceError
from windlass.tune.space.computed import Computed
from windlass.tune.space.domains import Categorical, Domain, Float, Integer, NormalFloat
from windlass.tune.space.primitives import PRIMITIVES, grid_search, sample_from
from windlass.tune.space.values import from_json, import_name, imported, to_json

__all__ = ["WORDS", "describe", "read_space"]

WORDS = (*PRIMITIVES, "grid", "grid_search", "eval", "sample_from", "fixed")
"""Words that are not parameter names if they are the only key of a mapping."""


def describe(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a search space in JSON form; a function without an importable name cannot be read back.

    Raises:
        SpaceError: a value has no JSON form.
    """
    return {str(name): _described(value, str(name)) for name, value in space.items()}


def read_space(data: Mapping[str, Any]) -> dict[str, Any]:
    """Read a search space written by `describe` or by a user.

    Raises:
        SpaceError: a word is unknown, its arguments are invalid, or its code cannot be imported; names the parameter.
    """
    return {str(name): _read(value, str(name)) for name, value in data.items()}


def _described(value: Any, place: str) -> Any:
    if isinstance(value, Categorical):
        return {"choice": [_described(one, place) for one in value.categories]}
    if isinstance(value, Computed):
        if isinstance(value.func, str):
            return {"eval": value.func}
        return {"sample_from": import_name(value.func) or value.name}
    if isinstance(value, Domain):
        name, arguments = _call_of(value, place)
        return {name: arguments}
    if isinstance(value, Mapping):
        if len(value) == 1:
            (word, inner), *_ = value.items()
            if word == "grid_search" and not isinstance(inner, (str, Mapping)):
                return {"grid": [_described(one, place) for one in inner]}
            if word == "eval" and isinstance(inner, str):
                return {"eval": inner}
            if word in WORDS or _is_near(word, inner):
                return {"fixed": to_json(value, place)}
        if all(isinstance(name, str) for name in value):
            return {name: _described(below, f"{place}/{name}") for name, below in value.items()}
    elif isinstance(value, (list, tuple)):
        listed = [_described(below, f"{place}/{index}") for index, below in enumerate(value)]
        return {"$tuple": listed} if isinstance(value, tuple) else listed
    return to_json(value, place)


def _call_of(domain: Domain, place: str) -> tuple[str, list[Any]]:
    """Return the name of the primitive that makes the domain, and its arguments."""
    if isinstance(domain, NormalFloat):
        step = [] if domain.step is None else [domain.step]
        return f"{'q' if step else ''}randn", [domain.mean, domain.sd, *step]
    if isinstance(domain, (Float, Integer)):
        has_step = domain.step not in (None, 1) if isinstance(domain, Integer) else domain.step is not None
        kind = "uniform" if isinstance(domain, Float) else "randint"
        name = f"{'q' if has_step else ''}{'log' if domain.is_log else ''}{kind}"
        return name, [domain.lower, domain.upper, *([domain.step] if has_step else [])]
    raise SpaceError(f"`{place}`: {domain} cannot be written to a file", code="invalid-space")


def _read(value: Any, place: str) -> Any:
    if isinstance(value, list):
        return [_read(below, f"{place}/{index}") for index, below in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        (word, inner), *_ = value.items()
        if word == "$tuple":
            return tuple(_read(inner, place))
        if str(word).startswith("$"):
            return from_json(value)
        if word in WORDS:
            try:
                return _made(str(word), inner, place)
            except SpaceError as error:
                raise error.at(place) from None
        if near := _is_near(word, inner):
            raise SpaceError(
                f"`{place}`: unknown distribution `{word}`",
                hint=f"did you mean `{near}`? Write `fixed: {{{word}: ...}}` for a plain mapping",
                code="invalid-space",
            )
    return {name: _read(below, f"{place}/{name}") for name, below in value.items()}


def _made(word: str, inner: Any, place: str) -> Any:
    if word == "fixed":
        return from_json(inner)
    if word == "eval":
        if not isinstance(inner, str):
            raise SpaceError(f"`{place}`: eval needs an expression in text, not {inner!r}", code="invalid-space")
        return sample_from(inner)
    if word == "sample_from":
        return sample_from(_function(inner, place))
    if word in ("choice", "grid", "grid_search"):
        if not isinstance(inner, list):
            raise SpaceError(f"`{place}`: {word} needs a list of values, not {inner!r}", hint=f"{word}: [{inner}]")
        values = [_read(one, place) for one in inner]
        return PRIMITIVES["choice"](values) if word == "choice" else grid_search(values)
    return _called(word, inner, place)


def _called(word: str, inner: Any, place: str) -> Domain:
    """Call a primitive, with its arguments given in a list or by name."""
    made = PRIMITIVES[word]
    expected = [name for name in inspect.signature(made).parameters if name != "base"]
    if not isinstance(inner, (list, Mapping)):
        raise SpaceError(
            f"`{place}`: {word} needs its arguments in a list, not {inner!r}",
            hint=f"{word}: [{', '.join(expected)}]",
            code="invalid-space",
        )
    try:
        domain: Domain = made(**inner) if isinstance(inner, Mapping) else made(*inner)
    except TypeError:
        raise SpaceError(
            f"`{place}`: {word} does not take {inner!r}",
            hint=f"{word}: [{', '.join(expected)}]",
            code="invalid-space",
        ) from None
    return domain


def _function(name: Any, place: str) -> Any:
    if not isinstance(name, str) or ":" not in name or "<" in name:
        raise SpaceError(
            f"`{place}` is computed by {name}, which cannot be imported",
            hint="pass param_space again, or define the function at the top level of a module",
            code="module-not-found",
        )
    return imported(name)


def _is_near(word: Any, inner: Any) -> str:
    """Return the primitive of which a word is a misspelling, or an empty string if the word is a parameter."""
    if not isinstance(word, str) or not isinstance(inner, list) or word in WORDS:
        return ""
    near = difflib.get_close_matches(word, WORDS, 1, cutoff=0.8)
    return near[0] if near else ""
