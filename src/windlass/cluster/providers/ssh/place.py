"""Place of hosts that exist, as the client sees it."""

from __future__ import annotations

from pathlib import Path

from windlass.backends.site_shell import SiteShell, SshShell
from windlass.cluster.config import ClusterConfig, SshPlace
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.providers.ssh.provider import SshProvider

__all__ = ["open_place", "shell_of"]


def open_place(config: ClusterConfig, *, cluster: str, folder: Path, archive: Path) -> MachinePlace:
    """Return the place of a cluster's file; connects to nothing."""
    settings = config.place.ssh
    assert settings is not None
    provider = SshProvider(settings.hosts, lambda name: shell_of(name, settings), archive)

    def host(machine: Machine) -> NodeHost:
        return NodeHost(shell_of(machine.choice.zone, settings), cluster)

    return MachinePlace(provider=provider, host=host)


def shell_of(name: str, settings: SshPlace) -> SiteShell:
    """Return a shell on a host; what the file states takes precedence over ssh's own settings."""
    options: dict[str, str] = {}
    if settings.user:
        options["User"] = settings.user
    if settings.key:
        options |= {"IdentityFile": str(Path(settings.key).expanduser()), "IdentitiesOnly": "yes"}
    if settings.port is not None:
        options["Port"] = str(settings.port)
    if settings.proxy:
        options["ProxyCommand"] = settings.proxy
    return SshShell(name, options=options)
