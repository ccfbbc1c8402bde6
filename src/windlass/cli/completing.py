"""What a shell may complete: runs, sites, keys and paths of the experiment file. Errors complete nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import click

__all__ = [
    "complete_experiment",
    "complete_places",
    "complete_recipes",
    "complete_runs",
    "complete_sites",
    "experiment_keys",
]

_MAX_RUNS = 200


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of runs that begin so, the newest first, then experiments and `last`."""
    from windlass.runs.home import Home  # lazy: here and below, only a shell that completes needs it
    from windlass.runs.store import experiment_of, run_ids

    try:
        ids = run_ids(Home.default())
    except Exception:  # noqa: BLE001 - a broken home is no reason to print a traceback into somebody's prompt
        return []
    words = dict.fromkeys([*ids, *(experiment_of(run) for run in ids), "last"])
    return [word for word in words if word.startswith(incomplete)][:_MAX_RUNS]


def complete_sites(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Sites that have a profile."""
    from windlass.runs.home import Home  # lazy: see above
    from windlass.sites import site_names

    with contextlib.suppress(Exception):
        return [name for name in site_names(Home.default().path) if name.startswith(incomplete)]
    return []


def complete_places(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Where a run can go: this machine, a site, and behind a slash its partitions."""
    site, slash, partition = incomplete.partition("/")
    if not slash:
        local = ["local"] if "local".startswith(incomplete) else []
        return [*local, *complete_sites(context, parameter, incomplete)]
    from windlass.runs.home import Home  # lazy: see above
    from windlass.sites import find_site

    with contextlib.suppress(Exception):
        names = find_site(site, Home.default().path).partitions
        return [f"{site}/{name}" for name in names if name.startswith(partition)]
    return []


def complete_experiment(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Override paths of the file that was named before: `tasks.train.nodes=`."""
    from windlass.config import override_paths  # lazy: see above
    from windlass.spec import Experiment

    file = context.params.get("file")
    data = _keys_of(Path(file)) if isinstance(file, str) else None
    prefix = incomplete[: len(incomplete) - len(incomplete.lstrip("-~"))]
    wanted = incomplete.removeprefix(prefix)
    return [f"{prefix}{path}=" for path in override_paths(Experiment, data) if path.startswith(wanted)]


def _keys_of(path: Path) -> Mapping[str, object] | None:
    """The file's content in its normal form; None when it cannot be read."""
    from windlass import config, spec  # lazy: see above

    with contextlib.suppress(Exception):
        return config.to_data(spec.load_experiment(path).value)
    return None


@cache
def experiment_keys() -> tuple[str, ...]:
    """The keys at the top of an experiment file."""
    return tuple(_top_level_keys())


def _top_level_keys() -> Iterator[str]:
    from windlass.config import override_paths  # lazy: see above
    from windlass.spec import Experiment

    for path in override_paths(Experiment):
        if "." not in path:
            yield path


def complete_recipes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Recipes that come with windlass and Python and YAML files here; behind one, the paths of its fields."""
    from windlass.train.recipes import SHIPPED  # lazy: see above

    with contextlib.suppress(Exception):
        if context.params.get("file") is None and parameter.name == "file":
            files = [path.name for path in Path().iterdir() if path.suffix in (".py", ".yaml", ".yml")]
            return [name for name in (*SHIPPED, *files) if name.startswith(incomplete)]
        return _recipe_fields(incomplete)
    return []


def _recipe_fields(incomplete: str) -> list[str]:
    from windlass.config import override_paths  # lazy: see above
    from windlass.train.recipe import Recipe

    prefix = incomplete[: len(incomplete) - len(incomplete.lstrip("-~"))]
    wanted = incomplete.removeprefix(prefix)
    return [f"{prefix}{path}=" for path in override_paths(Recipe) if path.startswith(wanted)]
