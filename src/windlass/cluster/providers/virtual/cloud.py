"""Virtual cloud: its machines as records, and one thread that makes the machines follow them.

A request changes records, all or none, and returns. The keeper boots what is pending, ends what is ending, and records
what has ended. Each of its rounds starts from the records and from the processes that exist, so a server that takes over
after another one died does the same as one that never died.
"""

from __future__ import annotations

import secrets
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from windlass.cluster.machine import GONE
from windlass.cluster.providers.protocol import NoCapacityError, RefusedError
from windlass.cluster.providers.virtual.boot import Booter
from windlass.cluster.providers.virtual.records import CloudFolder, CloudRecords, MachineRecord
from windlass.core import process
from windlass.core.errors import PreconditionError
from windlass.core.files import write_atomic

__all__ = ["VirtualCloud"]

_FIRST, _LAST = 11, 250
_ROUND_S = 0.1
_SAME = ("cluster", "group", "count", "type", "zone", "is_spot")


class VirtualCloud:
    """Machines of one cluster.

    Args:
        booter: makes and ends their processes.
        records: those that an earlier server left.
    """

    def __init__(self, folder: CloudFolder, booter: Booter, records: CloudRecords) -> None:
        self._folder, self._booter, self._records = folder, booter, records
        self._changed = threading.Condition()
        self._booting: dict[str, threading.Thread] = {}
        self._is_over = False
        self._keeper = threading.Thread(target=self._keep, name="keeper")
        self.idle_since_s = time.monotonic()

    def start(self) -> None:
        """Start the keeper; machines that an earlier server was booting are booted anew."""
        unknown = [each for each in self._records.living if each.state == "pending"]
        while unknown and len(self._booter.kill(unknown)) < len(unknown):
            time.sleep(_ROUND_S)
        self._keeper.start()

    def close(self) -> None:
        """Stop the keeper; machines that exist stay."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._keeper.join()

    @property
    def num_living(self) -> int:
        """Return how many machines are charged for."""
        with self._changed:
            return len(self._records.living)

    # ----------------------------------------------------------------------------------------------------- requests

    def machines(self) -> list[MachineRecord]:
        """Return all machines that are known, ended ones included."""
        with self._changed:
            return list(self._records.machines.values())

    def create(self, asked: dict[str, Any], boot: bytes) -> list[MachineRecord]:
        """Make machines, all or none; a token that is known returns its machines.

        Raises:
            RefusedError: the token was used for something else.
            NoCapacityError: all addresses are in use.
        """
        with self._changed:
            if self._is_over:
                raise NoCapacityError("the server of the virtual cluster ends", hint="try again")
            known = [each for each in self._records.machines.values() if each.token == asked["token"]]
            for each in known[:1]:
                changed = [name for name in _SAME if getattr(each, name) != asked[name]]
                if changed:
                    raise RefusedError(f"the token {each.token} belongs to a request with another {changed[0]}")
            if known:
                return known
            made = [
                MachineRecord(
                    id=f"v-{secrets.token_hex(5)}", number=number, state="pending", born_at=time.time(), **asked
                )
                for number in self._free_numbers(asked["count"])
            ]
            for each in made:
                self._folder.machine(each.id).mkdir(mode=0o700, parents=True)
                write_atomic(self._folder.machine(each.id) / "user-data", boot, mode=0o700, is_durable=False)
            self._save(made)
            return made

    def _free_numbers(self, count: int) -> list[int]:
        """Return free last bytes of addresses, those first that were not used for longest."""
        used = {each.number for each in self._records.living}
        last = next((each.number for each in reversed(list(self._records.machines.values()))), _FIRST - 1)
        ring = [*range(last + 1, _LAST + 1), *range(_FIRST, last + 1)]
        free = [number for number in ring if number not in used and number >= _FIRST]
        if len(free) < count:
            raise NoCapacityError(f"{count} machines were asked for, and {len(free)} addresses are free")
        return free[:count]

    def terminate(self, ids: Sequence[str], why: str = "terminated") -> None:
        """End machines; ids that are unknown count as ended."""
        with self._changed:
            found = [self._records.machines[each] for each in ids if each in self._records.machines]
            self._save([replace(each, state="ending", why=why) for each in found if each.state not in GONE])

    def give_notice(self, machine: str, kind: str, at: float, *, is_cut: bool) -> None:
        """Announce to a machine that it is taken back, and do it then unless only the notice is wanted."""
        with self._changed:
            found = self._records.machines[machine]
            if not found.is_living:
                return
            self._save([replace(found, notice=kind, notice_at=at, cut_at=at if is_cut else None)])

    def _save(self, changed: Sequence[MachineRecord]) -> None:
        """Record changes; called with the lock."""
        if changed:
            self._records = self._records.with_machines(changed)
            self._folder.write(self._records)
            self._changed.notify_all()

    # ---------------------------------------------------------------------------------------------------- the keeper

    def _keep(self) -> None:
        while True:
            with self._changed:
                if self._is_over:
                    return
                self._changed.wait(_ROUND_S)
                living = self._records.living
                if living:
                    self.idle_since_s = time.monotonic()
            try:
                self._round(living)
            except Exception:  # noqa: BLE001 - the keeper must go on: the log has it, and the next round tries again
                traceback.print_exc()

    def _round(self, living: Sequence[MachineRecord]) -> None:
        for each in living:
            if each.state == "pending" and each.id not in self._booting:
                self._booting[each.id] = thread = threading.Thread(target=self._boot, args=[each])
                thread.start()
            elif each.state == "running":
                self._look_after(each)
        ending = [each for each in living if each.state == "ending"]
        if ending:
            gone = set(self._booter.kill(ending))
            for each in ending:
                thread_ = self._booting.get(each.id)
                if each.id in gone and (thread_ is None or not thread_.is_alive()):
                    self._bury(each, each.why, time.time())

    def _look_after(self, record: MachineRecord) -> None:
        if not process.is_alive(process.ProcessId.parse(record.init)):
            why, at = self._booter.end_of(record.id) or ("its process 1 was killed", time.time())
            if self._booter.kill([record]):
                self._bury(record, why, at)
        elif record.cut_at is not None and time.time() >= record.cut_at:
            self.terminate([record.id], "taken back")
        else:
            self._booter.go(record.id)

    def _boot(self, record: MachineRecord) -> None:
        """Boot one machine, in a thread of its own."""
        try:
            init = self._booter.boot(record, lambda: self._is_pending(record.id))
        except (PreconditionError, OSError) as error:
            if self._is_pending(record.id):
                self.terminate([record.id], str(error))
            return
        with self._changed:
            if not self._is_pending(record.id):
                return
            self._save([replace(self._records.machines[record.id], state="running", init=str(init))])
        self._booter.go(record.id)

    def _is_pending(self, machine: str) -> bool:
        with self._changed:
            return not self._is_over and self._records.machines[machine].state == "pending"

    def _bury(self, record: MachineRecord, why: str, at: float) -> None:
        self._booter.clean(record)
        with self._changed:
            found = self._records.machines[record.id]
            self._save([replace(found, state="ended", why=why, ended_at=max(at, record.born_at))])
        self._booting.pop(record.id, None)

    # ---------------------------------------------------------------------------------------------------- the ledger

    def ledger(self) -> dict[str, Any]:
        """Return every machine as it is, with the seconds that it has cost."""
        now = time.time()
        rows = [
            {**asdict(each), "seconds": (now if each.ended_at is None else each.ended_at) - each.born_at}
            for each in self.machines()
        ]
        return {"machines": rows, "seconds": sum(row["seconds"] for row in rows)}
