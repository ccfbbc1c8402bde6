"""`windlass archive`: export a run to one file, and import it."""

from __future__ import annotations

from pathlib import Path

import click

from windlass.cli.finding import found_run
from windlass.cli.screen import emit_json, emit_page, tell
from windlass.cli.verb import Family, examples_page, json_option, run_argument, verb
from windlass.core.phrases import count, size
from windlass.launcher.run import Run
from windlass.runs.home import Home

__all__ = ["archive_command"]


@click.group(
    cls=Family,
    name="archive",
    epilog=examples_page("windlass archive export last -o run.tar.gz", "windlass archive import run.tar.gz"),
)
def archive_command() -> None:
    """Move a run between machines as one file that can be shown, verified and run again."""


@verb(
    "windlass archive export last -o run.tar.gz",
    "windlass archive export hello-7hq2mx4p --checkpoints --data -o hello.tar.zst",
    name="export",
)
@run_argument()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Output file. [default: RUN.tar.gz]")
@click.option("--checkpoints", is_flag=True, help="Include checkpoints.")
@click.option("--data", is_flag=True, help="Include data.")
@click.option("--with-secrets", is_flag=True, help="Export even if files contain values of your secrets.")
@json_option
def export_command(
    *, run: str, output: Path | None, checkpoints: bool, data: bool, with_secrets: bool, is_json: bool
) -> None:
    """Export an ended run to one archive: plan, provenance, journal, logs, outputs and code, with RO-Crate metadata.

    The file is written atomically, and the same run gives the same bytes. Fails if a file of the run contains the value of
    one of your secrets, since a task may write its secrets to its outputs.
    """
    home = Home.default()
    found = Run(found_run(run, home), home)
    log = (lambda line: None) if is_json else tell
    made = found.export(
        output or Path(f"{found.id}.tar.gz"), checkpoints=checkpoints, data=data, with_secrets=with_secrets, log=log
    )
    if is_json:
        content = {"run": found.id, "path": str(made.path), "bytes": made.num_bytes, "sha256": made.sha256}
        emit_json("windlass.archive/1", {**content, "files": made.num_files, "left_out": dict(made.left_out)})
        return
    for path, why in sorted(made.left_out.items()):
        tell(f"note: without {path}: {why}")
    emit_page(f"{made.path}  {count(made.num_files, 'file')}, {size(made.num_bytes)}, sha256:{made.sha256}")


@verb("windlass archive import run.tar.gz", "windlass show last", name="import")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def import_command(file: Path, is_json: bool) -> None:
    """Import a run from an archive under its own id, after verifying every byte.

    It can be shown, verified, compared and run again, but not retried or resumed.
    """
    run = Run.import_archive(file)
    if is_json:
        emit_json("windlass.archive/1", {"run": run.id, "path": str(run.folder.path)})
        return
    tell(f"windlass show {run.id}; windlass rerun {run.id}")
    emit_page(run.id)


for _member in (export_command, import_command):
    archive_command.add_command(_member)
