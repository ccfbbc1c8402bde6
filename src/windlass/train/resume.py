"""The first state of a run: its own newest checkpoint, else the one it was told of, else none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from windlass.train.checkpoint.reading import CONFIG_FILE, CheckpointReader
from windlass.train.checkpoint.source import CheckpointSource, LoadedCheckpoint, load_newest, resolve_load
from windlass.train.checkpoint.storage.files import open_files
from windlass.train.checkpoint.store import FolderStore, open_store
from windlass.train.errors import CheckpointError

if TYPE_CHECKING:
    from windlass.train.trainer import Trainer

__all__ = ["load_first_state"]


def load_first_state(trainer: Trainer[Any]) -> str:
    """Load what `checkpoint.load` says; returns where it came from, empty when training begins anew. Collective.

    Raises:
        CheckpointError: nothing was found with the strategy `always`, or what was found cannot be taken.
        SpecError: it was trained on other data, and `data.allow_changes` does not say that this may be.
    """
    source = resolve_load(trainer.checkpoint.load, cast("FolderStore | None", trainer.store))
    if source is None:
        wanted = trainer.checkpoint.load
        left = trainer.store.committed() if wanted.strategy == "never" and trainer.store is not None else ()
        if left and trainer.world.is_main:
            sys.stderr.write(
                f"the folder holds a run up to step {left[-1].step}, which a start without "
                "`checkpoint.load.strategy=never` would take up; another `checkpoint.folder` keeps them apart\n"
            )
        if wanted.path and wanted.strategy != "never" and trainer.world.is_main:
            sys.stderr.write(
                f"there is no checkpoint at {wanted.path} (`checkpoint.load.path`); training begins anew\n"
            )
        return ""
    if source.kind in ("hf", "dcp"):
        return _warm_start(trainer, source)
    loaded = _load(trainer, source)
    for note in (*source.notes, *loaded.notes):
        if trainer.world.is_main:
            sys.stderr.write(f"passed over a checkpoint: {note}\n")
    if trainer.world.is_main and (source.kind == "checkpoint" or isinstance(trainer.store, FolderStore)):
        for line in _changed_code(trainer.config.get("code", {}), loaded.path):
            sys.stderr.write(line)
    if source.trainer is not False and loaded.trainer:  # a model that was imported has none
        seed = _data_seed(trainer)
        trainer.load_state_dict(loaded.trainer)
        if seed != (kept := _data_seed(trainer)) and trainer.world.is_main:
            sys.stderr.write(
                f"rows come in the order of the checkpoint's seed, {kept}; that of this recipe is {seed}\n"
            )
    return loaded.path


def _changed_code(code: Mapping[str, Mapping[str, str]], path: str) -> Iterator[str]:
    """What is another part of the user's own now than when the checkpoint was written; training goes on with it."""
    before = CheckpointReader.open(open_files(path)).read_object(CONFIG_FILE).get("code") or {}
    name = path.rstrip("/").rpartition("/")[2]
    for where, own in code.items():
        old = before.get(where)
        if old is None or old.get("target") != own["target"]:
            was = "windlass's own" if old is None else old.get("target")
            yield f"{where} is {own['target']} now; in {name} it was {was}\n"
        elif old.get("sha256") != own["sha256"]:
            yield f"the code of {where} ({own['target']}) is not that of {name}; training goes on with the new one\n"


def _data_seed(trainer: Trainer[Any]) -> Any:
    return trainer.loader.state_dict().get("seed")


def _load(trainer: Trainer[Any], source: CheckpointSource) -> LoadedCheckpoint:
    """Fill the module's state from the first checkpoint that is whole."""
    store = cast("FolderStore | None", trainer.store)
    if store is None or source.kind != "own":
        verifies = trainer.checkpoint.load.verifies
        store = open_store(source.paths[0].rpartition("/")[0] or ".", trainer.world, verifies=verifies)
    state = trainer.module.state_dict()
    if source.optim is False or (source.optim is None and not _has_optimizer(source)):
        state.pop("optim", None)
    try:
        loaded = load_newest(store, source.paths, state, is_strict=source.is_strict)
    except CheckpointError as error:
        if error.code != "checkpoint-mismatch" or "guard" not in state:
            raise
        state.pop("guard")  # `optim.skip` was not set when that was saved: its memory begins anew
        loaded = load_newest(store, source.paths, state, is_strict=source.is_strict)
    trainer.module.load_state_dict(state)
    return loaded


def _has_optimizer(source: CheckpointSource) -> bool:
    return "optim" in CheckpointReader.open(open_files(source.paths[0])).layout.tensors


def _warm_start(trainer: Trainer[Any], source: CheckpointSource) -> str:
    """Weights from elsewhere; training begins at its first step."""
    from windlass.train.hf.warm_start import warm_start  # lazy: few runs begin so

    wanted = trainer.checkpoint.load
    if wanted.trainer:
        raise CheckpointError(
            f"{wanted.path} has no state of a trainer that could be taken",
            hint="set `checkpoint.load.trainer=null`: training then begins at its first step",
            code="no-such-state",
        )
    state = trainer.module.state_dict()
    path, _ = warm_start(state, wanted.path, optim=wanted.optim, is_strict=wanted.is_strict)
    trainer.module.load_state_dict(state)
    return path
