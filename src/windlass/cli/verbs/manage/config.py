"""`windlass config`: the JSON Schema of experiment files."""

from __future__ import annotations

import json

import click

from windlass.cli.screen import emit
from windlass.cli.verb import Family, examples_page, verb

__all__ = ["config_command"]


@click.group(cls=Family, name="config", epilog=examples_page("windlass config schema > experiment.schema.json"))
def config_command() -> None:
    """Print the JSON Schema of experiment files, for editors."""


@verb("windlass config schema > experiment.schema.json", name="schema")
def schema_command() -> None:
    """Print the JSON Schema of experiment files (draft 2020-12)."""
    from windlass.config.schema_export import json_schema  # lazy: imports the parser
    from windlass.spec import Experiment

    emit(json.dumps(json_schema(Experiment), indent=2))


config_command.add_command(schema_command)
