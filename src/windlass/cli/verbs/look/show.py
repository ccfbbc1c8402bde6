"""`windlass show`: details of one run."""

from __future__ import annotations

import click

from windlass.cli.finding import looked_at, reconciled
from windlass.cli.render.run import run_data, run_page
from windlass.cli.screen import emit, emit_json, emit_page, tell
from windlass.cli.verb import json_option, run_argument, verb
from windlass.core.errors import NotFoundError, UsageError
from windlass.record.state import RunFacts
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, find

__all__ = ["show_command"]


@verb(
    "windlass show last",
    "windlass show hello-7hq2mx4p --json",
    "windlass show last --reconcile",
    "windlass show last --provenance",
    "windlass show last --provenance --graph svg > chain.svg",
    name="show",
)
@run_argument()
@click.option("--provenance", is_flag=True, help="Show the run's inputs and outputs with their digests.")
@click.option(
    "--graph",
    type=click.Choice(["mermaid", "svg"]),
    help="Print the provenance as a graph: Mermaid text or SVG.",
)
@click.option(
    "--reconcile",
    "is_reconciling",
    is_flag=True,
    help="First reconcile the run: record a lost job, submit the next, cancel leftovers.",
)
@json_option
def show_command(run: str, provenance: bool, graph: str | None, is_reconciling: bool, is_json: bool) -> None:
    """Show one run: state, cause, attempts, outputs, metrics and next command.

    RUN is a run's id, its beginning, at least four of its last letters, the experiment's name for its newest run, or
    `last`. Changes nothing without --reconcile; actions that the run needs are shown with the command to type.
    """
    home = Home.default()
    folder = find(home, run)
    if is_reconciling:
        for line in reconciled(folder, home):
            tell(f"{folder.id}: {line}")
    if provenance or graph:
        _show_provenance(folder, graph, is_json=is_json)
        return
    found = looked_at(folder, home)
    facts = folder.facts()
    waits = {**_waits(folder, facts), **found.suspended}
    if is_json:
        emit_json("windlass.show/1", run_data(folder, facts, waits, found.pending))
        return
    for line in run_page(folder, facts, waits, found.pending):
        emit_page(line)


def _show_provenance(run: RunFolder, graph: str | None, *, is_json: bool) -> None:
    from windlass.runs.provenance.graph import provenance_graph  # lazy: here and below, only this option

    if graph and is_json:
        message = "`--graph` and `--json` are mutually exclusive"
        raise UsageError(message, hint="use one of them: --json has the graph's nodes and edges", code="usage")
    chain = provenance_graph(run)
    if graph == "mermaid":
        from windlass.runs.provenance.mermaid import mermaid

        emit(mermaid(chain).rstrip("\n"))
    elif graph == "svg":
        from windlass.runs.provenance.svg import svg

        emit(svg(chain).rstrip("\n"))
    elif is_json:
        emit_json("windlass.provenance/1", {"run": run.id, **chain.to_data(), "record": _record(run)})
    else:
        from windlass.cli.render.provenance import provenance_page

        for line in provenance_page(chain):
            emit_page(line)


def _record(run: RunFolder) -> dict[str, object] | None:
    """Return the launch record, or None if the launch failed before writing it."""
    try:
        return run.provenance()
    except NotFoundError:
        return None


def _waits(run: RunFolder, facts: RunFacts) -> dict[str, str]:
    """Return the reason why each task's job is queued or suspended; empty if the scheduler cannot be asked."""
    if not any(task.newest_job and task.is_between for task in facts.tasks.values()):
        return {}
    from windlass.launcher.reconcile.waiting import why_waiting  # lazy: most runs are not queued

    return why_waiting(run, facts)
