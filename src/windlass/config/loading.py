"""Loading of text or plain data into a dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar, cast

from windlass.config.decode import DocumentDecoder
from windlass.config.document import MappingNode, Node, ScalarNode, kind_of, node_of_data, printable
from windlass.config.override import COMMAND_LINE, apply_overrides
from windlass.config.yaml_reader.parser import MAX_TEXT, compose, too_large
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem, SourcePlace, SpecError

__all__ = ["LoadedConfig", "from_data", "load_config", "raise_any"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedConfig(Generic[T]):
    """Loaded value, with the place where each part was written."""

    value: T
    origins: Mapping[str, SourcePlace]


def load_config(schema: type[T], text: str, *, source: str, overrides: Sequence[str] = ()) -> LoadedConfig[T]:
    """Read YAML 1.2 into a dataclass and apply overrides.

    Args:
        source: the file's name, for messages.
        overrides: `a.b=value`, `--a.b=value`, `--a.b` (true) or `~a.b` (remove); later overrides take precedence.

    Raises:
        SpecError: contains every problem in the text and the overrides.
    """
    if len(text) > MAX_TEXT:
        raise SpecError([too_large(SourcePlace(source), MAX_TEXT)])
    node, problems = compose(text, source=source)
    if node is None:
        raise_any(problems)
    is_empty = node is None or (isinstance(node, ScalarNode) and node.value is None)
    root: Node = MappingNode((), SourcePlace(source)) if node is None or is_empty else node
    if not isinstance(root, MappingNode):
        message = f"the file must contain a mapping, not {kind_of(root)}"
        raise SpecError([*problems, Problem(message, "invalid-value", root.place, "write `key: value` lines")])
    changed, refused = apply_overrides(root, schema, overrides)
    problems.extend(refused)
    decoder = DocumentDecoder(schema)
    value = decoder.decode(changed)
    problems.extend(decoder.problems)
    consequences = [problem for problem in problems if is_empty and problem.place == SourcePlace(source)]
    if consequences:
        # Valid if every field has a default; else this is the only problem to report.
        problems = [problem for problem in problems if problem not in consequences]
        problems.insert(0, Problem("the file is empty", "no-tasks", SourcePlace(source), "write `key: value` lines"))
    raise_any(problems)
    # `decode` returns a value of the schema if it finds no problem.
    return LoadedConfig(cast(T, value), decoder.origins)


def from_data(schema: type[T], data: object, *, source: str = "<python>") -> T:
    """Read a dataclass from plain Python data, checked like a file.

    Raises:
        SpecError: contains every problem; places are paths in the data.
    """
    try:
        node = node_of_data(data, source)
    except ValueError as error:
        hint = "use None, bool, int, float, str, list and dict"
        raise SpecError([Problem(str(error), "invalid-value", SourcePlace(source), hint)]) from error
    decoder = DocumentDecoder(schema)
    value = decoder.decode(node)
    raise_any(decoder.problems)
    return cast(T, value)


def raise_any(problems: Sequence[Problem]) -> None:
    """Raise all problems together, if there are any: in file order, then those of the command line."""
    if problems:
        raise SpecError(_printable(problem) for problem in sorted(problems, key=_position))


def _printable(problem: Problem) -> Problem:
    """Return a problem with control characters escaped, to protect terminals."""
    place = problem.place
    if place is not None and not place.excerpt.isprintable():
        place = SourcePlace(place.source, place.line, place.column, printable(place.excerpt))
    return Problem(printable(problem.message), problem.code, place, printable(problem.hint))


def _position(problem: Problem) -> tuple[int, int, int]:
    """Return a problem's sort key: the whole file first, then lines, then the command line."""
    place = problem.place
    if place is None or place.source == COMMAND_LINE:
        return 1, 0, 0
    return 0, place.line, place.column
