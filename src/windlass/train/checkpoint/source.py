"""Source of a run's initial state: the run's newest undamaged checkpoint, or the source in the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from windlass.report.reporter import current
from windlass.train.checkpoint.config import LoadConfig
from windlass.train.checkpoint.files import Files, open_files
from windlass.train.checkpoint.listing import list_committed
from windlass.train.checkpoint.store import FolderStore
from windlass.train.errors import CheckpointError

__all__ = ["CheckpointSource", "LoadedCheckpoint", "load_newest", "resolve_load"]

_PASSED_OVER = ("checkpoint-damaged", "checkpoint-unfinished")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """Checkpoint, model or folder to load from.

    Attributes:
        kind: own: this run's folder; checkpoint: another windlass checkpoint; hf: a Hugging Face folder or
            name; dcp: a torch distributed checkpoint, such as OLMo-core's.
        paths: candidates, newest first; the first undamaged one is loaded.
        optim, trainer: as in `LoadConfig`; for `own`, both are loaded.
        notes: why newer checkpoints were skipped.
    """

    kind: Literal["own", "checkpoint", "hf", "dcp"]
    paths: tuple[str, ...]
    optim: bool | None = None
    trainer: bool | None = None
    is_strict: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """Result of a load: the path, the trainer's state, and why newer checkpoints were skipped."""

    path: str
    trainer: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def resolve_load(config: LoadConfig, store: FolderStore | None) -> CheckpointSource | None:
    """Return the source to load, or None to start from scratch. Reads only names and markers.

    Collective if there is a store.

    Raises:
        CheckpointError: there is none and the strategy is `always`, or all checkpoints of the run are damaged.
    """
    if config.strategy == "never":
        return None
    is_resuming = current().is_resuming  # a windlass task with `resume: none` starts from scratch
    own = store.committed() if store is not None and is_resuming else ()
    lost = tuple(store.damaged()) if isinstance(store, FolderStore) and is_resuming else ()
    if own:
        paths = tuple(item.path for item in reversed(own))
        return CheckpointSource(kind="own", paths=paths, optim=True, trainer=True, notes=lost)
    if lost:
        raise _none_whole(lost)
    if config.path:
        return _elsewhere(config)
    if config.strategy == "always":
        where = store.path if store is not None else "the run's folder"
        raise _nothing(f"no checkpoint in {where}")
    return None


def _elsewhere(config: LoadConfig) -> CheckpointSource | None:
    kind: Literal["checkpoint", "hf", "dcp"] = "checkpoint"
    paths: Sequence[str] = ()
    if config.path.startswith("hf:"):
        kind, paths = "hf", (config.path.removeprefix("hf:"),)
    else:
        files = open_files(config.path)
        names = files.names()
        if dcp := _dcp_folder(files, names):
            kind, paths = "dcp", (dcp,)
        elif "layout.json" in names or "manifest.json" in names:
            paths = (files.path,)
        else:
            paths = [item.path for item in reversed(list_committed(files))]
    if paths:
        return CheckpointSource(
            kind=kind, paths=tuple(paths), optim=config.optim, trainer=config.trainer, is_strict=config.is_strict
        )
    if config.strategy == "always":
        raise _nothing(f"no checkpoint at {config.path} (`checkpoint.load.path`)")
    return None


def _dcp_folder(files: Files, names: Sequence[str]) -> str:
    """Return the folder that has torch's `.metadata`: this one or OLMo-core's subfolder; empty if neither has it."""
    if ".metadata" in names:
        return files.path
    inner = files.at("model_and_optim")
    return inner.path if "model_and_optim" in names and ".metadata" in inner.names() else ""


def _nothing(message: str) -> CheckpointError:
    hint = "set `checkpoint.load.path`, or `checkpoint.load.strategy=if-available` to start anew"
    return CheckpointError(message, hint=hint, code="no-checkpoint")


def load_newest(
    store: FolderStore, paths: Sequence[str], state: Mapping[str, Any], *, is_strict: bool = True
) -> LoadedCheckpoint:
    """Fill `state` from the first undamaged checkpoint. Collective.

    A damaged checkpoint is skipped with a note, even if the damage is found only while reading: the next one then
    overwrites the whole state. A checkpoint of another model is an immediate error.

    Raises:
        CheckpointError: all are damaged; the message lists the problems.
    """
    notes: list[str] = []
    for path in paths:
        try:
            trainer = store.load(path, state, is_strict=is_strict)
        except CheckpointError as error:
            if error.code not in _PASSED_OVER:
                raise
            notes.append(error.message)
        else:
            return LoadedCheckpoint(path=path, trainer=trainer, notes=tuple(notes))
    raise _none_whole(notes)


def _none_whole(notes: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        "all checkpoints are damaged: " + "; ".join(notes),
        hint="restore one from a copy, or set `checkpoint.load.strategy=never` to start from scratch",
        code="checkpoint-damaged",
    )
