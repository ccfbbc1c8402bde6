"""Checkpoints between the head's storage and a slot that does not see it, piece by piece through Ray's calls.

A shipment is a generator of calls: it yields what the slot's disk is to do, and gets what that returned. So the head
goes on with other slots meanwhile, and holds one piece of each shipment in memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

__all__ = ["PIECE_BYTES", "Shipment", "bring", "fetch"]

PIECE_BYTES = 4 << 20

Shipment = Generator[tuple[Any, ...], Any, str]
"""Yields method and arguments of `SlotDisk`; returns where the checkpoint is at its destination."""


def fetch(path: str, storage: str) -> Shipment:
    """From the slot's disk into the head's storage, where it appears whole by a rename; nothing if it is there."""
    trial, name = path.split("/")[-2:]
    target = Path(storage.removeprefix("file://"), trial, name)
    if target.exists():
        return str(target)
    files = yield "list_files", path
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        for file, num_bytes in files:
            (fresh / file).parent.mkdir(parents=True, exist_ok=True)
            with (fresh / file).open("wb") as sink:
                for offset in range(0, num_bytes, PIECE_BYTES):
                    sink.write((yield "read", path, file, offset, PIECE_BYTES))
                sink.flush()
                os.fsync(sink.fileno())
        fresh.chmod(0o755)
        with contextlib.suppress(FileExistsError):  # another head was faster
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    yield "keep_only", path
    return str(target)


def bring(path: str, folder: str) -> Shipment:
    """From the head's storage to the slot's disk. What is not there is not brought: the trial says so then."""
    yield "clear", folder
    root = Path(path.removeprefix("file://"))
    for source in sorted(root.rglob("*")):
        if not source.is_file():
            continue
        name, num_bytes = str(source.relative_to(root)), source.stat().st_size
        with source.open("rb") as file:
            for offset in range(0, max(num_bytes, 1), PIECE_BYTES):
                yield "write", folder, name, offset, file.read(PIECE_BYTES)
    return folder
