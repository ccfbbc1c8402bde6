"""Completion of sites, paths, and the keys of experiments and recipes.

Each function is a click `shell_complete` callback. Errors complete nothing (windlass.cli.completion.shells).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = [
    "beginning",
    "complete_clusters",
    "complete_each",
    "complete_experiment",
    "complete_file",
    "complete_folder",
    "complete_image",
    "complete_partition",
    "complete_places",
    "complete_recipes",
    "complete_secret",
    "complete_sites",
    "complete_words",
    "experiment_keys",
    "override_words",
]


def beginning(words: Iterable[str], incomplete: str) -> list[str]:
    """Return the words that start with `incomplete`."""
    return [word for word in words if word.startswith(incomplete)]


def complete_file(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete files and folders."""
    from click.shell_completion import CompletionItem  # lazy: here and below, only a shell that completes needs it

    return [CompletionItem(incomplete, type="file")]


def complete_folder(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete folders."""
    from click.shell_completion import CompletionItem  # lazy: see above

    return [CompletionItem(incomplete, type="dir")]


def complete_sites(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the sites that have a profile."""
    from windlass.runs.home import Home  # lazy: see above
    from windlass.sites.store import site_names

    return beginning(site_names(Home.default().path), incomplete)


def complete_places(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete where a run can go: this machine, a site, or SITE/PARTITION; for a sweep, also a cluster."""
    site, slash, partition = incomplete.partition("/")
    if not slash:
        places = [*beginning(["local"], incomplete), *complete_sites(context, parameter, incomplete)]
        return places + (_clusters(incomplete) if context.command_path.endswith(" sweep launch") else [])
    return [f"{site}/{name}" for name in beginning(_partitions(site), partition)]


def _clusters(incomplete: str) -> list[str]:
    from windlass.cluster.home import list_clusters  # lazy: see above
    from windlass.runs.home import Home

    return beginning([each.name for each in list_clusters(Home.default())], incomplete)


def complete_clusters(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of clusters."""
    return _clusters(incomplete)


def complete_partition(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the partitions of the site given earlier on the line."""
    return beginning(_partitions(context.params["name"]), incomplete)


def _partitions(site: str) -> Iterable[str]:
    from windlass.runs.home import Home  # lazy: see above
    from windlass.sites.store import find_site

    return find_site(site, Home.default().path).partitions


def complete_secret(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of stored secrets."""
    from windlass.runs.home import Home  # lazy: see above
    from windlass.secrets.lookup import open_secrets

    return beginning(open_secrets(Home.default().path).sources(), incomplete)


def complete_image(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the images built here, by tag or short commit."""
    from windlass.pin.image.records import list_records  # lazy: see above
    from windlass.runs.home import Home

    records = list_records(Home.default().cache)
    words = [*(tag for each in records for tag in each.tags), *(one[:12] for each in records for one in each.commits)]
    return beginning(dict.fromkeys(words), incomplete)


def complete_experiment(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the override paths of the file given earlier on the line, such as `tasks.train.nodes=`."""
    file = context.params.get("file")
    return override_words(_keys_of(Path(file)) if isinstance(file, str | Path) else None, incomplete)


def complete_each(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the value of `--each`, which is an override."""
    return [] if incomplete.startswith("-") else complete_experiment(context, parameter, incomplete)


def override_words(data: Mapping[str, object] | None, incomplete: str) -> list[str]:
    """Complete `a.b=`, `--a.b=` and `~a.b` for the keys of an experiment or, without one, of the schema."""
    from windlass.config.completion import override_paths  # lazy: see above
    from windlass.spec import Experiment

    return _overrides(override_paths(Experiment, data), incomplete)


def _overrides(paths: Iterable[str], incomplete: str) -> list[str]:
    prefix = incomplete[: len(incomplete) - len(incomplete.lstrip("-~"))]
    equals = "" if prefix == "~" else "="
    return [f"{prefix}{path}{equals}" for path in beginning(paths, incomplete.removeprefix(prefix))]


def _keys_of(path: Path) -> Mapping[str, object] | None:
    """Return the normalized content of a file, or None if it cannot be read."""
    from windlass.config.encode import to_data  # lazy: see above
    from windlass.core.errors import WindlassError
    from windlass.spec.load import load_experiment  # lazy: see above

    with contextlib.suppress(WindlassError, OSError):
        return to_data(load_experiment(path).value)
    return None


def complete_words(
    context: click.Context, takes: Mapping[str, Sequence[str] | None], incomplete: str
) -> list[CompletionItem]:
    """Complete a command that parses its own words (`context.params["words"]`), such as mason and gantry.

    Args:
        takes: option to its possible values; empty if any value is allowed, None for a flag.
    """
    from click.shell_completion import CompletionItem  # lazy: see above

    words = context.params["words"]
    if "--" in words:
        return complete_file(context, click.Argument(["command"]), incomplete)
    values = takes.get(words[-1]) if words else None
    if values is None:
        return [CompletionItem(word) for word in beginning(takes, incomplete)]
    if words[-1] == "--on":
        values = complete_places(context, click.Option(["--on"]), incomplete)
    return [CompletionItem(value) for value in beginning(values, incomplete)]


@cache
def experiment_keys() -> tuple[str, ...]:
    """Return the top-level keys of an experiment file."""
    return tuple(_top_level_keys())


def _top_level_keys() -> Iterator[str]:
    from windlass.config.completion import override_paths  # lazy: see above
    from windlass.spec import Experiment

    for path in override_paths(Experiment):
        if "." not in path:
            yield path


def complete_recipes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete shipped recipes and files or, after a recipe, the paths to its fields."""
    from windlass.config.completion import override_paths  # lazy: see above
    from windlass.train.recipe import Recipe
    from windlass.train.recipes.shipped import SHIPPED

    if context.params.get("file") is None and parameter.name == "file":
        files = [path.name for path in Path().iterdir() if path.suffix in (".py", ".yaml", ".yml")]
        return beginning((*SHIPPED, *files), incomplete)
    return _overrides(override_paths(Recipe), incomplete)
