"""`windlass mason ... --on SITE`: print the experiment or its plan, or launch it and follow it to its verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from windlass.cli.screen import emit, emit_page, tell
from windlass.runs.home import Home

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService
    from windlass.compat.mason import MasonAccount, MasonLaunch
    from windlass.compat.mason.arguments import Arguments

__all__ = ["account_of", "run_at_site"]


class _SiteAccount:
    """The account of a site that is Beaker: its secrets are those of the site's workspace."""

    is_external = False

    def __init__(self, service: BeakerService, workspace: str) -> None:
        self._service, self._workspace = service, workspace

    def user(self) -> str:
        """The user's name."""
        return self._service.user()

    def secrets(self, workspace: str | None) -> Sequence[str]:
        """Names of the secrets of the site's workspace, whatever the command line says."""
        del workspace
        return self._service.secrets(self._workspace)


def account_of(arguments: Arguments) -> MasonAccount:
    """Whose launch it is: this machine's user with the vault's secrets; at a site that is Beaker, Beaker is asked."""
    from windlass.compat.mason.launch import beaker_profile, site_account  # lazy: only these options

    home = Home.default()
    profile = None if arguments.own.is_offline else beaker_profile(arguments.own.on, home)
    if profile is None:
        return site_account(home, asked=dict(arguments.options.secret).values())
    from windlass.backends.beaker.backend import service_of  # lazy: the client costs half a second

    return _SiteAccount(service_of(profile), profile.beaker.workspace)


def run_at_site(launch: MasonLaunch, *, environ: Mapping[str, str] = os.environ) -> int:
    """What a command line with `--on` does; returns the exit code.

    `--emit spec` prints the experiment file, `--emit plan` the plan; neither starts anything.
    """
    from windlass.compat.mason.launch import bring, destination, prepare_at_site  # lazy: brings the planner

    if launch.own.emit == "spec":
        from windlass.config import to_yaml  # lazy: only this option

        converted = bring(launch, destination(launch, Home.default()))
        emit(to_yaml(converted.experiment).rstrip("\n"))
        _tell_notes(converted.notes, launch)
        return 0
    prepared = prepare_at_site(launch, is_dry=launch.own.emit == "plan", environ=environ, log=tell)
    if launch.own.emit == "plan":
        from windlass.plan import plan_page  # lazy: only this option

        emit_page(plan_page(prepared.plan).rstrip("\n"))
        return 0
    run = prepared.launch(log=tell)
    tell(f"{run.id}  plan {prepared.plan.plan_hash[:12]}  {run.folder.path}")
    if launch.own.is_detached:
        _tell_notes(prepared.plan.notes, launch)
        emit(run.id)
        tell(f"  windlass logs {run.id} --follow | windlass show {run.id} | windlass stop {run.id}")
        return 0
    from windlass.cli.following import Following, follow_to_verdict  # lazy: not with --detach

    return follow_to_verdict(Following(run.folder, prepared.home))


def _tell_notes(notes: tuple[str, ...], launch: MasonLaunch) -> None:
    """The notes but for those that were told when the command line was read."""
    for note in notes:
        if note not in launch.notes:
            tell(f"  note: {note}")
