"""`windlass explain CODE`: the page of an error, from docs/errors."""

from __future__ import annotations

import sys

import click

from windlass.cli.error_pages import codes, page_of, summary_of
from windlass.cli.screen import emit, emit_json, paint, table
from windlass.cli.verb import json_option, verb
from windlass.core.errors import NotFoundError
from windlass.core.names import nearest

__all__ = ["explain_command"]


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [code for code in codes() if code.startswith(incomplete)]


@verb("windlass explain dirty-tree", "windlass explain", name="explain")
@click.argument("code", required=False, shell_complete=_complete)
@json_option
def explain_command(code: str | None, is_json: bool) -> None:
    """Explain an error code, the word in brackets at the end of an error.

    Without CODE: every code with its meaning.
    """
    if code is None:
        _list(is_json=is_json)
        return
    wanted = code.strip().strip("[]").removesuffix(".md")
    if wanted not in codes():
        close = nearest(wanted, codes())
        hint = f"did you mean `windlass explain {close}`?" if close else "`windlass explain` lists them"
        raise NotFoundError(f"no error code `{wanted}`", hint=hint, code="unknown-code")
    text = page_of(wanted)
    if is_json:
        emit_json("windlass.explain/1", {"code": wanted, "text": text})
        return
    for line in text.rstrip("\n").split("\n"):
        emit(paint(line, "bold", stream=sys.stdout) if line.startswith("#") else line)


def _list(*, is_json: bool) -> None:
    meanings = {code: summary_of(code) for code in codes()}
    if is_json:
        emit_json("windlass.explain/1", {"codes": meanings})
        return
    for line in table(("code", "meaning"), list(meanings.items())):
        emit(line)
