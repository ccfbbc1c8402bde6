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
    index = Index(home)
    index.refresh()
    live = index.rows(states=_LIVE)
    for row in live:
        reconciled(RunFolder(home.runs / row.id), home)
    if live:
        index.refresh()
    found = index.rows(states=states, name=name, since=since)
    shown = _chosen(found, limit=limit, is_all=is_all)
    if is_json:
        emit_json("windlass.ps/1", {"runs": [asdict(row) for row in shown], "num_found": len(found)})
        return
    _print(shown, num_found=len(found))


def _chosen(rows: list[Row], *, limit: int | None, is_all: bool) -> list[Row]:
    if limit is not None:
        return rows[:limit]
    return rows if is_all else [row for number, row in enumerate(rows) if number < _LIMIT or row.state in _LIVE]


def _print(rows: list[Row], *, num_found: int) -> None:
    if not rows:
        tell("no runs" if num_found else "no runs found; `windlass launch FILE` starts one")
        return
    now = time.time()
    lines = table(("run", "state", "created", "took", "tries", "note"), [_columns(row, now) for row in rows])
    emit(paint(lines[0], "bold"))
    for line, row in zip(lines[1:], rows, strict=True):
        style = STATE_STYLES.get(State(row.state)) if row.state != UNKNOWN else None
        emit(line.replace(f" {row.state} ", f" {paint(row.state, style)} ", 1) if style else line)
    if len(rows) < num_found:
        tell(f"{len(rows)} of {num_found} runs; --all shows the others")


def _columns(row: Row, now: float) -> tuple[str, ...]:
    took = duration((row.ended_at or now) - row.created_at) if row.created_at else ""
    created = ago(row.created_at, now) if row.created_at else ""
    return (row.id, row.state, created, took, str(row.num_attempts), printable(brief(_note(row), _NOTE_WIDTH)))


def _note(row: Row) -> str:
    """What a person should know first: damage, why it waits, why it ended; else why it was started."""
    return row.note or row.reason or (row.cause if row.cause not in ("", "ok") else "") or row.why
