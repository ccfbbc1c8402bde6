"""`windlass ps`: runs, the newest first."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from windlass.cli.finding import reconciled
from windlass.cli.moments import as_moment
from windlass.cli.phrases import ago, brief, duration
from windlass.cli.screen import emit, emit_json, paint, printable, table, tell
from windlass.cli.verb import json_option, verb
from windlass.cli.verdict import STATE_STYLES
from windlass.record.state import State
from windlass.runs.home import Home
from windlass.runs.index import Index
from windlass.runs.row import UNKNOWN, Row
from windlass.runs.store import RunFolder

__all__ = ["ps_command"]

_LIMIT = 20
_LIVE = tuple(str(state) for state in State if not state.is_terminal)
_STATES = (*(str(state) for state in State), UNKNOWN)
_NOTE_WIDTH = 60
_SILENT_S = 60.0


@verb("windlass ps", "windlass ps --state failed --since 2d", "windlass ps --all --json", name="ps")
@click.option("-a", "--all", "is_all", is_flag=True, help="All runs, not the newest 20 and those in motion.")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Only these.")
@click.option("--name", default="", help="Only runs of this experiment; `*` and `?` stand for any letters.")
@click.option("--since", metavar="WHEN", callback=as_moment, help="Only runs created since: `2d`, `3h`, `2026-11-21`.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@json_option
def ps_command(
    is_all: bool, states: tuple[str, ...], name: str, since: float, limit: int | None, is_json: bool
) -> None:
    """List runs, the newest first."""
    home = Home.default()
    index = _fresh_index(home)
    most = limit or (0 if is_all else _LIMIT)
    found = index.rows(states=states, name=name, since=since, limit=most + 1 if most else 0)
    shown = found[:most] if most else found
    is_complete = len(shown) == len(found)
    if limit is None and not is_complete:
        live = [state for state in states or _LIVE if state in _LIVE]
        older = index.rows(states=live, name=name, since=since) if live else []
        shown += [row for row in older if row not in shown]
    if is_json:
        emit_json("windlass.ps/1", {"runs": [asdict(row) for row in shown], "is_complete": is_complete})
        return
    _print(shown, home)
    if not is_complete:
        tell(f"the newest {most}; --all shows the others")


def _fresh_index(home: Home) -> Index:
    """The index, after runs in motion were compared with the world."""
    index = Index(home)
    index.refresh()
    live = index.rows(states=_LIVE)
    told: set[str] = set()
    for row in live:
        reconciled(RunFolder(home.runs / row.id), home, told)
    if live:
        index.refresh()
    return index


def _print(rows: list[Row], home: Home) -> None:
    if not rows:
        tell("no runs found; `windlass launch FILE` starts one")
        return
    now = time.time()
    lines = table(("run", "state", "created", "took", "tries", "note"), [_columns(row, home, now) for row in rows])
    emit(paint(lines[0], "bold"))
    for line, row in zip(lines[1:], rows, strict=True):
        style = STATE_STYLES.get(State(row.state)) if row.state != UNKNOWN else None
        emit(line.replace(f" {row.state} ", f" {paint(row.state, style)} ", 1) if style else line)


def _columns(row: Row, home: Home, now: float) -> tuple[str, ...]:
    took = duration((row.ended_at or now) - row.created_at) if row.created_at else ""
    created = ago(row.created_at, now) if row.created_at else ""
    return (
        row.id,
        row.state,
        created,
        took,
        str(row.num_attempts),
        printable(brief(_silence(row, home, now) + _note(row), _NOTE_WIDTH)),
    )


def _silence(row: Row, home: Home, now: float) -> str:
    """How long the site of a run that may go on has not been heard, where that is long."""
    heard = 0.0 if row.is_terminal else RunFolder(home.runs / row.id).heard_at()
    return f"last heard {ago(heard, now)}; " if heard and now - heard > _SILENT_S else ""


def _note(row: Row) -> str:
    """What a person should know first: damage, why it waits, why it ended; else what was changed, or why it runs."""
    return row.note or row.reason or (row.cause if row.cause not in ("", "ok") else "") or row.overrides or row.why
