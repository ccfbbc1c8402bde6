"""moto's server, which gives the addresses of terminated instances to new ones once a subnet has no fresh ones.

moto itself keeps them for ever, so a subnet of 64 addresses would be enough for 60 instances of a whole session.
"""

from __future__ import annotations

import sys

from moto.ec2.models.instances import Instance
from moto.ec2.models.subnets import Subnet
from moto.server import main

__all__: list[str] = []

_fresh = Subnet.get_available_subnet_ip


def _available(subnet: Subnet, instance: Instance) -> str:
    try:
        return str(_fresh(subnet, instance))
    except StopIteration:
        taken = subnet._subnet_ips  # in the order in which they were given
        oldest = next((ip for ip, holder in taken.items() if _has_ended(holder)), None)
        if oldest is None:
            raise
        del taken[oldest]
        taken[oldest] = instance
        return oldest


def _has_ended(holder: object) -> bool:
    return isinstance(holder, Instance) and holder._state.name == "terminated"  # mount targets have addresses too


Subnet.get_available_subnet_ip = _available  # type: ignore[assignment, method-assign]

if __name__ == "__main__":
    main(sys.argv[1:])
