"""Seal of a head's journal, on the head: no further machine is requested, so the journal names all that ever were.

    node-seal FOLDER      end Ray's autoscaler, seal the journal of its machines, print the lines of `node-status`
    node-unseal FOLDER    let the autoscaler make machines again; the agent starts it

Only the process that holds the lock of that journal makes machines, and it ends at once if the journal is sealed. A request
that was under way when it was killed stays open in the journal.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Callable

from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError
from windlass.core.process import find_by_environment, send_signal
from windlass.record.frames import Record
from windlass.record.journal import JournalWriter, read_journal
from windlass.supervise.node.node_status import node_status_main
from windlass.supervise.node.spec import NODE_VARIABLE, NodeFolder

__all__ = ["FLEET_JOURNAL", "FLEET_WRITER", "is_sealed", "seal_fleet", "seal_main", "unseal_fleet"]

FLEET_JOURNAL = "machines"
"""Folder of the journal of the machines that the head makes, in the head's folder."""

FLEET_WRITER = "head"
_SEALED, _UNSEALED = "fleet.sealed", "fleet.unsealed"
_LIMIT_S = 30.0
_MONITORS = (b"windlass.cluster.scaling.monitor", b"autoscaler/v2/monitor.py")


def is_sealed(records: Iterable[Record]) -> bool:
    """Return whether the journal's last seal was not removed."""
    found = [record.kind for record in records if record.kind in {_SEALED, _UNSEALED}]
    return found[-1:] == [_SEALED]


def seal_fleet(folder: Path, end_monitor: Callable[[], None]) -> None:
    """Seal the journal; when this returns, no process makes machines for this head. Idempotent.

    Args:
        end_monitor: kills the autoscaler; the agent may have started it again meanwhile, so it is called until it is dead.

    Raises:
        PreconditionError: the autoscaler does not die (`in-use`).
    """
    end_s = time.monotonic() + _LIMIT_S
    while True:
        end_monitor()
        try:
            _append(folder, _SEALED)
            return
        except PreconditionError as error:
            if error.code != "in-use" or time.monotonic() > end_s:
                raise


def unseal_fleet(folder: Path) -> None:
    """Remove the seal. Idempotent."""
    if is_sealed(read_journal(folder / FLEET_JOURNAL)):
        _append(folder, _UNSEALED)


def _append(folder: Path, kind: str) -> None:
    writer = JournalWriter(folder / FLEET_JOURNAL, FLEET_WRITER, SystemClock())
    try:
        writer.append(kind)
    finally:
        writer.close()


def seal_main(command: str, folder: Path) -> int:
    """Run one of this module's commands of the zipapp."""
    if command == "node-unseal":
        unseal_fleet(folder)
        return 0
    token = NodeFolder(folder).read_spec().token
    seal_fleet(folder, lambda: _end_monitor(token))
    return node_status_main(folder)


def _end_monitor(token: str) -> None:
    for pid in find_by_environment(NODE_VARIABLE, token):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if any(each in words for each in _MONITORS):
            send_signal(pid, signal.SIGKILL)
