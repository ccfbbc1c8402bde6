"""Text generation with a model on disk: load its tokenizer and weights, generate, decode."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from windlass.config.loading import from_data
from windlass.core.errors import SpecError, UsageError
from windlass.core.phrases import count
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import Tokenizer, load_tokenizer
from windlass.train.generation.generate import generate
from windlass.train.hf.mapped import fill
from windlass.train.hf.sources import StoredCheckpoint, companions_of, open_model
from windlass.train.model.decoder import Decoder
from windlass.train.parallel.world import device_of

if TYPE_CHECKING:
    from windlass.train.hf.mapped import ModelSource

__all__ = ["continue_texts"]


def continue_texts(
    checkpoint: str,
    prompts: list[str],
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    tokenizer: str = "",
    device: str = "auto",
) -> list[str]:
    """Return the model's continuation of each prompt, without the prompt itself. Loads the model into memory.

    Args:
        checkpoint: any path that `open_model` accepts.
        temperature: sampling temperature; 0 always takes the most likely token.
        tokenizer: as in a recipe; if empty, the recipe's, or the one in the Hugging Face folder.
        device: `auto`: a GPU if there is one.

    Raises:
        NotFoundError, CheckpointError: there is no checkpoint, or it is damaged.
        UsageError: no tokenizer is set, a prompt is empty, or the model's maximum length is exceeded.
        PreconditionError: `device` is a GPU, and there is none.
    """
    place = device_of(device)
    with open_model(checkpoint) as source:
        words = _tokenizer(source, checkpoint, tokenizer)
        tokens = [_encoded(words, prompt) for prompt in prompts]
        _check_length(max(map(len, tokens), default=0), max_new_tokens, source.config.max_length)
        with torch.device(place):
            model = Decoder(source.config)
        fill(dict(model.named_parameters()), source, checkpoint)
    model.eval()
    made = generate(
        model,
        tokens,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        eos=words.ids.eos_id,
        seed=seed,
    )
    return [words.decode(ids) for ids in made]


def _check_length(num_tokens: int, num_new: int, longest: int) -> None:
    if num_tokens + num_new > longest:
        raise UsageError(
            f"a prompt of {count(num_tokens, 'token')} and {num_new} new ones exceed the model's maximum of {longest}",
            hint=f"request at most {count(max(0, longest - num_tokens), 'new token')}, or shorten the prompt",
            code="invalid-value",
        )


def _encoded(words: Tokenizer, prompt: str) -> list[int]:
    begin = [] if words.ids.bos_id is None else [words.ids.bos_id]
    ids = [*begin, *words.encode(prompt)]
    if not ids:
        raise UsageError("the prompt is empty", hint="write at least one word", code="invalid-value")
    return ids


def _tokenizer(source: ModelSource, checkpoint: str, named: str) -> Tokenizer:
    config = TokenizerConfig()
    if isinstance(source, StoredCheckpoint):
        data = source.record.get("tokenizer") or source.record.get("recipe", {}).get("data", {}).get("tokenizer")
        config = config if data is None else from_data(TokenizerConfig, data, source=checkpoint)
    if named:
        return _loaded(replace(config, path=named), checkpoint)
    found = companions_of(source)
    is_found = config.path == "bytes" or (config.path and Path(config.path).expanduser().exists())
    if is_found or "tokenizer.json" not in found.files:
        return _loaded(config, checkpoint)
    with tempfile.TemporaryDirectory(prefix="windlass-tokenizer-") as folder:
        for name, content in found.files.items():
            (Path(folder) / name).write_bytes(content)
        eos_id = _one_id(found.ids.get("eos_token_id")) if config.eos_id is None else config.eos_id
        return _loaded(replace(config, path=folder, eos_id=eos_id), checkpoint)


def _one_id(stated: object) -> int | None:
    """Return the end id from a config.json, or None if it lists several, so that the tokenizer decides."""
    return stated if isinstance(stated, int) and not isinstance(stated, bool) and stated >= 0 else None


def _loaded(config: TokenizerConfig, checkpoint: str) -> Tokenizer:
    try:
        return load_tokenizer(config)
    except SpecError as error:
        if error.code != "tokenizer-missing":
            raise
        hint = "set `--tokenizer` to a tokenizer.json, a folder with one, a name on the Hugging Face hub, or `bytes`"
        raise UsageError(f"{checkpoint} has no tokenizer", hint=hint, code="tokenizer-missing") from error
