"""Up and down as the command line does them: plan, question, progress."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.screen import paint, tell
from windlass.core.errors import PreconditionError, SpecError, UsageError, WindlassError

if TYPE_CHECKING:
    from windlass.cluster.config import ClusterConfig
    from windlass.cluster.home import ClusterHome
    from windlass.cluster.loading import ClusterTarget
    from windlass.cluster.places import MachinePlace
    from windlass.runs.home import Home

__all__ = ["archive_of", "bring_target_down", "bring_target_up", "place_of", "with_counts"]


def archive_of(home: Home) -> Path:
    """Return the zipapp of the nodes' agents."""
    from windlass.supervise.archive import ensure_archive  # lazy: here and below, not for a help page

    return ensure_archive(home.cache / "archives")


def place_of(cluster: ClusterHome, config: ClusterConfig, archive: Path) -> MachinePlace:
    """Return the place of a cluster's machines; makes no request."""
    from windlass.cluster.places import open_place

    name = cluster.id if (cluster.path / "id").is_file() else ""
    return open_place(config, cluster=name, folder=cluster.path, archive=archive)


def with_counts(config: ClusterConfig, least: int | None, most: int | None) -> ClusterConfig:
    """Return the settings with other numbers of nodes; Ray's `--min-workers` and `--max-workers`.

    Raises:
        UsageError: the file has not exactly one group of nodes.
    """
    if least is None and most is None:
        return config
    if len(config.groups) != 1:
        option = "--min-workers" if least is not None else "--max-workers"
        names = ", ".join(config.groups) or "none"
        message = f"`{option}` needs one group of nodes, and {config.name} has: {names}"
        raise UsageError(message, hint="set `min` and `max` of the group in the file", code="conflicting-options")
    (name, group), *_ = config.groups.items()
    if group.count is not None:  # a fixed number stays one
        least, most = (most if least is None else least), (least if most is None else most)
    new_least = group.least if least is None else least
    new_most = max(group.most, new_least or 0) if most is None else most
    if (group.least, group.most) == (new_least, new_most):
        return config
    if new_least == new_most:
        changed = replace(group, count=new_least, min=0, max=None)
    else:
        changed = replace(group, count=None, min=new_least, max=new_most)
    return _checked(replace(config, groups={name: changed}))


def _checked(config: ClusterConfig) -> ClusterConfig:
    """Return the settings; raises SpecError if they do not fit together."""
    from windlass.cluster.config import ClusterConfig
    from windlass.config.encode import to_data
    from windlass.config.loading import from_data

    return from_data(ClusterConfig, to_data(config), source="command line")


def bring_target_up(
    home: Home, target: ClusterTarget, config: ClusterConfig, *, yes: bool, line: str, stays: bool = True
) -> ClusterHome:
    """Bring a cluster up after its plan was confirmed; return its folder.

    Args:
        line: the command, for the hint of what to type.
        stays: whether nobody brings it down if that fails.

    Raises:
        PreconditionError: it was not confirmed.
        WindlassError: it is not up as the file says.
    """
    from windlass.cluster.up import begin, bring_up, check_unchanged, name_cost

    archive = archive_of(home)
    for note in target.loaded.notes if target.loaded is not None else ():
        tell(f"note: {note}")
    if target.exists:
        check_unchanged(target.home, config)
    place = place_of(target.home, config, archive)
    if not _is_up(target, config, place):
        _confirm(config, place, yes=yes, line=line)
    found = begin(home, config, archive, report=tell)
    place = place_of(found, config, archive)
    try:
        bring_up(found, config, place, archive=archive, report=tell)
    except WindlassError as error:
        if stays:
            name_cost(error, found, place)
        raise
    return found


def _is_up(target: ClusterTarget, config: ClusterConfig, place: MachinePlace) -> bool:
    """Return whether nothing has to be made: by the journal and, where machines end themselves, the provider's list."""
    from windlass.cluster.machine import GONE
    from windlass.cluster.providers.protocol import ThrottledError, UncertainError

    if not target.exists:
        return False
    state = target.home.state()
    if state.is_closed or state.wanted != "up" or state.open_intents or target.home.config() != config:
        return False
    wanted = {"head": 1, **{name: group.least for name, group in config.groups.items()}}
    if not place.provider.is_rented:
        return all(len(state.living(name)) >= least for name, least in wanted.items())
    try:
        listed = place.provider.list_machines(target.home.id)
    except (UncertainError, ThrottledError):
        return False
    return any(each.group == "head" and each.state not in GONE for each in listed)


def _confirm(config: ClusterConfig, place: MachinePlace, *, yes: bool, line: str) -> None:
    """Print the plan, and ask."""
    from windlass.cli.render.cluster import plan_lines
    from windlass.cluster.plan import missing_files, plan_up

    plan = plan_up(config, place.provider)
    for row in plan_lines(config, plan):
        tell(row)
    refused = plan.problems if plan.is_rented else missing_files(config)
    if refused:
        raise SpecError(refused)
    for problem in plan.problems:  # hosts that exist: the others are brought up, and the end names it again
        tell(paint("note: ", "yellow", stream=sys.stderr) + problem.message)
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        message = f"cannot ask to bring {config.name} up without a terminal"
        raise PreconditionError(message, hint=f"`{line} --yes` does it", code="not-confirmed")
    if not click.confirm(f"bring {config.name} up?", err=True):
        raise PreconditionError(
            "nothing was made", hint=f"`{line} --yes` does it without a question", code="not-confirmed"
        )


def bring_target_down(home: Home, cluster: ClusterHome) -> None:
    """End a cluster; returns when nothing of it is left. Idempotent.

    Raises:
        WindlassError: something of it is left.
    """
    from windlass.cluster.up import bring_down

    state = cluster.state()
    if state.is_over:
        tell(f"{cluster.name} is down already")
        return
    config = cluster.config()
    bring_down(cluster, config, place_of(cluster, config, archive_of(home)), report=tell)
    tell(f"{cluster.name} is down")


def cluster_line(verb: str, word: str) -> str:
    """Return a command line for a hint."""
    return f"windlass cluster {verb} {shlex.quote(word)}"
