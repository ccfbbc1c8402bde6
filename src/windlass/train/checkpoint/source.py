"""Source of a run's first state: its own newest whole checkpoint, or the one that the recipe names."""

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
        kind: own: checkpoints of this run's folder; checkpoint: windlass's from elsewhere; hf: a folder or name of
            Hugging Face; dcp: torch's distributed checkpoint, such as OLMo-core's.
        paths: candidates, the newest first; the first undamaged one is loaded.
        optim, trainer: as in `LoadConfig`; both are loaded from the run's own.
        notes: why newer ones were skipped.
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
    """Return what to load, None to start anew. Collective if there is a store; reads only names and markers.

    Raises:
        CheckpointError: there is none and the strategy is `always`, or all of the run's own are damaged.
    """
    if config.strategy == "never":
        return None
    is_resuming = current().is_resuming  # a windlass task with `resume: none` starts anew
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
    """Return the folder with torch's `.metadata`: this one, or OLMo-core's subfolder; else empty."""
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

    A damaged one is skipped with a note, also if that is found only while it is read: the next one fills
    everything again. One of another model is an error at once.

    Raises:
        CheckpointError: all are damaged; lists the problems.
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
        hint="restore one from a copy, or set `checkpoint.load.strategy=never` to start anew",
        code="checkpoint-damaged",
    )
