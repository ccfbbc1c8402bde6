"""Identity of a run's samples: what they depend on, and the log that is kept for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from windlass.config.encode import to_data
from windlass.post.data.chat import ChatEncoder
from windlass.post.data.prepared import PreparedData
from windlass.post.recipe import RolloutRecipe
from windlass.post.samples.log import SampleLog
from windlass.post.samples.reader import FOLDER
from windlass.train.build import checkpoint_folder
from windlass.train.recipe import Recipe

__all__ = ["facts_of_samples", "log_of", "run_digest"]


def run_digest(own: RolloutRecipe, recipe: Recipe, data: PreparedData, weights: Mapping[str, torch.Tensor]) -> str:
    """Return a digest of all that samples depend on."""
    settings: dict[str, Any] = dict(to_data(own, keep_defaults=True))
    rollout = {name: value for name, value in settings["rollout"].items() if name not in ("keep_samples", "colocate")}
    rollout["engine"] = own.rollout.engine.name  # its address may change
    rows = {name: settings["data"][name] for name in ("batch_rows", "is_shuffled", "seed", "microbatch_tokens")}
    settings = {name: value for name, value in settings.items() if name not in _NOT_IN_SAMPLES}
    parts = [settings, rollout, rows, data.key, to_data(recipe.model, keep_defaults=True)]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for name, weight in sorted(weights.items()):
        digest.update(name.encode() + weight.detach().flatten()[:_WEIGHTS_OF_DIGEST].double().cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def log_of(
    own: RolloutRecipe, recipe: Recipe, encoder: ChatEncoder, run: str, verifiers: tuple[str, ...]
) -> Callable[[int], SampleLog] | None:
    """Return what opens the log of samples at a step; None if the run has no local folder of checkpoints."""
    folder = checkpoint_folder(recipe.checkpoint.folder, recipe.name)
    if recipe.no_checkpoints or "://" in folder:
        return None
    facts = {**facts_of_samples(own, encoder), "verifiers": verifiers, "run": run}
    is_fresh = own.checkpoint.load.strategy == "never"

    def opened(step: int) -> SampleLog:
        decode = encoder.tokenizer.decode
        return SampleLog(
            Path(folder) / FOLDER,
            step=step,
            since=step - own.rollout.steps_per_batch,  # a checkpoint may be within that batch
            facts=facts,
            is_fresh=is_fresh and step == 0,
            decode=decode,
        )

    return opened


_NOT_IN_SAMPLES = (
    *("name", "model", "data", "rollout", "stop", "checkpoint", "callbacks", "collect_every"),
    *("no_evals", "no_checkpoints", "stop_on_nan"),
)
"""Parts of a recipe that do not determine samples, or that are in the log's facts in another form."""

_WEIGHTS_OF_DIGEST = 256
"""Numbers of each starting weight that tell starting models apart."""


def facts_of_samples(own: RolloutRecipe, encoder: ChatEncoder) -> dict[str, object]:
    """Return what runs must have in common to learn from each other's samples."""
    ids = encoder.tokenizer.ids
    tokens = [encoder.tokenizer.identity, ids.eos_id, ids.bos_id, encoder.template.digest]
    return {
        "tokenizer and template": hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16],
        "temperature": own.rollout.temperature,
        "top_k": own.rollout.top_k,
        "top_p": own.rollout.top_p,
    }
