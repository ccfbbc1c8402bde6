"""`windlass archive`: a run as one file, and back."""

from __future__ import annotations

from pathlib import Path

import click

from windlass.cli.finding import found_run
from windlass.cli.screen import emit_json, emit_page, tell
from windlass.cli.verb import Family, examples_page, json_option, run_argument, verb
from windlass.core.phrases import count, size
from windlass.launch.run import Run
from windlass.runs.home import Home

__all__ = ["archive_command"]


@click.group(
    cls=Family,
    name="archive",
    epilog=examples_page("windlass archive export last -o run.tar.gz", "windlass archive import run.tar.gz"),
)
def archive_command() -> None:
    """Carry a run to another machine, or away: one file that can be shown, verified and run again."""


@verb(
    "windlass archive export last -o run.tar.gz",
    "windlass archive export hello-7hq2mx4p --checkpoints --data -o hello.tar.zst",
    name="export",
)
@run_argument()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file; default: RUN.tar.gz here.")
@click.option("--checkpoints", is_flag=True, help="Take its checkpoints in too.")
@click.option("--data", is_flag=True, help="Take its data in too.")
@click.option("--with-secrets", is_flag=True, help="Write it although values of your secrets are in its files.")
@json_option
def export_command(
    *, run: str, output: Path | None, checkpoints: bool, data: bool, with_secrets: bool, is_json: bool
) -> None:
    """Write a run that ended into one archive: plan, provenance, journal, logs, outputs and code, with RO-Crate metadata.

    The file appears whole or not at all, and the same run gives the same bytes. It is refused where a file of the run holds
    the value of one of your secrets: a task may write what it was given into its outputs.
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
    """Make the run of an archive a run here, under its own id; every byte is checked first.

    It can be shown, verified, compared and run again. It cannot be retried or resumed: it ran elsewhere.
    """
    run = Run.import_archive(file)
    if is_json:
        emit_json("windlass.archive/1", {"run": run.id, "path": str(run.folder.path)})
        return
    tell(f"windlass show {run.id}; windlass rerun {run.id}")
    emit_page(run.id)


for _member in (export_command, import_command):
    archive_command.add_command(_member)
