"""Ray of a node: the options and variables of `ray start`, its folder, its address and its Python."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.supervise.launchers.ray_start import NODE_NAME
from windlass.supervise.node.spec import NodeSpec

__all__ = ["find_python", "free_port", "make_private", "own_address", "ray_environment", "ray_options", "scratch_of"]

_COUNTED = {
    "CPU": "--num-cpus",
    "GPU": "--num-gpus",
    "memory": "--memory",
    "object_store_memory": "--object-store-memory",
}
"""Resources that have an option of their own."""


def ray_options(spec: NodeSpec, scratch: Path, *, address: str, head: str) -> tuple[str, ...]:
    """Return the options of `ray start`: what the file states, and a temporary folder of the node's own."""
    found = [f"--node-name={NODE_NAME}{spec.number}", f"--temp-dir={scratch}", "--disable-usage-stats"]
    found.append(f"--node-ip-address={address}")
    found += [f"{option}={spec.resources[name]:.0f}" for name, option in _COUNTED.items() if name in spec.resources]
    own = {name: count for name, count in spec.resources.items() if name not in _COUNTED}
    if own:
        found.append(f"--resources={json.dumps(own)}")
    if spec.labels:
        found.append("--labels=" + ",".join(f"{key}={value}" for key, value in spec.labels.items()))
    if spec.is_head:
        found += [f"--port={head.rpartition(':')[2]}", "--include-dashboard=false"]
    if spec.is_scaled:
        found.append("--no-monitor")  # the agent starts the autoscaler itself; elsewhere `ray status` needs Ray's own
    return tuple(found)


def ray_environment(environ: Mapping[str, str], spec: NodeSpec) -> dict[str, str]:
    """Return the variables of Ray's processes; everybody who reaches a port of theirs needs the cluster's token."""
    ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": spec.auth_token}
    if spec.instance:
        ours.update(RAY_CLOUD_INSTANCE_ID=spec.instance, RAY_NODE_TYPE_NAME=spec.group)
    if spec.is_scaled:
        ours["RAY_enable_autoscaler_v2"] = "1"
    given = {name: value for name, value in environ.items() if name != "RAY_ADDRESS"}
    return {**given, **ours}


def find_python(spec: NodeSpec, environ: Mapping[str, str]) -> str:
    """Return the path of the user's Python; raises PreconditionError."""
    python = shutil.which(spec.python, path=environ.get("PATH"))
    if python is None:
        message = f"no `{spec.python}` on the PATH of the node"
        raise PreconditionError(message, hint="install it in `setup`, or set `python`", code="setup-failed")
    return python


def scratch_of(token: str) -> Path:
    """Return the folder of Ray's sockets, logs and spilled objects; short, as a socket's path has at most 107 bytes."""
    return Path(tempfile.gettempdir()) / f"windlass-{token[:16]}"


def make_private(path: Path) -> None:
    """Create a folder that only this user can enter; one of another user is an error."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(str(path), 0o700)
    found = os.lstat(str(path))
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PreconditionError(f"{path} belongs to somebody else", hint="remove it", code="not-allowed")


def own_address() -> str:
    """Return this machine's address on the route to other networks; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: an address that no machine has
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
