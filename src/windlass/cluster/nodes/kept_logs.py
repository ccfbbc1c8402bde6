"""Logs of rented nodes that failed, kept on this machine, since theirs end themselves after a while."""

from __future__ import annotations

from pathlib import Path

from windlass.cluster.config import HEAD
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.core.files import write_atomic

__all__ = ["NODE_LOGS", "find_kept_logs", "keep_logs"]

NODE_LOGS = ("agent", "setup", "ray", "monitor", "monitor-errors")
"""Logs of a node, in the order in which they are printed."""

_TAIL_BYTES = 256 << 10


def keep_logs(home: ClusterHome, host: NodeHost, machine: Machine) -> None:
    """Fetch the ends of a node's logs, 256 KiB of each at most, into the cluster's folder.

    Raises:
        UnreachableError: no connection.
    """
    folder = home.logs / machine.id
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in NODE_LOGS:
        path = f"{host.folder(machine.token)}/logs/{name}.log"
        answer = host.shell.run_bytes(["tail", "-c", str(_TAIL_BYTES), path])
        if answer.code == 0:  # else there is none: a worker has no monitor
            write_atomic(folder / f"{name}.log", answer.out, mode=0o600, is_durable=False)


def find_kept_logs(home: ClusterHome, word: str) -> list[Path]:
    """Return the logs that were kept of a node, by its machine's id or `head`, the last one; none if none were."""
    names = [word]
    if word == HEAD:
        heads = [each for each in home.state().nodes.values() if each.group == HEAD]
        names = [each.id for each in sorted(heads, key=lambda each: -each.born_at)]
    known = {each.name for each in home.logs.iterdir()} if home.logs.is_dir() else set()
    folder = next((home.logs / name for name in names if name in known), None)
    paths = [] if folder is None else [folder / f"{name}.log" for name in NODE_LOGS]
    return [path for path in paths if path.is_file()]
