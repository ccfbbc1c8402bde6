"""`windlass beaker import` and `export`: convert Beaker spec files to experiment files and back without loss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.completion.files import complete_experiment
from windlass.cli.completion.runs import complete_file_or_run
from windlass.cli.screen import emit, printable, tell
from windlass.cli.verb import verb
from windlass.core.errors import PreconditionError

if TYPE_CHECKING:
    from windlass.spec import Experiment

__all__ = ["export_command", "import_command"]


@verb(
    "windlass beaker import spec.yaml > experiment.yaml",
    "windlass beaker import spec.yaml -o experiment.yaml --name ablation",
    name="import",
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file; must not exist.")
@click.option("--name", default="", help="Name of the experiment. Default: from the file name.")
def import_command(file: Path, output: Path | None, name: str) -> None:
    """Convert a Beaker spec (YAML or JSON, v2) to an experiment file.

    Settings without an equivalent are kept under `beaker`, so that `windlass beaker export` restores the original spec.
    Works offline.
    """
    from windlass.compat.spec.importing import experiment_name, to_experiment
    from windlass.compat.spec.reading import read_spec
    from windlass.config.emit import to_yaml  # lazy: after the cheap checks

    spec = read_spec(file)
    experiment = to_experiment(spec.data, name=name or experiment_name(file.stem), source=str(file))
    _put("".join(f"# {line}\n" for line in _heading(file, experiment)) + to_yaml(experiment), output)
    for note in spec.notes:
        tell(f"note: {printable(note)}")
    kept = list(_kept(experiment))
    if kept:
        tell(f"kept for Beaker only: {printable(', '.join(kept))}")


@verb(
    "windlass beaker export experiment.yaml > spec.yaml",
    "windlass beaker export experiment.yaml params.lr=3e-3 --json",
    "windlass beaker export last",
    name="export",
)
@click.argument("source", metavar="FILE|RUN", shell_complete=complete_file_or_run)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_experiment)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file; must not exist.")
@click.option("--json", "is_json", is_flag=True, help="Print the JSON that would be sent (durations in nanoseconds).")
def export_command(source: str, overrides: tuple[str, ...], output: Path | None, is_json: bool) -> None:
    """Convert an experiment file, or the experiment of a run, to a plain Beaker spec.

    Settings that only windlass understands are dropped with a note; settings that cannot be dropped without changing the
    experiment are an error. Works offline.
    """
    from windlass.compat.spec.reading import sent
    from windlass.compat.spec.unsupported_settings import check_export  # lazy: after the cheap checks
    from windlass.compat.spec.writing import from_experiment
    from windlass.config.emit import yaml_of_data

    experiment = _experiment(source, overrides)
    notes = check_export(experiment)
    spec = from_experiment(experiment)
    _put(json.dumps(sent(spec), indent=2, ensure_ascii=False) + "\n" if is_json else yaml_of_data(spec), output)
    for note in notes:
        tell(f"note: {printable(note)}")


def _experiment(source: str, overrides: tuple[str, ...]) -> Experiment:
    """Return the experiment from a file, or from a run as it was planned."""
    from windlass.config.loading import from_data  # lazy: not for a help page
    from windlass.spec.experiment import Experiment
    from windlass.spec.load import load_experiment

    if source.endswith((".yaml", ".yml", ".json")) or "/" in source or Path(source).exists():
        return load_experiment(Path(source), overrides).value
    from windlass.config.value import with_overrides  # lazy: only for a run
    from windlass.runs.home import Home
    from windlass.runs.store import find

    run = find(Home.default(), source)
    planned = from_data(Experiment, run.plan()["experiment"], source=run.id)
    return with_overrides(planned, overrides, source=run.id).value


def _heading(file: Path, experiment: Experiment) -> Iterator[str]:
    """Yield the comment lines of an imported file: the keys that only Beaker reads, and their effect elsewhere."""
    from windlass.plan.beaker.keys import kept_keys  # lazy: not for a help page
    from windlass.plan.site import Site

    yield f"Imported from {file.name!a}, a Beaker spec; `windlass beaker export` converts it back."
    kept = [key for key in kept_keys(experiment, Site(name="another place")) if key.path != "env.image"]
    if kept:
        yield "Only Beaker reads these keys; they override the settings above:"
    for key in kept:
        yield f"  {key.path}={key.said}: {'' if key.is_met else 'refused elsewhere; '}{key.reason}"


def _kept(experiment: Experiment) -> Iterator[str]:
    """Yield the dotted path of each key that is kept for Beaker."""
    places = [("beaker", experiment.beaker)]
    places += [(f"tasks.{name}.beaker", task.beaker) for name, task in experiment.tasks.items()]
    for path, kept in places:
        yield from (f"{path}.{key}" for key in kept)


def _put(text: str, output: Path | None) -> None:
    if output is None:
        emit(text.removesuffix("\n"))
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        hint = "choose another file, or delete this one"
        raise PreconditionError(f"file `{output}` already exists", hint=hint, code="already-exists") from error
    except OSError as error:
        message = f"cannot write `{output}`: {error.strerror}"
        raise PreconditionError(message, hint="choose another file", code="not-writable") from error
    tell(f"wrote {output}")
