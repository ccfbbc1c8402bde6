"""Part of `cluster: ray` that runs in the user's Python: starts this node's Ray processes and reports nodes that join.

    <user's python> windlass.pyz ray-start SPEC

Ray's command line code starts them in this process, so that importing Ray overlaps with the start of other nodes.
Events are JSON lines on a descriptor: `version` of Ray, `nodes` (rank: [GPUs, CPUs], all that joined), `started`, `error`.
Ray's modules are imported by name at run time, since code in the archive must not depend on a package.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable

from windlass.core.dataclass import dataclass
from windlass.core.json_text import decode_json
from windlass.core.process import descendants
from windlass.supervise.launchers.ray_dashboard import leave_dashboard_out

__all__ = ["NODE_NAME", "StartSpec", "ray_start_main"]

NODE_NAME = "windlass-"
"""Prefix of each node's name in Ray's table, before the rank."""

_POLL_S = 0.03
_SAY = Callable[..., None]


@dataclass(frozen=True)
class StartSpec:
    """Parameters for starting Ray on one node.

    Attributes:
        rank: 0 is the head.
        address: address of the head, `<address>:<port>`.
        options: for `ray start`, after `--head` or `--address`.
        num_nodes: number of nodes that the head counts; 0: it counts none. Workers count nothing.
        fd: descriptor for events.
    """

    rank: int
    address: str
    options: tuple[str, ...]
    num_nodes: int
    fd: int

    def to_text(self) -> str:
        """Return the parameters, without secrets, as one command-line word."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> StartSpec:
        """Decode `to_text`."""
        data = decode_json(text)
        return cls(**{**data, "options": tuple(data["options"])})


def ray_start_main(arguments: Sequence[str]) -> int:
    """Start this node's Ray processes; on the head, block until all counted nodes have joined."""
    spec = StartSpec.from_text(arguments[0])
    say = _event_writer(spec.fd)
    try:
        scripts: Any = importlib.import_module("ray.scripts.scripts")
    except ImportError as error:
        say(error=f"`{error.name or error}` is not installed", cause="setup-failed")
        return 1
    version = getattr(importlib.import_module("ray"), "__version__", "")
    if version:
        say(version=version)
    # If grpc is installed, Ray's client server would open a port; `ray start` has no option against it.
    scripts.get_ray_client_dependency_error = lambda: "disabled by windlass"
    _extend_node_wait()
    counting = threading.Thread(target=_count, args=(spec, say), daemon=True)
    if spec.rank == 0:
        leave_dashboard_out(spec.address)
        counting.start()
    else:
        _wait_for_head(spec)
        _keep_folder(spec)
    try:
        scripts.cli(_command(spec, has_label_words=hasattr(scripts, "parse_node_labels_string")), standalone_mode=False)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every reason is reported
        say(error=f"`ray start` failed: {_first_line(error)}", cause="start-failed")
        return 1
    say(started=_raylets(), authenticates=authenticates())
    if spec.rank == 0:
        counting.join()
    return 0


def authenticates() -> bool:
    """Return whether the installed Ray knows tokens; versions before 2.52 ignore them and accept every connection."""
    try:
        return importlib.util.find_spec("ray._private.authentication") is not None
    except ImportError:
        return False


def _extend_node_wait() -> None:
    """Make `ray start` wait for this node in Ray's table for as long as its raylet lives.

    Ray itself gives up after 30 s, which is too short on a busy machine.
    """
    try:
        services: Any = importlib.import_module("ray._private.services")
        find = services.get_node
    except (ImportError, AttributeError):
        return  # private names: other versions of Ray keep their time limit

    def get_node(*where: object, **options: object) -> object:
        while True:
            try:
                return find(*where, **options)
            except RuntimeError:  # not in the table
                if not _raylets():
                    raise
            time.sleep(_POLL_S)

    services.get_node = get_node


def _keep_folder(spec: StartSpec) -> None:
    """Give a worker the temporary folder of its options.

    Versions such as 2.40 drop the option and use the path of the head's folder, which nobody here made private or removes.
    """
    folders = [option.partition("=")[2] for option in spec.options if option.startswith("--temp-dir=")]
    try:
        parameters: Any = importlib.import_module("ray._private.parameter").RayParams
    except (ImportError, AttributeError):
        return  # private names, as above
    initialize = parameters.__init__

    def initialize_with_folder(self: Any, *words: object, **options: object) -> None:
        initialize(self, *words, **options)
        if folders and self.temp_dir is None:
            self.temp_dir = folders[0]

    parameters.__init__ = initialize_with_folder


def _event_writer(fd: int) -> _SAY:
    lock = threading.Lock()

    def say(**message: object) -> None:
        with lock:
            os.write(fd, json.dumps(message).encode() + b"\n")

    return say


def _command(spec: StartSpec, *, has_label_words: bool = True) -> list[str]:
    options = [each if has_label_words else _old_labels(each) for each in spec.options]
    return ["start", f"--address={spec.address}" if spec.rank else "--head", *options]


def _old_labels(option: str) -> str:
    """Return an option as versions of Ray read it that have labels only as JSON, such as 2.40."""
    name, _, words = option.partition("=")
    if name != "--labels":
        return option
    pairs = (word.partition("=") for word in words.split(","))
    return f"--labels={json.dumps({key: value for key, _, value in pairs})}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _raylets() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if _name(pid) == "raylet"]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _wait_for_head(spec: StartSpec) -> None:
    """Wait until the head is in Ray's table; `ray start` itself would poll only every two seconds."""
    _wait_for_port(spec.address)
    fetch = _table(spec.address)
    while 0 not in fetch():
        time.sleep(_POLL_S)


def _count(spec: StartSpec, say: _SAY) -> None:
    _wait_for_port(spec.address)
    fetch = _table(spec.address)
    known: dict[int, list[float]] = {}
    while len(known) < spec.num_nodes:
        found = fetch()
        if found != known:
            known = found
            say(nodes=known)
        time.sleep(_POLL_S)


def _wait_for_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=2.0).close()
        except OSError:
            time.sleep(_POLL_S)
        else:
            return


def _table(address: str) -> Callable[[], dict[int, list[float]]]:
    """Return a function that reads the resources of live nodes from Ray's node table, by rank.

    Ray's own commands read the table this way, without becoming a driver. A Ray without such a client (its module is
    private) is asked as a driver, with its public functions.
    """
    try:
        client = importlib.import_module("ray._raylet").GcsClient(address=address)
        fetch = client.get_all_node_info
    except (ImportError, AttributeError, TypeError):
        return _table_of_driver(address)
    unavailable = importlib.import_module("ray.exceptions").RpcError

    def look() -> dict[int, list[float]]:
        try:
            nodes = fetch(timeout=5).values()
        except unavailable:
            return {}
        return _by_rank((node.node_name, node.state == 0, node.resources_total) for node in nodes)

    return look


def _table_of_driver(address: str) -> Callable[[], dict[int, list[float]]]:
    ray: Any = importlib.import_module("ray")

    def look() -> dict[int, list[float]]:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        return _by_rank((node["NodeName"], node["Alive"], node["Resources"]) for node in ray.nodes())

    return look


def _by_rank(nodes: Any) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for name, is_alive, resources in nodes:
        if is_alive and name.startswith(NODE_NAME):
            had: Mapping[str, float] = dict(resources)
            found[int(name[len(NODE_NAME) :])] = [had.get("GPU", 0.0), had.get("CPU", 0.0)]
    return found
