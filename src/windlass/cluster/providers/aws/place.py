"""Place of EC2 instances as the client sees it: ssh with the cluster's key."""

from __future__ import annotations

from pathlib import Path

from windlass.backends.site_shell import SiteShell, SshShell
from windlass.cluster.config import AwsPlace, ClusterConfig
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.providers.aws.network import key_path
from windlass.cluster.providers.aws.provider import open_provider

__all__ = ["SHUTDOWN", "open_place", "shell_of"]

SHUTDOWN = "sudo -n shutdown -h now || shutdown -h now"
"""Set-up and agents of workers run as root, those of the head as the user of the image, who may use sudo."""


def open_place(config: ClusterConfig, *, cluster: str, folder: Path, archive: Path) -> MachinePlace:
    """Return the place of a cluster's file; makes no request."""
    settings = config.place.aws
    assert settings is not None
    provider = open_provider(config, cluster=cluster, folder=folder)

    def host(machine: Machine) -> NodeHost:
        return NodeHost(shell_of(machine, settings, folder), cluster)

    return MachinePlace(provider=provider, host=host, shutdown=SHUTDOWN, metadata="aws", close=provider.remove)


def shell_of(machine: Machine, settings: AwsPlace, folder: Path) -> SiteShell:
    """Return a shell on an instance.

    Its host key is accepted at the first connection, into a file of the cluster: addresses are used again by others.
    """
    options = {
        "IdentityFile": str(key_path(settings, folder)),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": str(folder / "known_hosts"),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "accept-new",
        "HostKeyAlias": machine.id,
    }
    if settings.proxy:
        options["ProxyCommand"] = settings.proxy
    address = machine.address if settings.is_private else machine.public_address or machine.address
    return SshShell(f"{settings.user}@{address}", options=options)
