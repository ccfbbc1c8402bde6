"""Whether a checkpoint is what its manifest says, file by file, without a model or a process group."""

from __future__ import annotations

import hashlib

from windlass.train.checkpoint.reading import CheckpointReader, damaged
from windlass.train.checkpoint.storage.files import Files
from windlass.train.checkpoint.storage.listing import list_committed, list_damaged

__all__ = ["find_checkpoint", "verify_files"]

_PIECE_BYTES = 16 << 20


def find_checkpoint(files: Files) -> Files:
    """The checkpoint itself, or the newest one in a folder of them.

    Raises:
        CheckpointError: the newest one is damaged; names the file.
    """
    if damaged_ones := list_damaged(files):
        raise damaged_ones[-1][1]
    committed = list_committed(files)
    return files.at(committed[-1].path.rstrip("/").rpartition("/")[2]) if committed else files


def verify_files(files: Files) -> dict[str, int]:
    """Read every file of a checkpoint and compare it with its sha256; returns names to bytes.

    Costs one pass over all bytes, and 16 MiB of memory.

    Raises:
        CheckpointError: it is unfinished, or a file is missing, cut or changed; names the file.
    """
    reader = CheckpointReader.open(files)
    found = {}
    for entry in reader.manifest.entries:
        digest, start = hashlib.sha256(), 0
        while start < entry.size:
            piece = files.read(entry.path, start, min(start + _PIECE_BYTES, entry.size))
            if not piece:
                raise damaged(files, entry.path, f"it ends after {start} of {entry.size} bytes")
            digest.update(piece)
            start += len(piece)
        if digest.hexdigest() != entry.sha256:
            raise damaged(files, entry.path, "it has other content (sha256)")
        found[entry.path] = entry.size
    return found
