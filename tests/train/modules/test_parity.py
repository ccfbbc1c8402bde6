"""The train module against transformers: the same losses over 30 steps of AdamW, however the batch is cut."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.train.model import tiny
from tests.train.model.test_parity import FAMILIES, pair
from windlass.train.batch import IGNORE, Batch
from windlass.train.model.decoder import Decoder
from windlass.train.modules.language import LanguageModule
from windlass.train.modules.protocol import StepFacts
from windlass.train.optim.build import build_optimizer
from windlass.train.optim.config import AdamWConfig

STEPS, ROWS, LENGTH = 30, 4, 64
BOUND = 1e-6
"""Nats, absolute, at losses from 4.1 to 3.2."""


def batch(step: int) -> Tensor:
    """Few different tokens, so that there is something to learn."""
    return tiny.tokens(ROWS, LENGTH, seed=step) % 16


def of_transformers(model: Any) -> list[float]:
    """Its losses, from its own logits, summed without rounding; its float32 mean is off by up to 1e-6 itself."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        tokens_BT = batch(step)
        logits_NV = model(tokens_BT).logits[:, :-1].flatten(0, 1)
        labels_N = tokens_BT[:, 1:].flatten()
        losses.append(F.cross_entropy(logits_NV.detach().double(), labels_N).item())
        optimizer.zero_grad()
        F.cross_entropy(logits_NV, labels_N).backward()
        optimizer.step()
    return losses


def of_module(model: Decoder, *, rows: int, is_strict: bool, is_fused: bool) -> list[float]:
    """Losses that the train module reports."""
    config = AdamWConfig(lr=1e-3, weight_decay=1e-2, betas=(0.9, 0.999), max_grad_norm=None, is_fused=is_fused)
    optimizer = build_optimizer(model, config, is_strict=is_strict)
    module = LanguageModule(model, optimizer, max_grad_norm=None, is_strict=is_strict)
    losses = []
    for step in range(STEPS):
        tokens_BT = batch(step)
        labels_BT = F.pad(tokens_BT[:, 1:], (0, 1), value=IGNORE)
        given = Batch(tokens_BT=tokens_BT, labels_BT=labels_BT, num_rows_step=rows)
        facts = StepFacts(step=step + 1, tokens=0, total_weight=module.weigh(given), lr_factor=1.0)
        losses.append(module.train_batch(given, facts)["loss"].item())
        module.optim_step(facts)
    return losses


@pytest.mark.parametrize("name", FAMILIES)
def test_thirty_steps_of_the_module_have_the_losses_of_transformers(name: str, tmp_path: Path) -> None:
    ours, theirs = pair(name, tmp_path, init_std=0.05)
    wanted = of_transformers(theirs)
    assert wanted[-1] < wanted[0] - 0.5
    for rows, is_strict, is_fused in ((ROWS, False, True), (1, False, False), (1, True, False)):
        found = of_module(copy.deepcopy(ours), rows=rows, is_strict=is_strict, is_fused=is_fused)
        difference = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
        assert difference <= BOUND, (rows, is_strict, is_fused)
