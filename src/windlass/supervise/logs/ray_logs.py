"""Ray's own logs on one node, copied from its disk to the attempt's logs, with secrets redacted.

Their total size is limited: the newest part of each file, newest files first.
"""

from __future__ import annotations

import os
from pathlib import Path

from windlass.record.redact import Redactor

__all__ = ["MAX_FILE_BYTES", "MAX_TOTAL_BYTES", "RAY_FOLDER", "collect_ray_logs"]

RAY_FOLDER = "r"
"""Name of Ray's folder inside a private one, since Ray makes it readable for all users."""

MAX_FILE_BYTES = 4 << 20
MAX_TOTAL_BYTES = 64 << 20
_PATTERN = f"{RAY_FOLDER}/session_*/logs"
_PIECE_BYTES = 1 << 20


def collect_ray_logs(folder: Path, target: Path, redactor: Redactor) -> int:
    """Copy the logs in Ray's folder on this node to `target`.

    Return the number of files. Blocks for a few seconds at most.

    Raises:
        OSError: a file cannot be read or written; earlier ones were copied.
    """
    room, num_files = MAX_TOTAL_BYTES, 0
    found = [(path, logs) for logs in folder.glob(_PATTERN) if not logs.is_symlink() for path in _files(logs)]
    if (folder / "start.log").is_file():
        found.append((folder / "start.log", folder))
    for path, root in sorted(found, key=lambda item: item[0].stat().st_mtime, reverse=True):
        size = min(path.stat().st_size, MAX_FILE_BYTES)
        if not size or size > room:
            continue
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        _copy_end(path, copy, size, redactor)
        room, num_files = room - size, num_files + 1
    return num_files


def _files(logs: Path) -> list[Path]:
    return [path for path in logs.rglob("*") if path.is_file() and not path.is_symlink()]


def _copy_end(path: Path, copy: Path, size: int, redactor: Redactor) -> None:
    """Copy the last `size` bytes without the first few of them, since the cut may split a secret."""
    with open(str(path), "rb") as source, open(str(copy), "wb") as destination:
        start = source.seek(0, os.SEEK_END) - size
        skip = redactor.max_held_bytes if start > 0 else 0
        source.seek(max(0, start - skip))
        held, is_final = b"", False
        while not is_final:
            piece = source.read(_PIECE_BYTES)
            is_final = not piece
            data, taken = redactor.feed(held + piece, is_final)
            held = (held + piece)[taken:]
            destination.write(data[skip:])
            skip = max(0, skip - len(data))
