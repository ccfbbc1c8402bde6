"""Text or plain data to a value of any dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from windlass.config.decode import Decoder
from windlass.config.document import Branch, Leaf, Tree, kind_of, tree_of_data
from windlass.config.override import apply_overrides
from windlass.config.yaml_text import MAX_TEXT, compose, too_large
from windlass.core.errors import Place, Problem, SpecError

__all__ = ["Loaded", "from_data", "load"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A value, and where each part of it was written."""

    value: T
    origins: Mapping[str, Place]


def load(schema: type[T], text: str, *, source: str, overrides: Sequence[str] = ()) -> Loaded[T]:
    """Read YAML 1.2 into a dataclass, overrides applied.

    Args:
        source: the file's name, for messages.
        overrides: `a.b=value`, `--a.b=value`, `--a.b` (true) or `~a.b` (remove), later ones win.

    Raises:
        SpecError: with every problem of the text and the overrides.
    """
    if len(text) > MAX_TEXT:
        raise SpecError([too_large(Place(source), MAX_TEXT)])
    tree, problems = compose(text, source=source)
    if tree is None or (isinstance(tree, Leaf) and tree.value is None):
        if problems:
            raise SpecError(problems)
        tree = Branch((), Place(source))
    if not isinstance(tree, Branch):
        message = f"the file must hold a mapping, not {kind_of(tree)}"
        raise SpecError([*problems, Problem(message, "wrong-type", tree.place, "write `key: value` lines")])
    tree, refused = apply_overrides(tree, schema, overrides)
    return _decode(schema, tree, [*problems, *refused])


def from_data(schema: type[T], data: object, *, source: str = "<python>") -> T:
    """A dataclass from plain Python data, checked as if it had been read from a file.

    Raises:
        SpecError: with every problem; places name the path in the data.
    """
    try:
        tree = tree_of_data(data, source)
    except ValueError as error:
        raise SpecError(
            [Problem(str(error), "wrong-type", Place(source), "use None, bool, int, float, str, list and dict")]
        ) from error
    return _decode(schema, tree, []).value


def _decode(schema: type[T], tree: Tree, problems: list[Problem]) -> Loaded[T]:
    decoder = Decoder(schema)
    value = decoder.decode(tree)
    found = [*problems, *decoder.problems]
    if found:
        raise SpecError(sorted(found, key=_position))
    # `decode` gives a value of the schema whenever it finds no problem.
    return Loaded(cast(T, value), decoder.origins)


def _position(problem: Problem) -> tuple[bool, int, int]:
    """File order; what has no line (the command line) after it, in its own order."""
    place = problem.place
    return (True, 0, 0) if place is None or not place.line else (False, place.line, place.column)
