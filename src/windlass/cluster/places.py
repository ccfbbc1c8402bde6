"""Place of a cluster's machines as the client sees it: the provider, and how a machine is reached.

The folders of `providers` are imported when a file names them, so that no command imports the library of another cloud.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from windlass.cluster.config import ClusterConfig
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.providers.protocol import Provider
from windlass.core.dataclass import dataclass

__all__ = ["MachinePlace", "open_place", "open_provider"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlace:
    """A provider, and what the client and a machine's agent must know of it.

    Attributes:
        host: how the client reaches a machine.
        shutdown: shell command with which a machine ends itself; empty: it cannot.
        metadata: where a machine hears that it is taken back: `aws`, `virtual` or nothing.
        close: removes what the place has for a cluster besides machines; called once the cluster has none.
        head_files: further files of the head's folder, by name, for `open_provider` there.
    """

    provider: Provider
    host: Callable[[Machine], NodeHost]
    shutdown: str = ""
    metadata: str = ""
    close: Callable[[], None] = lambda: None
    head_files: Mapping[str, bytes] = field(default_factory=dict)


def open_place(config: ClusterConfig, *, cluster: str, folder: Path, archive: Path) -> MachinePlace:
    """Return the place of a cluster's file; makes no request.

    Args:
        cluster: id of the cluster.
        folder: folder of the cluster on this machine, for keys and other files of the provider.
        archive: the zipapp of the nodes' agents.
    """
    if config.place.kind == "ssh":
        from windlass.cluster.providers.ssh import place as ssh  # lazy: here and below, only the provider in use

        return ssh.open_place(config, cluster=cluster, folder=folder, archive=archive)
    if config.place.kind == "aws":
        from windlass.cluster.providers.aws import place as aws

        return aws.open_place(config, cluster=cluster, folder=folder, archive=archive)
    from windlass.cluster.providers.virtual import place as virtual

    return virtual.open_place(config, cluster=cluster, folder=folder, archive=archive)


def open_provider(config: ClusterConfig, *, cluster: str, folder: Path) -> Provider:
    """Return the provider of a cluster whose machines are rented; works on the head too, and makes no request.

    Args:
        folder: for files of the provider.
    """
    if config.place.kind == "aws":
        from windlass.cluster.providers.aws import provider as aws  # lazy: boto3 costs a second

        return aws.open_provider(config, cluster=cluster, folder=folder)
    from windlass.cluster.providers.virtual import provider as virtual  # lazy: only for this place

    return virtual.open_provider(config, cluster=cluster, folder=folder)
