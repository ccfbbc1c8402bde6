"""`windlass explain CODE`: meaning and remedy of an error code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import click

from windlass.cli.error_table import GROUPS, ErrorCode, codes, groups, nearest_codes, search
from windlass.cli.screen import emit_json, emit_page, paint
from windlass.cli.verb import json_option, verb
from windlass.core.errors import NotFoundError, UsageError
from windlass.core.phrases import count

__all__ = ["explain_command"]

_SCHEMA = "windlass.explain/2"


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [word for word in (*codes(), *groups(), GROUPS) if word.startswith(incomplete)]


@verb(
    "windlass explain dirty-tree",
    "windlass explain --search memory",
    "windlass explain groups",
    "windlass explain sweeps",
    name="explain",
)
@click.argument("code", required=False, shell_complete=_complete)
@click.option("--search", "words", default="", metavar="WORDS", help="List codes whose texts contain these words.")
@json_option
def explain_command(code: str | None, words: str, is_json: bool) -> None:
    """Explain an error code (the word in brackets at the end of an error) or a run's cause.

    Without CODE, list all codes by group. `groups` lists the groups; the name of a group lists its codes.
    """
    if code is not None and words:
        raise UsageError("a CODE and `--search` are mutually exclusive", hint="give one of them", code="usage")
    if words:
        _list(_found(words), is_json=is_json)
        return
    wanted = (code or "").strip().strip("[]")
    entry = codes().get(wanted)
    if entry is not None:
        _show(entry, is_json=is_json)
    elif wanted == GROUPS:
        _list_groups(is_json=is_json)
    elif not wanted or wanted in groups():
        _list([each for each in codes().values() if wanted in ("", each.group)], is_json=is_json)
    else:
        raise NotFoundError(f"unknown error code `{wanted}`", hint=_hint(wanted), code="unknown-name")


def _show(entry: ErrorCode, *, is_json: bool) -> None:
    if is_json:
        emit_json(_SCHEMA, asdict(entry))
        return
    emit_page(f"{paint(entry.code, 'bold', stream=sys.stdout)} ({groups()[entry.group]})")
    emit_page(f"\n{entry.meaning}\n\nWhat to do: {entry.remedy}")
    if entry.more:
        emit_page()
        for line in entry.more.rstrip("\n").split("\n"):
            emit_page(line)


def _list_groups(*, is_json: bool) -> None:
    sizes = {group: sum(entry.group == group for entry in codes().values()) for group in groups()}
    if is_json:
        content = {group: {"title": title, "codes": sizes[group]} for group, title in groups().items()}
        emit_json(_SCHEMA, {"groups": content})
        return
    width = max(map(len, sizes))
    for group, title in groups().items():
        emit_page(f"{group:<{width}}  {title}: {count(sizes[group], 'code')}")


def _list(entries: Sequence[ErrorCode], *, is_json: bool) -> None:
    if is_json:
        content = {"codes": {entry.code: entry.summary for entry in entries}, "groups": _by_group(entries)}
        emit_json(_SCHEMA, content)
        return
    width = max(len(entry.code) for entry in entries)
    summaries = {entry.code: entry.summary for entry in entries}
    for number, (group, members) in enumerate(_by_group(entries).items()):
        emit_page(("\n" if number else "") + paint(groups()[group], "bold", stream=sys.stdout))
        for code in members:
            emit_page(f"  {code:<{width}}  {summaries[code]}")


def _by_group(entries: Iterable[ErrorCode]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in entries:
        found.setdefault(entry.group, []).append(entry.code)
    return found


def _found(words: str) -> Sequence[ErrorCode]:
    found = search(words)
    if not found:
        message = f"no error code mentions `{words}`"
        raise NotFoundError(message, hint="`windlass explain` lists all codes", code="unknown-name")
    return found


def _hint(wanted: str) -> str:
    near = nearest_codes(wanted)
    if near:
        return f"did you mean {' or '.join(f'`windlass explain {code}`' for code in near)}?"
    found = search(wanted)
    if found:
        return f"`windlass explain --search {wanted}` finds {count(len(found), 'code')}"
    return "`windlass explain` lists all codes"
