"""Specification of a node for its agent, and the status that the agent writes: two files in the node's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any

from windlass.core.codec import decode
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.files import write_atomic
from windlass.core.json_text import decode_json

__all__ = ["NODE_FOLDER_VARIABLE", "NODE_VARIABLE", "NodeFolder", "NodeSpec", "NodeStatus"]

NODE_VARIABLE = "WINDLASS_NODE"
"""Variable of all processes of a node's agent; its value is the node's token."""

NODE_FOLDER_VARIABLE = "WINDLASS_NODE_FOLDER"
"""Variable of Ray's processes and commands on a node; its value is the node's folder, where `notice.json` may appear."""

_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class NodeSpec:
    """A node of a cluster.

    Attributes:
        cluster: id of the cluster.
        token: the node's own, by which its processes are found.
        number: 0 for the head; unique in the cluster.
        head: address and port of Ray's head; empty on the head itself, whose agent chooses a free port.
        address: this node's address in the cluster's network; empty: that of the route to other networks.
        python: Python with Ray, a path or a name on the PATH after set-up.
        host_setup: shell commands on the machine, run once in this order, before `setup`.
        setup: shell commands, run once in this order; in the container, if the node has one.
        image: image of the container in which set-up, Ray and commands run; empty: there is no container.
        image_options: further options of `docker run`, each of one or more words.
        image_engine: `docker` or `podman`; empty: the first that responds.
        environment: variables of set-up, Ray and commands.
        resources: what Ray counts, such as `CPU`, `GPU`, `memory`, `object_store_memory` and names of the user's; what
            is not stated is what the machine has.
        labels: labels of Ray's node.
        ttl_s: seconds from the agent's first start to the node's end; None: no limit.
        idle_s: seconds without work after which Ray's autoscaler ends a node; bounds how long the head may be silent.
        auth_token: what Ray's processes of this cluster show each other, and what authenticates nodes to the head's store.
        group: group of the node, as Ray's autoscaler knows it; the head's is `head`.
        instance: the machine's id at its provider; empty: Ray's autoscaler does not know the node.
        store_port: port of the head's store; 0: the head has none.
        store: address and port of the head's store, for nodes that are started from it; empty: there is none.
        ray_port: port of Ray's head, on the head; 0: any that is free.
        shutdown: shell command that ends this machine; empty: only the processes of the node end.
        metadata: service that announces the end of this machine: `aws`, `virtual` or none.
        is_scaled: whether the head runs Ray's autoscaler, with `cluster.yaml` and `code.zip` in its folder.
    """

    cluster: str
    token: str
    number: int
    head: str = ""
    address: str = ""
    python: str = "python3"
    host_setup: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    image: str = ""
    image_options: tuple[str, ...] = ()
    image_engine: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    ttl_s: float | None = None
    idle_s: float | None = None
    auth_token: str = ""
    group: str = ""
    instance: str = ""
    store_port: int = 0
    store: str = ""
    ray_port: int = 0
    shutdown: str = ""
    metadata: str = ""
    is_scaled: bool = False

    @property
    def is_head(self) -> bool:
        """Return whether this node directs Ray."""
        return self.number == 0

    def to_json(self) -> bytes:
        """Return the file's content."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> NodeSpec:
        """Read `to_json`; raises ValueError or TypeError if it is something else."""
        data: dict[str, Any] = decode_json(content)
        lists = {name: tuple(data[name]) for name in ("host_setup", "setup", "image_options")}
        return cls(**{**data, **lists})


@dataclass(frozen=True)
class NodeStatus:
    """State of a node, written by its agent.

    Attributes:
        state: `setup`, `starting`, `ready`, `failed` or `ended`.
        message: what it does, or why it failed.
        code: code of the error, if it failed.
        head: address and port of Ray's head.
        process: the agent, as `core.process.ProcessId`.
        began_s: when the agent first started, on the clock of this boot.
        boot: id of that boot.
        began_at, ready_at, ended_at: seconds since the epoch.
        instance, group: as in the node's spec.
        address: this node's address in the cluster's network.
        notice_at: when the provider takes the machine back, in seconds since the epoch, if it announced that.
    """

    token: str
    state: str
    message: str = ""
    code: str = ""
    head: str = ""
    process: str = ""
    boot: str = ""
    began_s: float = 0.0
    began_at: float = 0.0
    ready_at: float | None = None
    ended_at: float | None = None
    instance: str = ""
    group: str = ""
    address: str = ""
    notice_at: float | None = None

    def to_json(self) -> bytes:
        """Return the file's content."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_data(cls, data: object) -> NodeStatus:
        """Read decoded JSON; fields of other versions are ignored. Raises ValueError or TypeError if it is something else."""
        if not isinstance(data, dict):
            raise TypeError(f"not a status: {data!r:.80}")
        return decode(cls, {each.name: data[each.name] for each in fields(cls) if each.name in data})


@dataclass(frozen=True)
class NodeFolder:
    """Folder of a node: `spec.json`, `status.json`, `lock`, `control/`, `logs/`, `ray/`."""

    path: Path

    def read_spec(self) -> NodeSpec:
        """Return the node's spec.

        Raises:
            PreconditionError: it is missing or damaged.
        """
        try:
            return NodeSpec.from_json(_read(self.path / "spec.json"))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise PreconditionError(f"{self.path}/spec.json: {error}", code="node-damaged") from error

    def read_status(self) -> NodeStatus | None:
        """Return what the agent last wrote; None if it never did."""
        try:
            return NodeStatus.from_data(decode_json(_read(self.path / "status.json")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise PreconditionError(f"{self.path}/status.json: {error}", code="node-damaged") from error

    def write_status(self, status: NodeStatus) -> None:
        """Replace the status."""
        write_atomic(self.path / "status.json", status.to_json())

    def log(self, name: str) -> Path:
        """Return the path of a log."""
        return self.path / "logs" / (name + ".log")

    @property
    def is_stop_requested(self) -> bool:
        """Return whether somebody asked for the node's end."""
        return (self.path / "control" / "stop").exists()

    def request_stop(self) -> None:
        """Ask for the node's end."""
        (self.path / "control").mkdir(exist_ok=True)
        write_atomic(self.path / "control" / "stop", b"")


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError("too large")
    return content
