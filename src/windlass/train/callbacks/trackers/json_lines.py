"""JSON Lines tracker, which writes one object per step; resumed runs neither repeat nor miss a step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from windlass.core.errors import PreconditionError
from windlass.core.json_text import decode_json
from windlass.train.callbacks.places import run_folder
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["JsonLines", "cut_after"]


class JsonLines(TrainerCallback):
    """Callback that writes `{"step": 1, "train/loss": 3.2, ...}` on rank 0.

    The values nan, inf and -inf are written as strings.

    Metrics up to a step are written before that step's checkpoint, and a run that resumes from it removes later lines.

    Args:
        path: path of the file; if empty, `metrics.jsonl` in the task's output or beside the checkpoints.
    """

    def __init__(self, *, path: str = "") -> None:
        self.path = path
        self._file: TextIO | None = None

    def on_start(self) -> None:
        """Remove the lines of later steps from the file, and open it for appending."""
        if not self.trainer.world.is_main:
            return
        path = Path(self.path) if self.path else run_folder(self.trainer) / "metrics.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            cut_after(path, self.trainer.step)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise PreconditionError(
                f"cannot write metrics to {path}: {error.strerror or error}",
                hint="set `path` of the `jsonl` callback",
                code="not-writable",
            ) from error

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line and flush it to the operating system."""
        if self._file is not None:
            values = {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()

    def on_end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


_BEGINNING = b'{"step"'
"""Pattern of a line's start, which also matches an incomplete line."""


def cut_after(path: Path, step: int) -> None:
    """Remove the lines of later steps and an incomplete last line; do nothing if there is no file.

    Raises:
        PreconditionError: the file does not begin with metrics, so this callback did not write it.
    """
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return
    with file:
        end = 0
        for line in file:
            if not end and _step_of(line) == math.inf and not _BEGINNING.startswith(line[: len(_BEGINNING)]):
                raise PreconditionError(
                    f"{path} is not a metrics file; it was not changed",
                    hint="give the `jsonl` callback another `path`",
                    code="already-exists",
                )
            if not line.endswith(b"\n") or _step_of(line) > step:
                break
            end += len(line)
        file.truncate(end)
        file.flush()
        os.fsync(file.fileno())


def _step_of(line: bytes) -> float:
    """Return the step of a line, or infinity for an invalid line, so that it is removed."""
    try:
        return int(decode_json(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
