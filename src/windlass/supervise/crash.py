"""Crash report of a supervisor."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from windlass.core.files import write_atomic
from windlass.core.process import identify

__all__ = ["keep_crash"]

_MAX_BYTES = 64 << 10


def keep_crash(path: Path) -> None:
    """Append the current traceback to the file, keeping the newest; never raises."""
    import traceback  # lazy: only for our own bugs

    with contextlib.suppress(OSError):  # no other error may hide the crash
        earlier = path.read_bytes()[-_MAX_BYTES:] if path.exists() else b""
        text = f"--- {identify(os.getpid())}\n{traceback.format_exc()}"
        write_atomic(path, earlier + text.encode(errors="replace"), is_durable=False)
