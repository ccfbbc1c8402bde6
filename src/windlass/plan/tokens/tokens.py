"""Grammar of `${...}`: splits text into literals and tokens, and renders them back.

`${name.of.token}` is a token, `$${` is a literal `${`, and every other `$` (`$HOME`, `$(date)`) is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from windlass.core.dataclass import dataclass

if TYPE_CHECKING:
    from windlass.config.annotations import JsonValue

__all__ = [
    "IN_JOB_TOKENS",
    "SUPERVISOR_TOKENS",
    "Token",
    "flat_params",
    "hidden_token",
    "parse_tokens",
    "render_tokens",
]

IN_JOB_TOKENS = ("leader.address", "leader.port", "rank", "attempt", "hostfile")
"""Tokens known when an attempt starts, which the supervisor replaces."""

SUPERVISOR_TOKENS = (
    *("supervisor.python", "supervisor.archive", "supervisor.scratch"),
    *("supervisor.host", "supervisor.leader_host"),
)
"""Further such tokens, in the words that windlass adds around a command."""

_HIDDEN = re.compile(r"\$\{(?:" + "|".join(re.escape(name) for name in (*IN_JOB_TOKENS, *SUPERVISOR_TOKENS)) + r")\}")


@dataclass(frozen=True, slots=True)
class Token:
    """Token: the text between `${` and `}`."""

    name: str

    def __str__(self) -> str:
        return "${" + self.name + "}"


def parse_tokens(text: str) -> tuple[str | Token, ...]:
    """Split text into literals and tokens. Raises ValueError if a `${` is not closed."""
    pieces: list[str | Token] = []
    literal, position = "", 0
    while (dollar := text.find("$", position)) >= 0:
        literal += text[position:dollar]
        if text.startswith("$${", dollar):
            literal, position = literal + "${", dollar + 3
        elif text.startswith("${", dollar):
            end = text.find("}", dollar)
            if end < 0:
                raise ValueError(f"`{text[dollar : dollar + 20]}` has no closing `}}`")
            pieces += (
                [literal, Token(text[dollar + 2 : end].strip())] if literal else [Token(text[dollar + 2 : end].strip())]
            )
            literal, position = "", end + 1
        else:
            literal, position = literal + "$", dollar + 1
    literal += text[position:]
    return (*pieces, literal) if literal else tuple(pieces)


def render_tokens(pieces: Iterable[str | Token]) -> str:
    """Return the text that `parse_tokens` would split into these pieces. Raises ValueError if there is none."""
    text, literal = "", ""
    for piece in pieces:
        if isinstance(piece, str):
            literal += piece
            continue
        if literal.endswith("$"):
            raise ValueError(f"a `$` is directly before `{piece}`")
        text, literal = text + literal.replace("${", "$${") + str(piece), ""
    return text + literal.replace("${", "$${")


def hidden_token(pieces: Iterable[str | Token]) -> str:
    """Return a literal that the job would treat as a token (`${rank}`), or an empty string."""
    match = _HIDDEN.search("".join("\0" if isinstance(piece, Token) else piece for piece in pieces))
    return match.group() if match else ""


def flat_params(params: Mapping[str, JsonValue], prefix: str = "params") -> dict[str, JsonValue]:
    """Flatten `{"model": {"dim": 8}}` into the names `params.model` and `params.model.dim`."""
    flat: dict[str, JsonValue] = {}
    for key, value in params.items():
        flat[f"{prefix}.{key}"] = value
        if isinstance(value, Mapping):
            flat.update(flat_params(value, f"{prefix}.{key}"))
    return flat
