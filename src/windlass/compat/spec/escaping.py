"""Conversion of text between Beaker's specs and experiment files, in which `${` starts a token."""

from __future__ import annotations

from windlass.core.errors import Problem, SourcePlace, SpecError
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.tokens.resolve import Scope, resolve_text
from windlass.plan.tokens.scope import scope_of
from windlass.plan.tokens.tokens import Token, parse_tokens, render_tokens
from windlass.spec import Experiment
from windlass.supervise.job import TaskShape

__all__ = ["escaped", "plain_text"]


def escaped(text: str) -> str:
    """Return the text with every `${` escaped."""
    return render_tokens((text,))


def plain_text(text: str, path: str, experiment: Experiment, task: str, *, is_shell: bool = False) -> str:
    """Return the text as a process outside windlass receives it, with parameters filled in.

    Raises:
        SpecError: it contains a token that is defined only in a windlass run.
    """
    if "${" not in text:
        return text
    pieces = _pieces(text, path)
    if any(isinstance(piece, Token) for piece in pieces):
        diagnostics = Diagnostics({"": SourcePlace(path)})
        pieces = _pieces(resolve_text(text, _scope(experiment, task), diagnostics, path, is_shell=is_shell), path)
        diagnostics.raise_all()
    for piece in pieces:
        if isinstance(piece, Token):
            message = f"`{piece}` in {path} is defined only in a windlass run"
            hint = "write its value, or launch at a Beaker site: windlass launch FILE --on SITE"
            raise SpecError([Problem(message, "unsupported-setting", SourcePlace(path), hint)])
    return "".join(str(piece) for piece in pieces)


def _scope(experiment: Experiment, name: str) -> Scope:
    task = experiment.tasks[name]
    shape = TaskShape(nodes=task.num_nodes, gpus=task.num_gpus, cpus=task.cpus or 0.0, memory_bytes=task.memory or 0)
    return scope_of(name, experiment, shape)


def _pieces(text: str, path: str) -> tuple[str | Token, ...]:
    try:
        return parse_tokens(text)
    except ValueError as error:
        raise SpecError(
            [Problem(f"{path}: {error}", "invalid-value", SourcePlace(path), "write `$${` for `${`")]
        ) from error
