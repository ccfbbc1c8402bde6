"""Records of a virtual cloud: its machines and its network, in one file that outlives its server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from windlass.cluster.machine import Choice, Machine, MachineState
from windlass.core.dataclass import dataclass
from windlass.core.files import write_atomic
from windlass.core.json_text import decode_json

__all__ = ["CloudFolder", "CloudRecords", "MachineRecord", "machine_of"]

_MAX_ENDED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """A machine.

    Attributes:
        count: how many machines its request asked for.
        number: last byte of its address.
        init: its process 1 as this machine sees it, a `ProcessId`; empty until it has booted.
        slow_s: how much longer it boots, as a fault.
        cut_at: when its power is cut, after the notice.
    """

    id: str
    token: str
    cluster: str
    group: str
    count: int
    type: str
    zone: str
    is_spot: bool
    price_per_hour: float | None
    number: int
    state: MachineState
    born_at: float
    ended_at: float | None = None
    why: str = ""
    deadline_at: float | None = None
    init: str = ""
    slow_s: float = 0.0
    notice: str = ""
    notice_at: float | None = None
    cut_at: float | None = None

    @property
    def is_living(self) -> bool:
        """Return whether it is charged for."""
        return self.state != "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudRecords:
    """All machines in the order of their births, and the network.

    Attributes:
        network: number of the network, its bridge and its addresses; None: not chosen yet.
        port: port of the server.
    """

    network: int | None = None
    port: int = 0
    machines: Mapping[str, MachineRecord] = field(default_factory=dict)

    @property
    def living(self) -> list[MachineRecord]:
        """Return the machines that have not ended."""
        return [each for each in self.machines.values() if each.is_living]

    def with_machines(self, machines: Iterable[MachineRecord]) -> CloudRecords:
        """Return the records with new or changed machines; the oldest ended ones are forgotten."""
        found = {**self.machines, **{each.id: each for each in machines}}
        ended = [each.id for each in found.values() if not each.is_living]
        for old in ended[: max(0, len(ended) - _MAX_ENDED)]:
            del found[old]
        return replace(self, machines=found)


@dataclass(frozen=True, slots=True)
class CloudFolder:
    """Folder of a virtual cloud, `virtual` in a cluster's folder on the machine that has the namespaces."""

    path: Path

    @property
    def lock(self) -> Path:
        """Return the file that the server holds a lock on."""
        return self.path / "lock"

    @property
    def log(self) -> Path:
        """Return the server's log."""
        return self.path / "server.log"

    @property
    def access(self) -> Path:
        """Return the file with the server's address and token: what a client needs."""
        return self.path.parent / "virtual.json"

    def machine(self, machine: str) -> Path:
        """Return a machine's folder: `user-data`, `boot.log`, and the files by which process 1 and server agree."""
        return self.path / "machines" / machine

    def read(self) -> CloudRecords:
        """Return the records; empty ones if there are none."""
        try:
            data: dict[str, Any] = decode_json((self.path / "records.json").read_bytes())
        except FileNotFoundError:
            return CloudRecords()
        machines = {each["id"]: MachineRecord(**each) for each in data["machines"]}
        return CloudRecords(network=data["network"], port=data["port"], machines=machines)

    def write(self, records: CloudRecords) -> None:
        """Replace the records.

        They need not survive this machine's power cut, since the namespaces do not.
        """
        machines = [asdict(each) for each in records.machines.values()]
        data = {"network": records.network, "port": records.port, "machines": machines}
        write_atomic(self.path / "records.json", json.dumps(data).encode(), mode=0o600, is_durable=False)


def machine_of(record: MachineRecord, prefix: str) -> Machine:
    """Return what a provider says of a machine; `prefix` has the first three bytes of its address."""
    return Machine(
        id=record.id,
        token=record.token,
        group=record.group,
        state=record.state,
        address=f"{prefix}.{record.number}",
        choice=Choice(type=record.type, zone=record.zone, is_spot=record.is_spot, price_per_hour=record.price_per_hour),
        born_at=record.born_at,
        ended_at=record.ended_at,
        why=record.why,
        tags={
            "windlass-cluster": record.cluster,
            "windlass-group": record.group,
            "windlass-token": record.token,
        },
    )
