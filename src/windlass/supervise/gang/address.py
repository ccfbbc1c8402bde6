"""Address at which the other replicas of a gang reach this one."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping

from windlass.core.errors import PreconditionError

__all__ = ["free_port", "own_address", "own_host"]

_SIOCGIFADDR = 0x8915
"""ioctl for the IPv4 address of an interface; source: netdevice(7)."""


def free_port(address: str) -> int:
    """Return an unused port on this machine."""
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


def own_host(environ: Mapping[str, str] = os.environ) -> str:
    """Return this machine's name as its scheduler knows it, or else its host name."""
    return environ.get("SLURMD_NODENAME") or environ.get("BEAKER_NODE_HOSTNAME") or socket.gethostname()


def own_address(interface: str = "") -> str:
    """Return the IPv4 address at which the gang reaches this machine.

    Args:
        interface: name of a network interface, or its beginning (`hsn` finds `hsn0`); if empty, the address of the
            host name, or else the first one that is not loopback.

    Raises:
        PreconditionError: no such interface, or it has no address.
    """
    names = [name for _, name in socket.if_nameindex()]
    if interface:
        wanted = sorted(name for name in names if name.startswith(interface))
        for name in wanted:
            address = _address_of(name)
            if address:
                return address
        raise PreconditionError(
            f"no network interface `{interface}` with an address on {socket.gethostname()}; it has {', '.join(names)}",
            hint="correct net.interface in the site's profile",
            code="no-interface",
        )
    for address in [*_named_addresses(), *(_address_of(name) for name in names)]:
        if address and not address.startswith("127."):
            return address
    return "127.0.0.1"


def _named_addresses() -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    except OSError:
        return []


def _address_of(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        try:
            packed = fcntl.ioctl(channel.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(packed[20:24])
