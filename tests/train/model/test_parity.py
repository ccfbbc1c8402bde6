"""Against transformers: the same weights give the same bits, and the same steps the same losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.train.model import tiny
from windlass.train.batch import IGNORE
from windlass.train.hf.convert_weights import export_model
from windlass.train.hf.mapped import ModuleWeights
from windlass.train.model.config import Llama3Scaling, RopeConfig, YarnScaling
from windlass.train.model.decoder import Decoder, LossSums
from windlass.train.optim.config import LossConfig

OLMO_ROPE = RopeConfig(theta=500_000.0)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "rope": RopeConfig(theta=500_000.0, scaling=Llama3Scaling(old_length=16))},
    "olmo2": {
        "family": "olmo2",
        "norm": "reordered",
        "norm_eps": 1e-6,
        "attention": tiny.attention(num_kv_heads=4, qk_norm="full"),
        "rope": OLMO_ROPE,
    },
    "olmo3": {
        "family": "olmo3",
        "norm": "reordered",
        "norm_eps": 1e-6,
        "num_layers": 4,
        "attention": tiny.attention(qk_norm="full", window=5, window_pattern=(True, True, True, False)),
        "rope": RopeConfig(theta=500_000.0, scaling=YarnScaling(factor=8, old_length=256, attention_factor=1.2)),
        "window_rope": OLMO_ROPE,
    },
    "qwen3": {
        "family": "qwen3",
        "norm_eps": 1e-6,
        "attention": tiny.attention(head_dim=12, qk_norm="head"),
        "rope": RopeConfig(theta=1_000_000.0),
    },
}


def pair(name: str, folder: Path, **changes: Any) -> tuple[Decoder, Any]:
    """Our model, and that of transformers with the same weights."""
    from transformers import AutoModelForCausalLM

    ours = tiny.decoder(**{**FAMILIES[name], **changes})
    export_model(ours.config, ModuleWeights(ours), folder / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(folder / "hf", attn_implementation="sdpa", dtype=torch.float32)
    return ours, theirs


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_the_same_bits(name: str, tmp_path: Path) -> None:
    ours, theirs = pair(name, tmp_path)
    tokens_BT = tiny.tokens(2, 24)
    with torch.no_grad():
        assert torch.equal(ours(tokens_BT), theirs(tokens_BT).logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_thirty_steps_have_the_same_losses(name: str, tmp_path: Path) -> None:
    ours, theirs = pair(name, tmp_path, init_std=0.02)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (ours, theirs)]
    difference, first, last = 0.0, 0.0, 0.0
    for step in range(30):
        tokens_BT = tiny.tokens(4, 24, seed=step) % 16
        labels_BT = F.pad(tokens_BT[:, 1:], (0, 1), value=IGNORE)
        sums = ours(tokens_BT, labels_BT=labels_BT, loss=LossConfig(kind="plain"))
        assert isinstance(sums, LossSums)
        logits_NV = theirs(tokens_BT).logits[:, :-1].flatten(0, 1)
        losses = [sums.loss / (labels_BT != IGNORE).sum(), F.cross_entropy(logits_NV, tokens_BT[:, 1:].flatten())]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        values = [loss.item() for loss in losses]
        difference = max(difference, abs(values[0] - values[1]))
        first, last = first or values[0], values[0]
    assert difference <= 1e-6
    assert last < first - 0.5
