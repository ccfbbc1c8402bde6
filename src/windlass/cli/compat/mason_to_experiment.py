"""`windlass mason ... --on SITE`: print the experiment or its plan, or launch and follow it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from windlass.cli.screen import emit, emit_page, tell
from windlass.runs.home import Home

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService
    from windlass.compat.mason.account import MasonAccount
    from windlass.compat.mason.arguments import Arguments
    from windlass.compat.mason.reading import MasonLaunch

__all__ = ["account_of", "run_at_site"]


class _SiteAccount:
    """Account at a Beaker site, with the secrets of the site's workspace."""

    is_external = False

    def __init__(self, service: BeakerService, workspace: str) -> None:
        self._service, self._workspace = service, workspace

    def user(self) -> str:
        """Return the name of the user."""
        return self._service.user()

    def secrets(self, workspace: str | None) -> Sequence[str]:
        """Return the names of the secrets in the site's workspace; `workspace` is ignored."""
        del workspace
        return self._service.secrets(self._workspace)


def account_of(arguments: Arguments) -> MasonAccount:
    """Return the account to launch with: Beaker's for a Beaker site, else this machine's user and vault."""
    from windlass.compat.mason.launch import beaker_profile, site_account  # lazy: only for these options

    home = Home.default()
    profile = None if arguments.own.is_offline else beaker_profile(arguments.own.on, home)
    if profile is None:
        return site_account(home, asked=dict(arguments.options.secret).values())
    from windlass.backends.beaker.backend import service_of  # lazy: the client costs half a second

    return _SiteAccount(service_of(profile), profile.beaker.workspace)


def run_at_site(launch: MasonLaunch, *, environ: Mapping[str, str] = os.environ) -> int:
    """Print or run a command line that has `--on`; return the exit code.

    `--emit spec` prints the experiment file and `--emit plan` the plan; neither starts anything.
    """
    from windlass.compat.mason.launch import bring, destination, prepare_at_site  # lazy: imports the planner
    from windlass.launcher.api import launch as start

    if launch.own.emit == "spec":
        from windlass.config.emit import to_yaml  # lazy: only for this option

        converted = bring(launch, destination(launch, Home.default()))
        emit(to_yaml(converted.experiment).rstrip("\n"))
        _tell_notes(converted.notes, launch)
        return 0
    prepared = prepare_at_site(launch, is_dry=launch.own.emit == "plan", environ=environ, log=tell)
    if launch.own.emit == "plan":
        from windlass.plan.page import plan_page  # lazy: only for this option

        emit_page(plan_page(prepared.plan).rstrip("\n"))
        return 0
    run = start(prepared, log=tell)
    tell(f"{run.id}  plan {prepared.plan.plan_hash[:12]}  {run.folder.path}")
    if launch.own.is_detached:
        _tell_notes(prepared.plan.notes, launch)
        emit(run.id)
        tell(f"  windlass logs {run.id} --follow | windlass show {run.id} | windlass stop {run.id}")
        return 0
    from windlass.cli.following import Following, follow_to_verdict  # lazy: not with --detach

    return follow_to_verdict(Following(run.folder, prepared.home))


def _tell_notes(notes: tuple[str, ...], launch: MasonLaunch) -> None:
    """Print the notes that were not printed when the command line was parsed."""
    for note in notes:
        if note not in launch.notes:
            tell(f"  note: {note}")
