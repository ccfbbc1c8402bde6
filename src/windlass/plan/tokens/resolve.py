"""Resolution of `${...}` in commands and variables; late tokens stay as they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import field

from windlass.config.annotations import JsonValue
from windlass.core.dataclass import dataclass
from windlass.core.names import nearest
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.tokens.expressions import ExpressionError, evaluate, is_expression, names_in
from windlass.plan.tokens.shell import Quote, ShellScanner, quote_value
from windlass.plan.tokens.tokens import (
    IN_JOB_TOKENS,
    SUPERVISOR_TOKENS,
    Token,
    hidden_token,
    parse_tokens,
    render_tokens,
)

__all__ = ["LATE_TOKENS", "Scope", "calculated", "fill_tokens", "resolve_text", "text_of_value"]

LATE_TOKENS = ("out", "checkpoints", "code", "run", "job")
"""Tokens known when a job is rendered: paths on its machine, run id, job number."""

_DECLARED = {
    "data": "data: {{{name}: file:PATH}}",
    "params": "params: {{{name}: VALUE}}",
    "tasks": "tasks: {{{name}: {{run: COMMAND}}}}",
}
"""Examples of how a file declares a token, by kind."""

_DASHED = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(?:-[A-Za-z_][A-Za-z0-9_.]*)+\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Values of the tokens that one task may use.

    Attributes:
        values: token names that the planner replaces.
        later: token names to keep: paths, and values that only the job knows.
        blocked: token names of tasks that are not upstream, with their task.
    """

    task: str
    values: Mapping[str, JsonValue] = field(default_factory=dict)
    later: frozenset[str] = frozenset()
    blocked: Mapping[str, str] = field(default_factory=dict)


def text_of_value(value: JsonValue) -> str:
    """Format a parameter as command-line text. Raises ValueError with the reason."""
    if isinstance(value, list | tuple):
        return " ".join(shlex.quote(text_of_value(item)) for item in value)
    if isinstance(value, Mapping):
        raise ValueError("is a mapping")
    if value is None:
        raise ValueError("is null")
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if "\0" in text:
        raise ValueError("contains a NUL character")
    return text


def resolve_text(text: str, scope: Scope, diagnostics: Diagnostics, path: str, *, is_shell: bool = False) -> str:
    """Replace the planner's tokens in `text`; add problems to `diagnostics`, naming `path`.

    Args:
        is_shell: the text is a shell line, so inserted values are quoted as their position requires.
    """
    try:
        pieces = parse_tokens(text)
    except ValueError as error:
        diagnostics.add(path, f"{error} in {path}", "token-literal", "write `$${` for a literal `${`")
        return text
    scanner = ShellScanner() if is_shell else None
    resolved: list[str | Token] = []
    for piece in pieces:
        if isinstance(piece, Token):
            if scanner is not None and scanner.is_escaped:
                message = f"`{piece}` in {path} follows a backslash, which would escape part of its value"
                diagnostics.add(
                    path, message, "unsafe-insert", "write `$${` for a literal `${`, or leave the backslash out"
                )
            elif piece.name not in scope.later:
                resolved.append(_value(piece, scope, diagnostics, path, scanner))
                if scanner is not None:
                    scanner.feed(str(resolved[-1]))
                continue
        resolved.append(piece)
        if scanner is not None:
            scanner.feed(piece) if isinstance(piece, str) else scanner.feed_value()
    hidden = hidden_token(resolved)
    if hidden:
        hint = (
            f"write `${hidden[2:-1]}`, or give the variable of your shell another name"
            if "." not in hidden
            else "rephrase it"
        )
        diagnostics.add(path, f"the literal `{hidden}` in {path} would be replaced in the job", "token-literal", hint)
    try:
        return render_tokens(resolved)
    except ValueError as error:
        diagnostics.add(
            path, f"{error} in {path}", "token-literal", "put something between them, such as quotes or a `/`"
        )
        return text


def _value(token: Token, scope: Scope, diagnostics: Diagnostics, path: str, scanner: ShellScanner | None) -> str:
    if token.name in scope.values:
        value = scope.values[token.name]
    elif _is_calculated(token.name, scope):
        value = calculated(token, scope, diagnostics, path)
    else:
        diagnostics.add(path, *_unknown(token, scope, path, is_shell=scanner is not None))
        return ""
    try:
        if scanner is None:
            return text_of_value(value)
        if scanner.quote is Quote.BARE and isinstance(value, list | tuple):
            return " ".join(_inserted(text_of_value(item), scanner) for item in value)
        return _inserted(text_of_value(value), scanner)
    except _HazardError as hazard:
        message = f"the value of `{token}` in {path} needs quotes, and they would not protect it: {hazard}"
        hint = 'pass the value through `vars`: vars: {X: "' + str(token) + '"}, and "$X" in the command'
        diagnostics.add(path, message, "unsafe-insert", hint)
    except ValueError as error:
        diagnostics.add(path, f"`{token}` in {path} {error}", "invalid-expression", _usable_hint(token.name, scope))
    return ""


def _is_calculated(text: str, scope: Scope) -> bool:
    """Return whether a token is an expression; `params.learning-rate` is usually a name."""
    return is_expression(text) and not (_DASHED.match(text) and not scope.values.keys() >= set(names_in(text)))


def calculated(token: Token, scope: Scope, diagnostics: Diagnostics, path: str) -> JsonValue:
    """Return the value of an expression (a number or a list), or an empty string after a problem."""
    too_late = [name for name in names_in(token.name) if name in scope.later]
    if too_late:
        message = f"`{token}` in {path} calculates with `{too_late[0]}`, which is known only in the job"
        diagnostics.add(
            path, message, "invalid-expression", "use `${" + too_late[0] + "}` alone, and calculate in the code"
        )
        return ""
    try:
        value = evaluate(token.name, scope.values)
    except ExpressionError as error:
        shell = "; a variable of your shell is written `$${...}`" if path.endswith(".run") else ""
        diagnostics.add(path, f"`{token}` in {path} has no value: {error}", "invalid-expression", error.hint + shell)
        return ""
    return list(value) if isinstance(value, tuple) else value


class _HazardError(Exception):
    """Raised if quotes would not protect a value; its text says why."""


def _inserted(value: str, scanner: ShellScanner) -> str:
    if scanner.hazard and quote_value(value, Quote.BARE) != value:
        raise _HazardError(scanner.hazard)
    return quote_value(value, scanner.quote)


def _usable_hint(name: str, scope: Scope) -> str:
    inner = [other for other in scope.values if other.startswith(name + ".") and "." not in other[len(name) + 1 :]]
    if inner:
        return "use one of its keys: " + ", ".join("${" + other + "}" for other in inner)
    return "a command takes text, numbers, true or false, and lists of them"


def _unknown(token: Token, scope: Scope, path: str, *, is_shell: bool) -> tuple[str, str, str]:
    if token.name in scope.blocked:
        other = scope.blocked[token.name]
        if other == scope.task:
            own = token.name.rpartition(".")[2]
            return f"task `{other}` names itself in `{token}` in {path}", "unknown-token", "write `${" + own + "}`"
        message = f"`{token}` in {path} needs task `{other}`, which `{scope.task}` does not wait for"
        return message, "unknown-token", f"add `after: {other}` to tasks.{scope.task}"
    close = nearest(token.name, [*scope.values, *scope.later, *scope.blocked])
    message = f"unknown token `{token}` in {path}"
    if close:
        return message, "unknown-token", "did you mean `${" + close + "}`?"
    kind, _, name = token.name.partition(".")
    if kind in _DECLARED and name:
        return message, "unknown-token", f"declare it: `{_DECLARED[kind].format(name=name.partition('.')[0])}`"
    if is_shell:
        return message, "unknown-token", f"for the shell's own variable write `$${{{token.name}}}`"
    return (
        message,
        "unknown-token",
        "the tokens are: " + ", ".join("${" + name + "}" for name in [*scope.values, *sorted(scope.later)]),
    )


def fill_tokens(text: str, values: Mapping[str, str], *, is_shell: bool = False) -> str:
    """Replace the late tokens in a plan's text and undo `$${`; tokens for the job stay as they are.

    Raises:
        KeyError: a token has no value.
        ValueError: a value needs quotes, but the shell syntax around it is not understood.
    """
    scanner = ShellScanner()
    filled = ""
    for piece in parse_tokens(text):
        if isinstance(piece, str):
            filled += piece
            scanner.feed(piece)
            continue
        if is_shell and scanner.is_escaped:
            raise ValueError(f"`{piece}` follows a backslash, which would escape part of its value")
        if piece.name in (*IN_JOB_TOKENS, *SUPERVISOR_TOKENS):
            filled += str(piece)
            scanner.feed_value()
            continue
        try:
            value = _inserted(values[piece.name], scanner) if is_shell else values[piece.name]
        except _HazardError as hazard:
            message = (
                f"`{piece}` is `{values[piece.name]}`, which needs quotes, and they would not protect it: {hazard}"
            )
            raise ValueError(message) from None
        filled += value
        scanner.feed(value)
    return filled
