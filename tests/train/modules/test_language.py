"""The decoder's module: what a batch weighs, microbatches, and what does not change with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from windlass.train.batch import IGNORE, Batch
from windlass.train.model.config import AttentionConfig, ModelConfig, MoEConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.flops import flops_per_token
from windlass.train.model.init import init_weights
from windlass.train.modules.language import LanguageModule, microbatches
from windlass.train.modules.protocol import StepFacts
from windlass.train.optim.build import build_optimizer
from windlass.train.optim.config import AdamWConfig, LossConfig, SkipConfig

ROWS, LENGTH, VOCAB = 4, 8, 32


def module_of(*, moe: MoEConfig | None = None, **settings: Any) -> LanguageModule:
    config = ModelConfig(
        d_model=16, num_layers=2, vocab_size=VOCAB, hidden=32, attention=AttentionConfig(num_heads=2), moe=moe
    )
    model = Decoder(config)
    init_weights(model, 0)
    return LanguageModule(model, build_optimizer(model, AdamWConfig(lr=1e-2)), **settings)


def batch_of(num_rows_step: int = ROWS) -> Batch:
    tokens_BT = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    labels_BT = tokens_BT[:, 1:].clone()
    labels_BT[1, 2:5] = IGNORE
    labels_BT[3, :7] = IGNORE
    return Batch(tokens_BT=tokens_BT[:, :-1], labels_BT=labels_BT, rows=tuple(range(ROWS)), num_rows_step=num_rows_step)


def facts_of(weight: float, step: int = 1) -> StepFacts:
    return StepFacts(step=step, tokens=0, total_weight=weight, lr_factor=1.0)


def test_labels_weigh_and_tokens_count() -> None:
    module, batch = module_of(), batch_of()
    assert isinstance(module.model, Decoder)
    assert module.weigh(batch) == ROWS * LENGTH - 3 - 7
    assert module.count(batch) == ROWS * LENGTH
    assert module.flops(batch) == flops_per_token(module.model.config, LENGTH) * ROWS * LENGTH


def test_microbatches_are_the_batch_in_order() -> None:
    batch = batch_of(2)
    parts = list(microbatches(batch))
    assert [part.rows for part in parts] == [(0, 1), (2, 3)]
    assert torch.equal(torch.cat([part.tokens_BT for part in parts]), batch.tokens_BT)
    assert next(iter(microbatches(batch_of()))).rows == (0, 1, 2, 3)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("loss", [LossConfig(), LossConfig(z_loss=1e-2), LossConfig(kind="plain")])
def test_accumulation_changes_neither_loss_nor_gradients(rows: int, loss: LossConfig) -> None:
    results = []
    for step in (ROWS, rows):
        module, batch = module_of(loss=loss), batch_of(step)
        metrics = module.train_batch(batch, facts_of(module.weigh(batch)))
        grads = torch.cat([weight.grad.flatten() for weight in module.model.parameters() if weight.grad is not None])
        results.append(({name: value.item() for name, value in metrics.items()}, grads))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-6)
    assert ("z_loss" in results[0][0]) == (loss.z_loss > 0)


def test_evaluation_gives_sums_and_leaves_no_gradient() -> None:
    module, batch = module_of(), batch_of(2)
    weight = module.weigh(batch)
    trained = module.train_batch(batch, facts_of(weight))["loss"].item()
    module.optimizer.zero_grad()
    found = module.eval_batch(batch)
    assert found["weight"].item() == weight
    assert found["loss"].item() / weight == pytest.approx(trained, rel=1e-6)
    assert all(parameter.grad is None for parameter in module.model.parameters())


def test_experts_have_a_loss_of_their_own() -> None:
    module, batch = module_of(moe=MoEConfig(num_experts=4, hidden=16)), batch_of()
    metrics = module.train_batch(batch, facts_of(module.weigh(batch)))
    assert metrics["moe_loss"].item() > 0
    assert set(metrics) == {"loss", "moe_loss"}


def test_steps_that_are_far_out_are_left_out_and_the_memory_of_them_is_saved() -> None:
    module, batch = module_of(skip=SkipConfig(window=4, sigmas=3.0)), batch_of()
    weight = module.weigh(batch)
    skipped = []
    for step in range(1, 7):
        scale = 1.0 if step != 6 else 1e-3  # the loss of the last step is a thousand times larger
        module.train_batch(batch, facts_of(weight * scale, step))
        before = [parameter.detach().clone() for parameter in module.model.parameters()]
        skipped.append(module.optim_step(facts_of(weight, step))["skipped"].item())
    assert skipped == [0, 0, 0, 0, 0, 1]
    assert all(torch.equal(a, b) for a, b in zip(before, module.model.parameters(), strict=True))

    other = module_of(skip=SkipConfig(window=4, sigmas=3.0))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.state_dict()["guard"]["past"], module.state_dict()["guard"]["past"])
    assert int(other.state_dict()["guard"]["count"]) == 6


def test_state_is_by_plain_names_and_is_the_training_state_itself() -> None:
    module = module_of()
    state = module.state_dict()
    assert set(state) == {"model", "optim"}
    assert "blocks.0.attention.q.weight" in state["model"]
    assert {name.rpartition(".")[2] for name in state["optim"]} == {"step", "exp_avg", "exp_avg_sq"}
    assert set(state["model"]) == {name.rpartition(".")[0] for name in state["optim"]}
    with torch.no_grad():
        state["model"]["norm.weight"].fill_(5.0)
    assert isinstance(module.model, Decoder)
    assert module.model.norm is not None
    assert module.model.norm.weight[0].item() == 5.0
