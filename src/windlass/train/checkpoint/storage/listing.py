"""Which checkpoints a folder holds, and what is told beside their tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from windlass.core.json_text import decode_json
from windlass.train.checkpoint.protocol import Committed
from windlass.train.checkpoint.reading import CONFIG_FILE, TRAINER_FILE, damaged, read_marker
from windlass.train.checkpoint.storage.files import Files
from windlass.train.errors import CheckpointError

__all__ = ["EXTRA_FOLDER", "folder_name", "list_committed", "list_damaged", "small_files"]

EXTRA_FOLDER = "extra/"
_STEP = re.compile(r"step-([0-9]+)")


def folder_name(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step-{step}"


def list_committed(files: Files) -> list[Committed]:
    """The checkpoints in a folder that are whole by their marker, oldest first; damaged ones are left out."""
    return _listed(files)[0]


def list_damaged(files: Files) -> list[tuple[int, CheckpointError]]:
    """Those that were committed and cannot be any more, by step, which are newer than all that are whole."""
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
                if error.code == "checkpoint-damaged":  # the others were never committed
                    lost.append((int(match[1]), error))
            else:
                found += [item] if item is not None else []
    return sorted(found, key=lambda item: item.step), lost


def _read(folder: Files) -> Committed | None:
    """What a checkpoint tells of itself; None where it has no state of a trainer."""
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
    """The content of all files of a checkpoint but tensors, layout and marker."""
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
