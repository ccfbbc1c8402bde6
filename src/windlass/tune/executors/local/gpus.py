"""GPUs of a machine that several runs of windlass share: leased one by one, given back when idle.

Where `CUDA_VISIBLE_DEVICES` is set, whoever set it has given these GPUs to this process, and nothing is leased.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from windlass.core.files import write_json
from windlass.core.process import identify
from windlass.supervise.job import Lease
from windlass.supervise.leases import LeasableResources, acquire, release

__all__ = ["GpuLeases", "visible_gpus"]

_ASK_EVERY_S = 0.5


def visible_gpus(present: tuple[str, ...]) -> tuple[str, ...]:
    """The GPUs that this process may use: those of `CUDA_VISIBLE_DEVICES` where it is set."""
    stated = os.environ.get("CUDA_VISIBLE_DEVICES")
    if stated is None:
        return present
    return tuple(part.strip() for part in stated.split(",") if part.strip() and part.strip() != "-1")


class GpuLeases:
    """The leases of one sweep, one per GPU, in the table that runs on this machine share.

    Args:
        table: folder of that table.
        folder: where each lease has a folder of its own, by which its holders are found.
        label: of the sweep, for those who wait.
    """

    def __init__(self, table: Path, folder: Path, label: str, present: LeasableResources) -> None:
        self._lease = Lease(folder=str(table), gpus=1)
        self._folder, self._label, self._present = folder, label, present
        self._holder = str(identify(os.getpid()))
        self._held: dict[str, Path] = {}
        self._guard = ""
        self._asked_at = float("-inf")
        self._reason = ""
        self._waiting: Path | None = None

    def recover(self) -> list[str]:
        """Take over the leases of an earlier head whose workers live; returns their GPUs."""
        found = []
        for place in sorted(self._folder.glob("gpu-*")):
            given, _ = acquire(self._lease, place, self._holder, self._label, self._present)
            if given:
                self._held[given[0]] = place
                found.append(given[0])
        return found

    def take(self) -> tuple[str, str]:
        """(a further GPU, why there is none); asks twice a second at most. Stays in line until `close`."""
        if self._reason and time.monotonic() - self._asked_at < _ASK_EVERY_S:
            return "", self._reason
        self._asked_at = time.monotonic()
        place = self._free_place()
        place.mkdir(parents=True, exist_ok=True)
        self._write_guard(place)
        given, self._reason = acquire(self._lease, place, self._holder, self._label, self._present)
        self._waiting = None if given else place
        if not given:
            return "", self._reason
        self._held[given[0]] = place
        return given[0], ""

    def _free_place(self) -> Path:
        number = 0
        while (place := self._folder / f"gpu-{number}") in self._held.values():
            number += 1
        return place

    def guard(self, pid: int) -> None:
        """Hold the leases as long as this process lives too: the template of a detached sweep."""
        self._guard = str(identify(pid))
        for place in self._held.values():
            self._write_guard(place)

    def _write_guard(self, place: Path) -> None:
        if self._guard:
            write_json(
                place / f"guard-{self._guard.partition(':')[0]}.json", {"template": self._guard}, is_durable=False
            )

    def give(self, gpu: str) -> None:
        """Give one back."""
        self._release(self._held.pop(gpu))

    def _release(self, place: Path) -> None:
        release(self._lease, place)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(place)

    def close(self) -> None:
        """Give everything back, and leave the line."""
        for gpu in list(self._held):
            self.give(gpu)
        if self._waiting is not None:
            self._release(self._waiting)
