"""Network of a virtual cloud: one bridge, and a cable to each machine.

A bridge is chosen under a lock of this machine and is marked with its cloud's folder, so that several clouds never
share one, and a bridge whose server died before it was marked is known as nobody's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.core.files import lock

__all__ = ["CloudNetwork", "claim_network", "has_network", "remove_network"]

_LOCK = Path("/run/windlass-virtual.lock")
_LINKS = Path("/sys/class/net")
_NUM_NETWORKS = 256


class CloudNetwork:
    """A bridge and its addresses.

    Args:
        number: from `claim_network`.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def bridge(self) -> str:
        """Return the bridge's name."""
        return f"wlv{self.number}"

    @property
    def prefix(self) -> str:
        """Return the first three bytes of its addresses."""
        return f"10.178.{self.number}"

    @property
    def address(self) -> str:
        """Return this machine's address in it."""
        return f"{self.prefix}.1"

    def cable(self, number: int) -> str:
        """Return the name of this machine's end of a machine's cable."""
        return f"{self.bridge}-{number}"

    def connect(self, number: int, init: int) -> None:
        """Give a machine its cable and its address.

        Args:
            init: its process 1.
        """
        cable = self.cable(number)
        self.disconnect(number)
        _ip(
            f"link add {cable} type veth peer name eth0 netns {init}",
            f"link set {cable} master {self.bridge}",
            f"link set {cable} up",
        )
        _ip(
            "link set lo up",
            f"addr add {self.prefix}.{number}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {self.address}",
            inside=init,
        )

    def disconnect(self, number: int) -> None:
        """Remove a machine's cable; idempotent."""
        cable = self.cable(number)
        if (_LINKS / cable).exists():
            subprocess.run(["ip", "link", "del", cable], capture_output=True, check=False)  # it goes with its machine


def claim_network(folder: Path, known: int | None) -> CloudNetwork:
    """Return a cloud's network, made if it is not there; idempotent.

    Args:
        folder: the cloud's, with which the bridge is marked.
        known: number of the network that the cloud's living machines are in.

    Raises:
        PreconditionError: all networks are taken (`no-capacity`).
    """
    with _locked():
        if known is not None and _mark(f"wlv{known}") == str(folder):
            return CloudNetwork(known)
        taken = _ip("-oneline -4 address show")
        for number in range(_NUM_NETWORKS):
            network = CloudNetwork(number)
            if (_LINKS / network.bridge).exists():
                if _mark(network.bridge):
                    continue
                _ip(f"link del {network.bridge}")  # its server died before it was marked
            elif f" {network.prefix}." in taken:
                continue
            _ip(
                f"link add {network.bridge} type bridge",
                f"link set {network.bridge} alias {folder}",
                f"addr add {network.address}/24 dev {network.bridge}",
                f"link set {network.bridge} up",
            )
            return network
    message = f"all {_NUM_NETWORKS} networks of virtual clusters are taken"
    raise PreconditionError(message, hint="`ip link show type bridge` names their clusters", code="no-capacity")


def has_network(folder: Path) -> bool:
    """Return whether a cloud has a bridge."""
    return any(_mark(path.name) == str(folder) for path in _LINKS.glob("wlv*"))


def remove_network(folder: Path) -> None:
    """Remove the bridges and cables of a cloud; idempotent."""
    with _locked():
        for bridge in [path.name for path in _LINKS.glob("wlv*") if "-" not in path.name]:
            if _mark(bridge) == str(folder):
                for cable in _LINKS.glob(f"{bridge}-*"):
                    subprocess.run(["ip", "link", "del", cable.name], capture_output=True, check=False)
                _ip(f"link del {bridge}")


@contextmanager
def _locked() -> Iterator[None]:
    with lock(_LOCK, timeout_s=60.0):
        yield


def _mark(bridge: str) -> str:
    """Return the mark of a bridge; empty: none, or no such bridge."""
    try:
        return (_LINKS / bridge / "ifalias").read_text().strip()
    except OSError:
        return ""


def _ip(*lines: str, inside: int | None = None) -> str:
    """Run lines of ip(8), in a machine's network if one is given; stops at the first that fails."""
    enter = [] if inside is None else ["nsenter", "-t", str(inside), "-n"]
    for words in (["ip", *line.split()] for line in lines) if len(lines) == 1 else [["ip", "-batch", "-"]]:
        text = "" if len(lines) == 1 else "\n".join(lines) + "\n"
        done = subprocess.run([*enter, *words], input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["no message"]
            raise PreconditionError(
                f"`ip {lines[0]}`: {said[0]}", hint="run it yourself as root", code="provider-failed"
            )
    return done.stdout
