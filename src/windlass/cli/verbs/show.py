"""`windlass show`: one run, with everything a person asks first."""

from __future__ import annotations

import json

import click

from windlass.cli.finding import found_run
from windlass.cli.run_page import run_data, run_page
from windlass.cli.screen import emit, emit_json
from windlass.cli.verb import json_option, run_argument, verb

__all__ = ["show_command"]


@verb("windlass show last", "windlass show hello-7hq2mx4p --json", "windlass show last --provenance", name="show")
@run_argument()
@click.option("--provenance", is_flag=True, help="Print the record of what the run was made from, as JSON.")
@json_option
def show_command(run: str, provenance: bool, is_json: bool) -> None:
    """Show one run: state, cause, attempts, outputs, metrics, and what to type next.

    RUN is a run's id, its beginning, at least four of its last letters, the experiment's name for its newest run, or
    `last`.
    """
    folder = found_run(run)
    if provenance:
        emit(json.dumps(folder.provenance(), indent=2, ensure_ascii=False))
        return
    facts = folder.facts()
    if is_json:
        emit_json("windlass.show/1", run_data(folder, facts))
        return
    for line in run_page(folder, facts):
        emit(line)
