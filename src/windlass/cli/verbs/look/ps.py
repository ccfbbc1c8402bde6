"""`windlass ps`: list runs, newest first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from windlass.cli.completion.runs import complete_experiments
from windlass.cli.finding import looked_at, reconciled
from windlass.cli.render.verdict import STATE_STYLES
from windlass.cli.screen import emit_json, emit_page, page_width, paint, printable, table, tell
from windlass.cli.times import as_moment
from windlass.cli.verb import json_option, verb
from windlass.core.errors import UsageError
from windlass.core.phrases import ago, brief, count, duration
from windlass.record.state import State
from windlass.runs.home import Home
from windlass.runs.index import Index
from windlass.runs.row import UNKNOWN, RunRow
from windlass.runs.store import RunFolder

__all__ = ["ps_command"]

_LIMIT = 20
_LIVE = tuple(str(state) for state in State if not state.is_terminal)
_STATES = (*(str(state) for state in State), UNKNOWN)
_NOTE_WIDTH = 60
_LEAST_NOTE_WIDTH = 12
_HEADER = ("run", "state", "site", "shape", "progress", "created", "took", "tries", "note")
_LEFT_OUT = ("tries", "took", "created", "shape", "site")
"""Columns to leave out on a narrow terminal, in this order."""
_SILENT_S = 60.0


@verb(
    "windlass ps",
    "windlass ps hello",
    "windlass ps --reconcile",
    "windlass ps --state failed --since 2d",
    "windlass ps --all --json",
    name="ps",
)
@click.argument("experiment", default="", metavar="[EXPERIMENT]", shell_complete=complete_experiments)
@click.option("-a", "--all", "is_all", is_flag=True, help="All runs, not only active ones and the newest 20.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="Only runs in this state; repeatable."
)
@click.option(
    "--name",
    default="",
    shell_complete=complete_experiments,
    help="Only runs of this experiment; `*` and `?` are wildcards.",
)
@click.option(
    "--since", metavar="WHEN", callback=as_moment, help="Only runs created since then: `2d`, `3h`, `2026-11-21`."
)
@click.option("--limit", type=click.IntRange(min=1), help="At most N runs.")
@click.option(
    "--reconcile",
    "is_reconciling",
    is_flag=True,
    help="Reconcile all runs first: record lost jobs, submit the next jobs, cancel leftovers.",
)
@click.option("--trials", "has_trials", is_flag=True, help="One line per trial instead of one per sweep.")
@json_option
def ps_command(
    experiment: str,
    is_all: bool,
    states: tuple[str, ...],
    name: str,
    since: float,
    limit: int | None,
    is_reconciling: bool,
    has_trials: bool,
    is_json: bool,
) -> None:
    """List runs, newest first, of one EXPERIMENT or all.

    `*` and `?` in EXPERIMENT are wildcards. Changes nothing without --reconcile, which cron may call. Runs that need an
    action are marked. On a narrow terminal notes are shortened, then tries, took, created, shape and site are left out,
    in this order.
    """
    if experiment and name not in ("", experiment):
        message = f"both `{experiment}` and `--name {name}` name an experiment"
        raise UsageError(message, hint=f"windlass ps {experiment}", code="usage")
    name = name or experiment
    home = Home.default()
    index = Index(home)
    index.refresh()
    needs = _reconcile(index, home) if is_reconciling else _look(index, home)
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
    if not has_trials and any(row.sweep for row in found):
        lines = _folded(index.rows(states=states, name=name, since=since))
        is_complete = not most or len(lines) <= most
        lines = lines[:most] if most else lines
    else:
        lines = [[row] for row in shown]
    _print(lines, home, needs)
    if not is_complete:
        tell(f"showing the newest {most}; --all shows the rest")
    if needs and not is_reconciling:
        verb = "needs" if len(needs) == 1 else "need"
        tell(f"{len(needs)} of them {verb} an action: `windlass show RUN` shows it, `windlass ps --reconcile` does it")


def _reconcile(index: Index, home: Home) -> dict[str, str]:
    """Reconcile all runs that are active or have leftovers; return, by id, what each run still needs."""
    reported: set[str] = set()
    for row in index.rows():
        if not row.is_terminal or row.may_be_queued:
            for line in reconciled(RunFolder(home.runs / row.id), home, reported):
                tell(f"{row.id}: {printable(line)}")
    index.refresh()
    return _look(index, home)


def _look(index: Index, home: Home) -> dict[str, str]:
    """Check active runs without changing them; return, by id, what each run needs."""
    reported: set[str] = set()
    found = {row.id: looked_at(RunFolder(home.runs / row.id), home, reported) for row in index.rows(states=_LIVE)}
    index.refresh()  # with new records from remote sites
    needs = {run: "; ".join(one.what for one in each.pending) for run, each in found.items() if each.pending}
    suspended = {run: next(iter(each.suspended.values())) for run, each in found.items() if each.suspended}
    return {**suspended, **needs}


def _folded(rows: Sequence[RunRow]) -> list[list[RunRow]]:
    """Group the trials of each sweep, in the place of its newest trial."""
    lines: dict[str, list[RunRow]] = {}
    for row in rows:
        lines.setdefault(f"sweep {row.sweep}" if row.sweep else row.id, []).append(row)
    return list(lines.values())


def _print(lines: Sequence[Sequence[RunRow]], home: Home, needs: Mapping[str, str]) -> None:
    if not lines:
        tell("no runs found; start one with `windlass launch FILE`")
        return
    now = time.time()
    cells = [
        _columns(rows[0], home, now, needs.get(rows[0].id, "")) if len(rows) == 1 else _trials(rows, now)
        for rows in lines
    ]
    texts = _fitted(cells, page_width())
    emit_page(paint(texts[0], "bold"))
    for text, rows in zip(texts[1:], lines, strict=True):
        style = STATE_STYLES.get(State(rows[0].state)) if len(rows) == 1 and rows[0].state != UNKNOWN else None
        emit_page(text.replace(f" {rows[0].state} ", f" {paint(rows[0].state, style)} ", 1) if style else text)


def _fitted(cells: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return table lines of at most `width` columns, by shortening notes, then leaving out columns; 0 disables this."""
    needed = min(_LEAST_NOTE_WIDTH, max(len("note"), *(len(row[-1]) for row in cells)))
    for number in range(len(_LEFT_OUT) + 1) if width else ():
        kept = [at for at, name in enumerate(_HEADER[:-1]) if name not in _LEFT_OUT[:number]]
        rows = [[row[at] for at in kept] for row in cells]
        header = [_HEADER[at] for at in kept]
        room = width - len(table([*header, "|"], [[*row, "|"] for row in rows])[0]) + 1
        if room >= needed:
            notes = [brief(row[-1], room) for row in cells]
            return table([*header, _HEADER[-1]], [[*row, note] for row, note in zip(rows, notes, strict=True)])
    return table(_HEADER, cells)


def _columns(row: RunRow, home: Home, now: float, need: str) -> tuple[str, ...]:
    took = duration((row.ended_at or now) - row.created_at) if row.created_at else ""
    created = ago(row.created_at, now) if row.created_at else ""
    return (
        row.id,
        row.state,
        row.site,
        row.shape,
        row.progress,
        created,
        took,
        str(row.num_attempts),
        printable(brief(_silence(row, home, now) + (need or _note(row)), _NOTE_WIDTH)),
    )


def _trials(rows: Sequence[RunRow], now: float) -> tuple[str, ...]:
    """Return one row for the trials of a sweep: counts by state, shared values, and the command that lists them."""
    states = Counter(row.state for row in rows)
    is_over = all(row.is_terminal for row in rows)
    began = min(row.created_at for row in rows)
    sites = list(dict.fromkeys(row.site for row in rows))
    ended = sum(row.is_terminal for row in rows)
    return (
        rows[0].sweep,
        states.most_common(1)[0][0] if len(states) == 1 else "sweep",
        sites[0] if len(sites) == 1 else count(len(sites), "site"),
        rows[0].shape,
        f"{ended}/{count(len(rows), 'trial')}",
        ago(began, now),
        duration((max(row.ended_at for row in rows) if is_over else now) - began),
        str(sum(row.num_attempts for row in rows)),
        ", ".join(f"{number} {state}" for state, number in states.items()) + f"; windlass sweep show {rows[0].sweep}",
    )


def _silence(row: RunRow, home: Home, now: float) -> str:
    """Return the time since the last contact with the site of an active run, if that was long ago."""
    heard = 0.0 if row.is_terminal else RunFolder(home.runs / row.id).heard_at()
    return f"last contact {ago(heard, now)}; " if heard and now - heard > _SILENT_S else ""


def _note(row: RunRow) -> str:
    """Return the most important note on a run: damage, why it waits or ended, else its overrides."""
    return row.note or row.reason or (row.cause if row.cause not in ("", "ok") else "") or row.overrides or row.why
