"""Check that commands use all parameters, and report unused ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from windlass.config.annotations import JsonValue
from windlass.config.override import parse_override
from windlass.core.errors import Problem, SourcePlace, SpecError
from windlass.core.names import nearest
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.tokens.expressions import is_expression, names_in
from windlass.plan.tokens.tokens import Token, flat_params, parse_tokens
from windlass.spec import Experiment

__all__ = ["check_parameters"]

_PREFIX = "params."
_MAX_LISTED = 8


def check_parameters(experiment: Experiment, overrides: Sequence[str], diagnostics: Diagnostics) -> list[str]:
    """Refuse overrides of unused parameters; return a note on the file's unused parameters."""
    known = flat_params(experiment.params)
    used = {name for text in _texts(experiment) for name in _names(text, known)}
    if not used <= known.keys():
        return []  # a misspelt token is refused elsewhere, and it is unknown which parameter was meant
    overridden = set()
    for override in overrides:
        path, value = parse_override(override)
        if not path.startswith(_PREFIX) or value is None or _is_used(path, used):
            continue
        overridden.add(path)
        place = SourcePlace("command line", excerpt=override)
        message = f"no command or variable uses `{path}`, so this override has no effect"
        diagnostics.take(SpecError([Problem(message, "unknown-name", place, _hint(path, used))]), path)
    unused = [name for name in _leaves(known) if not _is_used(name, used) and name not in overridden]
    rest = f" and {len(unused) - _MAX_LISTED} more" if len(unused) > _MAX_LISTED else ""
    return [f"{', '.join(unused[:_MAX_LISTED])}{rest}: no command or variable uses it"] if unused else []


def _texts(experiment: Experiment) -> Iterator[str]:
    """Yield every string of an experiment in which tokens are replaced."""
    yield from experiment.env.vars.values()
    for source in experiment.data.values():
        yield from (source.build,) if isinstance(source.build, str) else source.build or ()
    for task in experiment.tasks.values():
        yield from (task.run,) if isinstance(task.run, str) else task.run
        yield from task.vars.values()
        for bundle in task.bundles.values():
            yield from (number for number in (bundle.count, bundle.gpus, bundle.cpus) if isinstance(number, str))


def _names(text: str, known: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the parameters that a string names; none if the text is refused elsewhere."""
    try:
        pieces = parse_tokens(text)
    except ValueError:
        return
    for piece in pieces:
        if isinstance(piece, Token):
            is_one = piece.name in known or not is_expression(piece.name)
            names = (piece.name,) if is_one else names_in(piece.name)
            yield from (name for name in names if name.startswith(_PREFIX))


def _is_used(path: str, used: Iterable[str]) -> bool:
    """Return whether a token names this parameter, its parent or one of its parts."""
    return any(f"{path}.".startswith(f"{name}.") or name.startswith(f"{path}.") for name in used)


def _hint(path: str, used: Iterable[str]) -> str:
    close = nearest(path.removeprefix(_PREFIX), [name.removeprefix(_PREFIX) for name in used])
    return (
        f"did you mean `{_PREFIX}{close}`?"
        if close
        else "use it in a command as ${" + path + "}, or leave the override out"
    )


def _leaves(params: Mapping[str, JsonValue]) -> list[str]:
    return [name for name, value in params.items() if not isinstance(value, Mapping) or not value]
