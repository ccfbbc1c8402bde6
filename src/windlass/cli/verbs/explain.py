"""`windlass explain CODE`: the page of an error, from docs/errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from windlass.cli.error_pages import codes, groups, page_of, search, summary_of
from windlass.cli.screen import emit_json, emit_page, paint
from windlass.cli.verb import json_option, verb
from windlass.core.errors import NotFoundError, UsageError
from windlass.core.names import nearest
from windlass.core.phrases import count

__all__ = ["explain_command"]


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [code for code in codes() if code.startswith(incomplete)]


@verb("windlass explain dirty-tree", "windlass explain --search memory", "windlass explain", name="explain")
@click.argument("code", required=False, shell_complete=_complete)
@click.option("--search", "words", default="", metavar="WORDS", help="List the codes whose pages have these words.")
@json_option
def explain_command(code: str | None, words: str, is_json: bool) -> None:
    """Explain an error code, the word in brackets at the end of an error, or why a run ended.

    Without CODE: every code with its meaning, by group.
    """
    if code is not None and words:
        raise UsageError("a CODE and `--search` exclude each other", hint="give one of them", code="usage")
    if code is None:
        _list(search(words) if words else codes(), words, is_json=is_json)
        return
    wanted = code.strip().strip("[]").removesuffix(".md")
    if wanted not in codes():
        raise NotFoundError(f"no error code `{wanted}`", hint=_hint(wanted), code="unknown-code")
    text = page_of(wanted)
    if is_json:
        emit_json("windlass.explain/1", {"code": wanted, "text": text})
        return
    for line in text.rstrip("\n").split("\n"):
        emit_page(paint(line, "bold", stream=sys.stdout) if line.startswith("#") else line)


def _hint(wanted: str) -> str:
    close = nearest(wanted, codes())
    if close:
        return f"did you mean `windlass explain {close}`?"
    found = search(wanted)
    return (
        f"{count(len(found), 'page')} with that word: `windlass explain --search {wanted}`"
        if found
        else "`windlass explain` lists them"
    )


def _list(found: Sequence[str], words: str, *, is_json: bool) -> None:
    shown = {group: [code for code in members if code in found] for group, members in groups().items()}
    shown = {group: members for group, members in shown.items() if members}
    if is_json:
        emit_json("windlass.explain/1", {"codes": {code: summary_of(code) for code in found}, "groups": shown})
        return
    if not shown:
        raise NotFoundError(f"no page has `{words}`", hint="`windlass explain` lists all codes", code="unknown-code")
    width = max(len(code) for code in found)
    for number, (group, members) in enumerate(shown.items()):
        emit_page(("\n" if number else "") + paint(group, "bold", stream=sys.stdout))
        for code in members:
            emit_page(f"  {code:<{width}}  {summary_of(code)}")
