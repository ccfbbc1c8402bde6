"""`windlass image`: list, show and build container images."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.completion.files import complete_experiment, complete_image
from windlass.cli.screen import emit_json, emit_page, paint, printable, table, tell
from windlass.cli.verb import Family, examples_page, json_option, verb
from windlass.core.phrases import ago, count, local_time, size
from windlass.runs.home import Home

if TYPE_CHECKING:
    from windlass.pin.image.records import ImageRecord

__all__ = ["image_command"]

_SHORT = 12
_NUM_PACKAGES = 20


@click.group(
    cls=Family,
    name="image",
    epilog=examples_page("windlass image build experiment.yaml", "windlass image show HEAD", "windlass image ls"),
)
def image_command() -> None:
    """List, show or build container images.

    An image is built from a commit and used by digest; it can be looked up by commit, tag, digest or run.
    """


@verb("windlass image ls", "windlass image ls --named", "windlass image ls --json", name="ls")
@click.option("--named", is_flag=True, help="List the short names that `env.image` accepts.")
@json_option
def ls_command(named: bool, is_json: bool) -> None:
    """List images built here, with commits, runs and size."""
    from windlass.launcher.stage.image import runs_of  # lazy: here and below, not for a help page
    from windlass.pin.image.records import list_records

    if named:
        _list_catalogue(is_json)
        return
    home = Home.default()
    records = [record for record in list_records(home.cache) if record.commits]
    runs = {record.key: runs_of(record, home) for record in records}
    if is_json:
        emit_json("windlass.images/1", {"images": [_data(record, runs[record.key]) for record in records]})
        return
    if not records:
        tell("no images yet; build one with `windlass image build FILE`")
        return
    rows = [
        (
            record.tags[-1] if record.tags else record.name,
            record.image_id.removeprefix("sha256:")[:_SHORT],
            record.engine,
            ", ".join(commit[:_SHORT] for commit in record.commits[-2:]) + (" ..." if len(record.commits) > 2 else ""),
            str(len(runs[record.key])),
            size(record.size_bytes),
            ago(record.built_at, time.time()),
        )
        for record in records
    ]
    lines = table(("image", "id", "engine", "commits", "runs", "size", "built"), rows)
    emit_page(paint(lines[0], "bold"))
    for line in lines[1:]:
        emit_page(printable(line))


@verb("windlass image show HEAD", "windlass image show windlass/project-main:3f2a91c04b7d", name="show")
@click.argument("image", shell_complete=complete_image)
@click.option("--packages", is_flag=True, help="List all installed packages.")
@json_option
def show_command(image: str, packages: bool, is_json: bool) -> None:
    """Show an image by commit, tag, id, digest, or a run that used it.

    IMAGE may be a revision of the current repository, such as HEAD.
    """
    from windlass.launcher.stage.image import find_image, runs_of

    home = Home.default()
    record = find_image(image, home, Path.cwd())
    runs = runs_of(record, home)
    if is_json:
        emit_json("windlass.image/1", _data(record, runs))
        return
    for line in _lines(record, runs):
        emit_page(printable(line))
    shown = record.packages if packages else record.packages[:_NUM_PACKAGES]
    for package in shown:
        emit_page(f"  {printable(package)}")
    if len(shown) < len(record.packages):
        tell(f"{len(record.packages) - len(shown)} more: --packages")


@verb(
    "windlass image build experiment.yaml",
    "windlass image build experiment.yaml env.image.variant=cu130",
    name="build",
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_experiment)
@click.option("--on", type=click.Choice(["docker", "podman"]), help="Container engine. [default: the first one found]")
@click.option("--snapshot", is_flag=True, help="Build from a snapshot of the dirty tree.")
@json_option
def build_command(file: Path, overrides: tuple[str, ...], on: str | None, snapshot: bool, is_json: bool) -> None:
    """Find, pull or build the image of an experiment file, as a launch would."""
    from windlass.launcher.stage.image import build_image

    pin, built = build_image(file, overrides, on=on or "", snapshot=snapshot, log=tell)
    if is_json:
        data = {"name": pin.name, "key": pin.key, "is_hit": built.is_hit, **built.provenance()}
        emit_json("windlass.image-build/1", data)
        return
    if built.is_hit:
        tell("nothing to build")
    else:
        tell(f"{count(len(built.packages), 'package')}" if built.packages else "its packages are unknown")
    emit_page(built.reference)


def _list_catalogue(is_json: bool) -> None:
    from windlass.pin.image.catalogue import PREFIX, catalogue

    entries = {f"{PREFIX}{name}": entry for name, entry in catalogue().items()}
    if is_json:
        emit_json("windlass.catalogue/1", {"images": {name: asdict(entry) for name, entry in entries.items()}})
        return
    lines = table(("name", "image", "about"), [(name, each.image, each.about) for name, each in entries.items()])
    emit_page(paint(lines[0], "bold"))
    for line in lines[1:]:
        emit_page(line)


def _data(record: ImageRecord, runs: list[str]) -> dict[str, object]:
    return {**asdict(record), "runs": runs}


def _lines(record: ImageRecord, runs: list[str]) -> list[str]:
    built_from = record.dockerfile + (f" ({record.variant})" if record.variant else "")
    bases = [f"{name} {digest}" for name, digest in record.bases.items()]
    rows = [
        ("image", record.name or ", ".join(record.tags)),
        ("id", record.image_id),
        ("digest", f"{record.registry}@{record.digest}" if record.digest and record.registry else record.digest),
        ("engine", f"{record.engine}, {record.platform}, {size(record.size_bytes)}"),
        ("built", local_time(record.built_at) if record.built_at else ""),
        ("dockerfile", built_from),
        *(("base", base) for base in bases),
        *(("commit", commit) for commit in record.commits),
        *(("tag", tag) for tag in record.tags if record.name),
        *(("run", run) for run in runs),
        ("sbom", record.sbom),
        ("packages", str(len(record.packages))),
    ]
    return [f"{name:<12} {value}" for name, value in rows if value]


for _member in (ls_command, show_command, build_command):
    image_command.add_command(_member)
