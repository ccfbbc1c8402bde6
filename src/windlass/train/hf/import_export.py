"""`windlass ckpt export` and `import`: convert between windlass checkpoints and other formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from windlass.config.encode import to_data
from windlass.config.loading import from_data
from windlass.core.errors import PreconditionError, SpecError, UsageError
from windlass.train.checkpoint.store import open_store
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import load_tokenizer
from windlass.train.hf.companions import Companions, kept_files, tokenizer_companions
from windlass.train.hf.convert_weights import SHARD_BYTES, DType, export_model
from windlass.train.hf.mapped import ModelSource
from windlass.train.hf.peft import MergedModel, write_peft
from windlass.train.hf.sources import StoredCheckpoint, companions_of, open_model
from windlass.train.parallel.world import World

__all__ = ["companions_for", "export_hf", "import_model"]


def export_hf(
    checkpoint: str,
    folder: str | Path,
    *,
    dtype: DType = "bfloat16",
    tokenizer: str | Path | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    merge: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a checkpoint's model to a Hugging Face folder. Needs as much memory as its largest weight.

    An adapter is written in PEFT's format, or with `merge` as a whole model.

    Args:
        checkpoint: any path that `open_model` accepts.
        dtype: type of the weights in the files.
        tokenizer: file or folder whose files are copied, or `bytes`; if None, the recipe's, if that is a file or
            folder, or the imported model's.
        merge: whether to add an adapter's updates to the weights of its base model.
        overwrite: whether to replace a Hugging Face model in that folder; anything else is never replaced.

    Returns:
        The path of the folder.

    Raises:
        NotFoundError, CheckpointError: there is no checkpoint, or it is damaged.
        SpecError: no transformers architecture matches the model; the message names the settings.
        PreconditionError: the folder exists.
    """
    with open_model(checkpoint) as source:
        companions = companions_for(source, tokenizer)
        adapter = source.adapter() if isinstance(source, StoredCheckpoint) and source.has_adapter else None
        if merge and adapter is None and not isinstance(source, MergedModel):
            raise UsageError(
                f"{source.source} has no adapter to merge", hint="leave out `--merge`", code="setting-unused"
            )
        if adapter is not None and not merge:
            return write_peft(source.config, adapter, folder, dtype=dtype, companions=companions, overwrite=overwrite)
        return export_model(
            source.config,
            source,
            folder,
            dtype=dtype,
            companions=companions,
            max_shard_bytes=max_shard_bytes,
            overwrite=overwrite,
        )


def companions_for(source: ModelSource, tokenizer: str | Path | None = None) -> Companions:
    """Return the files of the requested tokenizer, else those kept with the weights, else of the recipe's."""
    kept = companions_of(source)
    if tokenizer is None and kept.has_tokenizer:
        return kept
    own, max_length = _tokenizer_config(source), source.config.max_length
    ids = None if own is None else load_tokenizer(own).ids
    if tokenizer is not None:
        return tokenizer_companions(tokenizer, ids, max_length=max_length)
    if own is not None:
        return tokenizer_companions(own.path, ids, max_length=max_length)
    return kept


def _tokenizer_config(source: ModelSource) -> TokenizerConfig | None:
    """Return the tokenizer from the recipe that trained the model; None if it is unknown or only a hub name."""
    if not isinstance(source, StoredCheckpoint):
        return None
    try:
        config = from_data(TokenizerConfig, source.record["recipe"]["data"]["tokenizer"], source=source.source)
    except (KeyError, TypeError, SpecError):
        return None
    return config if config.path == "bytes" or (config.path and Path(config.path).expanduser().exists()) else None


def import_model(path: str, folder: str) -> str:
    """Write any readable model as a windlass checkpoint at step 0, and return its path.

    Imports the weights, and what an export needs: the tokenizer's files and special ids. A run can also load such a model
    directly, with `checkpoint.load.path`. Costs the memory of the model.

    Raises:
        NotFoundError, CheckpointError, SpecError: see `open_model`.
        PreconditionError: the folder already contains checkpoints.
    """
    store = open_store(folder, World(device=torch.device("cpu")))
    if store.committed():
        raise PreconditionError(f"{folder} already has checkpoints", hint="use another folder", code="already-exists")
    with open_model(path) as source:
        weights: Mapping[str, Tensor] = dict(source)
        record = {
            "schema": "windlass.model/1",
            "source": path,
            "model": to_data(source.config, keep_defaults=True),
        }
        pending = store.save(
            {"model": weights},
            {},
            step=0,
            tokens=0,
            config=record,
            is_permanent=True,
            is_async=False,
            extra=kept_files(companions_of(source)),
        )
        return pending.wait().path
