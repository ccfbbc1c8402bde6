"""Models to Hugging Face and back, against transformers itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.hf.models import MODELS
from windlass.train.hf.convert_weights import export_model, import_hf, load_hf
from windlass.train.hf.mapped import ModuleWeights
from windlass.train.model.config import ModelConfig
from windlass.train.model.decoder import Decoder

os.environ["HF_HUB_OFFLINE"] = "1"


def decoder(config: ModelConfig, seed: int = 0) -> Decoder:
    """A decoder whose every weight is random, norms and biases too, so that a wrong name shows."""
    torch.manual_seed(seed)
    model = Decoder(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (1.0 if parameter.dim() == 1 else 0.0))
    model.eval()
    return model


def oracle(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).eval()


def logits(model: Any, tokens_BT: Tensor) -> Tensor:
    with torch.no_grad():
        made = model(tokens_BT)
    found: Tensor = made.logits if hasattr(made, "logits") else made
    return found


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_same(tmp_path: Path, name: str) -> None:
    ours = decoder(MODELS[name])
    theirs = oracle(export_model(ours.config, ModuleWeights(ours), tmp_path / "hf"))
    tokens_BT = torch.randint(0, ours.config.vocab_size, (2, 24))
    difference = (logits(ours, tokens_BT) - logits(theirs, tokens_BT)).abs().max()
    assert float(difference) <= (1e-5 if ours.config.moe is None else 2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_back_again_is_the_same_bits(tmp_path: Path, name: str) -> None:
    ours = decoder(MODELS[name])
    oracle(export_model(ours.config, ModuleWeights(ours), tmp_path / "hf")).save_pretrained(tmp_path / "theirs")
    with import_hf(tmp_path / "theirs") as weights:
        assert weights.config == ours.config
    back = Decoder(ours.config)
    load_hf(back, tmp_path / "theirs")
    for (left, a), (right, b) in zip(ours.named_parameters(), back.named_parameters(), strict=True):
        assert left == right
        assert torch.equal(a, b), left
