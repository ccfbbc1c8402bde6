"""Checkpoints in a folder: listing, metadata files, retention and verification."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.json_text import decode_json
from windlass.train.checkpoint.files import Files
from windlass.train.checkpoint.protocol import Committed
from windlass.train.checkpoint.reading import CONFIG_FILE, TRAINER_FILE, CheckpointReader, damaged, read_marker
from windlass.train.errors import CheckpointError

__all__ = [
    "EXTRA_FOLDER",
    "find_checkpoint",
    "folder_name",
    "list_committed",
    "list_damaged",
    "small_files",
    "to_remove",
    "verify_files",
]

EXTRA_FOLDER = "extra/"
_STEP = re.compile(r"step-([0-9]+)")


def folder_name(step: int) -> str:
    """Return the name of the folder for a step's checkpoint."""
    return f"step-{step}"


def list_committed(files: Files) -> list[Committed]:
    """Return the checkpoints in a folder that have a valid marker, oldest first; damaged ones are left out."""
    return _listed(files)[0]


def list_damaged(files: Files) -> list[tuple[int, CheckpointError]]:
    """Return the committed but damaged checkpoints that are newer than every undamaged one, sorted by step."""
    found, lost = _listed(files)
    newest = found[-1].step if found else -1
    return sorted((item for item in lost if item[0] > newest), key=lambda item: item[0])


def _listed(files: Files) -> tuple[list[Committed], list[tuple[int, CheckpointError]]]:
    found, lost = [], []
    for name in files.names():
        if match := _STEP.fullmatch(name):
            try:
                item = _read(files.at(name))
            except CheckpointError as error:
                if error.code == "checkpoint-damaged":  # other entries were never committed
                    lost.append((int(match[1]), error))
            else:
                found += [item] if item is not None else []
    return sorted(found, key=lambda item: item.step), lost


def _read(folder: Files) -> Committed | None:
    """Read a checkpoint's metadata; return None if it has no trainer state."""
    try:
        if all(entry.path != TRAINER_FILE for entry in read_marker(folder).entries):
            return None
        told = decode_json(folder.read(TRAINER_FILE))
        return Committed(
            path=folder.path,
            step=int(told["step"]),
            tokens=int(told["tokens"]),
            is_permanent=bool(told["is_permanent"]),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise damaged(folder, TRAINER_FILE, str(error)) from error


def small_files(
    committed: Committed, trainer: Mapping[str, Any], config: Mapping[str, Any], extra: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return the contents of a checkpoint's small files, except layout and marker."""
    told = {
        "schema": 1,
        "step": committed.step,
        "tokens": committed.tokens,
        "is_permanent": committed.is_permanent,
        "state": trainer,
    }
    small = {EXTRA_FOLDER + name: content for name, content in extra.items()}
    return {**small, TRAINER_FILE: _json(told), CONFIG_FILE: _json(config)}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=True).encode("ascii") + b"\n"


def to_remove(found: Sequence[Committed], newest: Committed, *, keep: int | None) -> list[Committed]:
    """Return the checkpoints to remove now that `newest` is committed, oldest first.

    An ephemeral checkpoint is removed once a later one exists. The newest `keep` permanent ones stay, or all if None.
    Checkpoints of later steps than `newest` belong to a run that resumed from another checkpoint, and are kept.

    Args:
        found: all committed checkpoints; may include `newest`.
    """
    earlier = sorted((item for item in found if item.step < newest.step), key=lambda item: item.step)
    permanent = [item for item in earlier if item.is_permanent]
    gone = [item for item in earlier if not item.is_permanent]
    if keep is not None:
        num_kept = max(0, keep - int(newest.is_permanent))
        gone += permanent[: max(0, len(permanent) - num_kept)]
    return sorted(gone, key=lambda item: item.step)


_PIECE_BYTES = 16 << 20


def find_checkpoint(files: Files) -> Files:
    """Return the folder itself if it is a checkpoint, or the newest checkpoint in it.

    Raises:
        CheckpointError: the newest one is damaged; the message names the file.
    """
    if damaged_ones := list_damaged(files):
        raise damaged_ones[-1][1]
    committed = list_committed(files)
    return files.at(committed[-1].path.rstrip("/").rpartition("/")[2]) if committed else files


def verify_files(files: Files) -> dict[str, int]:
    """Verify the sha256 of every file in a checkpoint; return the size of each file in bytes.

    Costs one pass over all bytes, and 16 MiB of memory.

    Raises:
        CheckpointError: it is unfinished, or a file is missing, truncated or changed; the message names the file.
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
            raise damaged(files, entry.path, "its content has changed (sha256)")
        found[entry.path] = entry.size
    return found
