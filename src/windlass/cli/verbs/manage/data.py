"""`windlass data`: datasets identified by digest, with movable names."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from windlass.cli.completion.files import beginning, complete_experiment, complete_file, complete_folder
from windlass.cli.planning import PlanFlags, PlanningVerb, planning_options, required_file
from windlass.cli.screen import emit, emit_json, emit_page, table, tell
from windlass.cli.times import as_duration
from windlass.cli.verb import Family, detach_option, examples_page, json_option, verb
from windlass.core.errors import UsageError
from windlass.core.phrases import ago, count, size

if TYPE_CHECKING:
    from windlass.launcher.data import Data
    from windlass.store.data_version import Version

__all__ = ["build_command", "data_command"]


@verb(
    "windlass data build experiment.yaml",
    "windlass data build experiment.yaml tokens --on isambard -d",
    name="build",
    cls=PlanningVerb,
)
@click.argument("file", required=False, type=click.Path(path_type=str), metavar="FILE")
@click.argument("overrides", nargs=-1, metavar="[NAME | OVERRIDE]...", shell_complete=complete_experiment)
@detach_option
@planning_options
@json_option
@click.pass_context
def build_command(
    context: click.Context,
    file: str | None,
    overrides: tuple[str, ...],
    detach: bool,
    flags: PlanFlags,
    is_json: bool,
) -> int:
    """Prepare an experiment's data (`data: {NAME: {build: COMMAND}}`) without running its tasks.

    This is a separate run; a later launch uses the data. Existing data is not built again.
    """
    if "windlass.command" in context.meta:
        raise UsageError("`windlass data build` takes a file, not a command", hint="give a FILE", code="usage")
    path = required_file(context, file)
    names = tuple(word for word in overrides if "=" not in word and not word.startswith(("-", "~")))
    changes = tuple(word for word in overrides if word not in names)
    options = flags.options()
    from windlass.launcher.api import launch  # lazy: after the cheap checks
    from windlass.launcher.prepare import prepare
    from windlass.launcher.stage.prepared_data import builds_alone
    from windlass.spec.load import load_experiment

    loaded = load_experiment(Path(path), changes)
    experiment = builds_alone(loaded.value, names)
    prepared = prepare(experiment, Path(path).absolute().parent, options, origins=loaded.origins, log=tell)
    builds = prepared.plan.pins.builds
    if all(pin.is_hit for pin in builds.values()):
        for pin in builds.values():
            tell(f"{pin.name} exists: sha256:{pin.digest[:12]}, {count(pin.num_files, 'file')}, {size(pin.size_bytes)}")
        if is_json:
            emit_json(
                "windlass.launch/1", {"is_new": False, "builds": {name: pin.digest for name, pin in builds.items()}}
            )
        return 0
    run = launch(prepared, log=tell)
    tell(f"{run.id}  plan {prepared.plan.plan_hash[:12]}  {run.folder.path}")
    code = 0
    if not detach:
        from windlass.cli.following import Following, follow_to_verdict  # lazy: not with -d

        code = follow_to_verdict(Following(run.folder, prepared.home, logs_to_stderr=is_json))
    if is_json:
        from windlass.cli.render.run import run_data  # lazy: only with --json

        emit_json("windlass.launch/1", {"is_new": True, **run_data(run.folder, run.facts)})
    elif detach:
        emit(run.id)
    return code


_SHORT = 12
_EVERY_S = 1.0


@click.group(
    cls=Family,
    name="data",
    epilog=examples_page("windlass data add corpus/ --name corpus", "windlass data push corpus --to s3://bucket/store"),
)
def data_command() -> None:
    """Store datasets by digest: add, ls, show, pull, push, rm, gc; build prepares an experiment's data.

    An experiment refers to a dataset by name (`data: {corpus: store:corpus}`); a launch pins its digest, and jobs read
    ${data.corpus}.
    """


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return beginning((alias.name for alias in _data().local.aliases()), incomplete)


_store_option = click.option(
    "--store",
    default="",
    metavar="URL",
    shell_complete=complete_folder,
    help="Another store: a folder or `s3://bucket/path`.",
)
_name_option = click.option(
    "--name", default="", metavar="NAME", shell_complete=_complete, help="Name for the version; moves an existing name."
)


@verb("windlass data add corpus/ --name corpus", "windlass data add s3://bucket/prefix/ --name raw", name="add")
@click.argument("source", metavar="SOURCE", shell_complete=complete_file)
@_name_option
@json_option
def add_command(source: str, name: str, is_json: bool) -> None:
    """Add a file, a folder or a remote source (s3:, gs:, hf:, http:) as a version, and print its digest."""
    with _Meter("added") as meter:
        version = _data(meter=meter).add(source, name=name)
    _say(version, [name] if name else [], is_json=is_json)


@verb("windlass data ls", "windlass data ls --store s3://bucket/store", name="ls")
@_store_option
@json_option
def ls_command(store: str, is_json: bool) -> None:
    """List versions with their names."""
    found = list(_data(store).ls())
    if is_json:
        emit_json("windlass.data-list/1", {"versions": [_summary(version, names) for version, names in found]})
        return
    if not found:
        tell("no data yet; add some with `windlass data add PATH --name NAME`")
        return
    now = time.time()
    rows = [
        (
            ", ".join(names) or "-",
            version.digest[:_SHORT],
            size(version.size_bytes),
            count(len(version.entries), "file"),
            ago(version.at, now),
            version.source,
        )
        for version, names in sorted(found, key=lambda each: (each.names or ["~"], each.version.at))
    ]
    for line in table(("name", "digest", "size", "files", "made", "source"), rows):
        emit_page(line)


@verb("windlass data show corpus", "windlass data show corpus --files", name="show")
@click.argument("ref", metavar="NAME|DIGEST", shell_complete=_complete)
@click.option("--files", "has_files", is_flag=True, help="List every file with its size and digest.")
@_store_option
@json_option
def show_command(ref: str, has_files: bool, store: str, is_json: bool) -> None:
    """Show one version."""
    data = _data(store)
    version = data.show(ref)
    names = [alias.name for alias in data.store.aliases() if alias.digest == version.digest]
    files = [
        {"path": each.path, "mode": each.mode, "bytes": each.size_bytes, "sha256": each.sha256}
        for each in version.entries
    ]
    if is_json:
        emit_json("windlass.data/1", {**_summary(version, names), "files": files})
        return
    for line in table(("key", "value"), [(key, str(value)) for key, value in _facts(version, names)])[1:]:
        emit_page(line)
    if has_files:
        emit_page()
        rows = [(each.path or version.name, size(each.size_bytes), each.sha256) for each in version.entries]
        for line in table(("path", "size", "sha256"), rows):
            emit_page(line)


@verb("windlass data pull corpus --from s3://bucket/store", name="pull")
@click.argument("ref", metavar="NAME|DIGEST", shell_complete=_complete)
@click.option(
    "--from",
    "url",
    required=True,
    metavar="URL",
    shell_complete=complete_folder,
    help="Source store: `s3://bucket/path`.",
)
@_name_option
@json_option
def pull_command(ref: str, url: str, name: str, is_json: bool) -> None:
    """Download a version from another store; existing files are skipped, and interrupted transfers resume."""
    with _Meter("pulled") as meter:
        version = _data(meter=meter).pull(ref, url=url, name=name)
    _say(version, [name] if name else [], is_json=is_json)


@verb("windlass data push corpus --to s3://bucket/store", name="push")
@click.argument("ref", metavar="NAME|DIGEST", shell_complete=_complete)
@click.option(
    "--to",
    "url",
    required=True,
    metavar="URL",
    shell_complete=complete_folder,
    help="Target store: `s3://bucket/path`.",
)
@_name_option
@json_option
def push_command(ref: str, url: str, name: str, is_json: bool) -> None:
    """Upload a version to another store; existing files are skipped."""
    with _Meter("pushed") as meter:
        version = _data(meter=meter).push(ref, url=url, name=name)
    _say(version, [name] if name else [], is_json=is_json)


@verb("windlass data rm corpus", "windlass data rm 3f2a91c04b77 --force", name="rm")
@click.argument("refs", nargs=-1, required=True, metavar="NAME|DIGEST...", shell_complete=_complete)
@click.option("--force", is_flag=True, help="Remove a version even if a succeeded run needs it.")
@_store_option
def rm_command(refs: tuple[str, ...], force: bool, store: str) -> None:
    """Remove a name or, by digest, a version with its names; `windlass data gc` frees the space."""
    data = _data(store)
    for ref in refs:
        digest = data.rm(ref, force=force)
        tell(
            f"removed {ref}"
            if digest.startswith(ref.removeprefix("sha256:"))
            else f"removed {ref}; {digest[:_SHORT]} has no name now"
        )


@verb("windlass data gc --dry-run", "windlass data gc --older-than 1d", name="gc")
@click.option(
    "--older-than", callback=as_duration, metavar="TIME", help="Only versions not used for TIME. [default: 7d]"
)
@click.option(
    "--drop-pinned",
    is_flag=True,
    help="Also versions that only succeeded runs need.",
)
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@_store_option
@json_option
def gc_command(older_than: float | None, drop_pinned: bool, dry_run: bool, store: str, is_json: bool) -> None:
    """Remove unnamed versions that no run needs and that were not used recently, and unreferenced objects."""
    given = {} if older_than is None else {"older_than_s": older_than}
    done = _data(store).gc(drop_pinned=drop_pinned, dry_run=dry_run, **given)
    if is_json:
        content = {
            "is_dry_run": dry_run,
            "removed": list(done.versions),
            "kept": dict(done.kept),
            "num_objects": done.num_objects,
            "bytes": done.num_bytes,
        }
        emit_json("windlass.data-gc/1", content)
        return
    for digest in done.versions:
        emit_page(f"{'would remove' if dry_run else 'removed':<13} {digest[:_SHORT]}")
    for digest, why in done.kept.items():
        emit_page(f"{'kept':<13} {digest[:_SHORT]}  {why}")
    tell(f"{'would free' if dry_run else 'freed'} {size(done.num_bytes)}, {count(done.num_objects, 'object')}")


def _data(store: str = "", *, meter: _Meter | None = None) -> Data:
    from windlass.launcher.data import Data  # lazy: not for a help page

    return Data(store) if meter is None else Data(store, progress=meter.advance)


def _say(version: Version, names: list[str], *, is_json: bool) -> None:
    if is_json:
        emit_json("windlass.data/1", _summary(version, names))
    else:
        emit_page(f"sha256:{version.digest}")


def _summary(version: Version, names: list[str]) -> dict[str, object]:
    return {
        "digest": version.digest,
        "names": names,
        "kind": version.kind,
        "bytes": version.size_bytes,
        "num_files": len(version.entries),
        "source": version.source,
        "at": version.at,
    }


def _facts(version: Version, names: list[str]) -> list[tuple[str, object]]:
    return [
        ("digest", f"sha256:{version.digest}"),
        ("names", ", ".join(names) or "-"),
        ("kind", version.kind),
        ("size", f"{size(version.size_bytes)} in {count(len(version.entries), 'file')}"),
        ("source", version.source),
    ]


class _Meter:
    """Progress of a transfer, printed every second on a terminal, and at the end."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._mutex = threading.Lock()
        self._num_bytes = 0
        self._began = self._told = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if self._num_bytes:
            passed = max(1e-3, time.monotonic() - self._began)
            tell(f"{self._verb} {size(self._num_bytes)} at {size(self._num_bytes / passed)}/s")

    def advance(self, num_bytes: int) -> None:
        """Count transferred bytes; thread-safe."""
        with self._mutex:
            self._num_bytes += num_bytes
            now = time.monotonic()
            if now - self._told >= _EVERY_S and sys.stderr.isatty():
                self._told = now
                tell(f"{size(self._num_bytes)} so far, {size(self._num_bytes / (now - self._began))}/s")


for _member in (
    build_command,
    add_command,
    ls_command,
    show_command,
    pull_command,
    push_command,
    rm_command,
    gc_command,
):
    data_command.add_command(_member)
