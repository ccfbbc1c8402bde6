"""The decoder: names, who hears whom, losses, and the places where it may be built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.train.model import tiny
from windlass.train.batch import IGNORE
from windlass.train.model.attention import attend
from windlass.train.model.config import MoEConfig, RopeConfig
from windlass.train.model.decoder import Decoder, LossSums
from windlass.train.model.masks import DenseMask
from windlass.train.model.rope import RopeTable
from windlass.train.optim.config import LossConfig

NORMS: list[dict[str, Any]] = [{"norm": "pre"}, {"norm": "reordered"}, {"norm": "peri"}]


def logits(model: Decoder, tokens_BT: Tensor, documents_BT: Tensor | None = None, **more: Any) -> Tensor:
    with torch.no_grad():
        made = model(tokens_BT, documents_BT, **more)
    assert isinstance(made, Tensor)
    return made


def losses(model: Decoder, tokens_BT: Tensor, labels_BT: Tensor, loss: LossConfig | None = None) -> LossSums:
    made = model(tokens_BT, labels_BT=labels_BT, loss=loss)
    assert isinstance(made, LossSums)
    return made


def heard_by(model: Decoder, place: int, length: int = 12, documents_BT: Tensor | None = None) -> list[int]:
    """Places whose output changes when the token at `place` does."""
    tokens_BT = tiny.tokens(1, length)
    other_BT = tokens_BT.clone()
    other_BT[0, place] = (other_BT[0, place] + 1) % 61
    changed_TV = logits(model, tokens_BT, documents_BT)[0] != logits(model, other_BT, documents_BT)[0]
    return [int(index) for index in changed_TV.any(dim=-1).nonzero()]


def test_names_of_weights_are_those_that_checkpoints_hold() -> None:
    model = tiny.decoder(norm="peri", attention=tiny.attention(qk_norm="head", bias=True))
    block = "blocks.1."
    assert [name for name, _ in model.named_parameters() if name.startswith(block)] == [
        block + name
        for name in (
            "attention_norm.weight",
            *(f"attention.{letter}.{kind}" for letter in "qkv" for kind in ("weight", "bias")),
            "attention.o.weight",
            "attention.q_norm.weight",
            "attention.k_norm.weight",
            "ffn_norm.weight",
            "ffn.gate.weight",
            "ffn.up.weight",
            "ffn.down.weight",
            "attention_post_norm.weight",
            "ffn_post_norm.weight",
        )
    ]
    outside = [name for name, _ in model.named_parameters() if not name.startswith("blocks.")]
    assert outside == ["embed.weight", "norm.weight", "head.weight"]
    assert not dict(model.named_buffers())


def test_names_of_experts() -> None:
    model = tiny.decoder(moe=MoEConfig(num_experts=4, hidden=8, shared_hidden=16))
    names = [name.removeprefix("blocks.0.moe.") for name, _ in model.named_parameters() if "blocks.0.moe" in name]
    assert names == [
        "gate",
        "up",
        "down",
        "router.weight",
        "shared.gate.weight",
        "shared.up.weight",
        "shared.down.weight",
    ]
    assert model.get_parameter("blocks.0.moe.gate").shape == (4, 8, 32)
    assert model.get_parameter("blocks.0.moe.down").shape == (4, 32, 8)


@pytest.mark.parametrize("changes", [*NORMS, {"is_tied": True}, {"attention": tiny.attention(head_dim=10)}])
def test_logits_are_one_row_of_the_vocabulary_for_each_token(changes: dict[str, Any]) -> None:
    assert logits(tiny.decoder(**changes), tiny.tokens(3, 7)).shape == (3, 7, 61)


@pytest.mark.parametrize("changes", NORMS)
def test_nobody_hears_the_future(changes: dict[str, Any]) -> None:
    assert heard_by(tiny.decoder(**changes), 5) == list(range(5, 12))


@pytest.mark.parametrize("window", [None, 3])
def test_documents_never_hear_each_other(window: int | None) -> None:
    model = tiny.decoder(attention=tiny.attention(window=window))
    documents_BT = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3]])
    for place in range(12):
        own = int(documents_BT[0, place])
        expected = [index for index in range(place, 12) if int(documents_BT[0, index]) == own]
        assert heard_by(model, place, documents_BT=documents_BT) == expected


def test_no_gradient_flows_between_documents() -> None:
    model = tiny.decoder()
    assert model.embed is not None
    documents_BT = torch.tensor([[0] * 5 + [1] * 7])
    tokens_BT = torch.arange(12)[None]
    made = model(tokens_BT, documents_BT)
    assert isinstance(made, Tensor)
    made[0, 5:].square().sum().backward()
    grad_VD = model.embed.weight.grad
    assert grad_VD is not None
    assert not grad_VD[:5].any()
    assert grad_VD[5:12].any(dim=1).all()


def test_a_document_is_the_same_alone() -> None:
    model = tiny.decoder()
    tokens_BT = tiny.tokens(1, 12)
    documents_BT = torch.tensor([[0] * 5 + [1] * 7])
    together = logits(model, tokens_BT, documents_BT)[:, 5:]
    torch.testing.assert_close(together, logits(model, tokens_BT[:, 5:]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("pattern", "reach"), [((), 4), ((True, False), 11), ((False, True), 11)])
def test_windows_bound_what_is_heard(pattern: tuple[bool, ...], reach: int) -> None:
    """Two layers of a window of 3 carry a token 2 * (3 - 1) places; a layer without one carries it on to the end."""
    model = tiny.decoder(attention=tiny.attention(window=3, window_pattern=pattern))
    assert heard_by(model, 0) == list(range(reach + 1))


def test_layers_may_have_rotary_embeddings_or_not() -> None:
    """Without any, tokens before the last one may change places."""
    model = tiny.decoder(num_layers=1, rope_pattern=(False,))
    tokens_BT = tiny.tokens(1, 6)
    swapped_BT = tokens_BT[:, [1, 0, 2, 3, 4, 5]]
    torch.testing.assert_close(logits(model, tokens_BT)[0, -1], logits(model, swapped_BT)[0, -1], rtol=1e-4, atol=1e-5)
    turned = tiny.decoder(num_layers=1)
    assert not torch.allclose(logits(turned, tokens_BT)[0, -1], logits(turned, swapped_BT)[0, -1], rtol=1e-2)


def test_windowed_layers_may_have_a_rope_of_their_own() -> None:
    both = {"attention": tiny.attention(window=8), "rope": RopeConfig(theta=500.0)}
    own = tiny.decoder(**both, window_rope=RopeConfig())
    plain = tiny.decoder(attention=tiny.attention(window=8))
    tokens_BT = tiny.tokens(1, 6)
    assert torch.equal(logits(own, tokens_BT), logits(plain, tokens_BT))
    assert not torch.equal(logits(tiny.decoder(**both), tokens_BT), logits(plain, tokens_BT))


def test_positions_may_be_given() -> None:
    model = tiny.decoder()
    tokens_BT = tiny.tokens(2, 6)
    given = logits(model, tokens_BT, positions_T=torch.arange(6))
    assert torch.equal(given, logits(model, tokens_BT))
    moved = logits(model, tokens_BT, positions_T=torch.arange(100, 106))
    torch.testing.assert_close(moved, given, rtol=1e-3, atol=1e-3)


def test_training_goes_on_after_an_evaluation_in_inference_mode() -> None:
    """Rotations and masks are made once; made in inference mode, they could not be part of a backward pass."""
    model = tiny.decoder(attention=tiny.attention(window=3))
    with torch.inference_mode():
        model(tiny.tokens())
    losses(model, tiny.tokens(), tiny.tokens(seed=1)).loss.backward()


def test_only_the_last_logits_on_request() -> None:
    model = tiny.decoder()
    last = logits(model, tiny.tokens(), num_logits=2)
    torch.testing.assert_close(last, logits(model, tiny.tokens())[:, -2:])


def test_a_tied_head_is_the_embedding() -> None:
    model = tiny.decoder(is_tied=True)
    assert model.embed is not None
    assert model.head_weight is model.embed.weight
    assert "head.weight" not in model.state_dict()
    losses(model, tiny.tokens(), tiny.tokens(seed=1)).loss.backward()
    assert model.embed.weight.grad is not None
    assert model.embed.weight.grad.any(dim=1).all()


def test_embeddings_and_logits_may_be_scaled_and_capped() -> None:
    plain, capped = tiny.decoder(), tiny.decoder(logit_soft_cap=2.0)
    bent = 2.0 * torch.tanh(logits(plain, tiny.tokens()) / 2.0)
    assert torch.equal(logits(capped, tiny.tokens()), bent)
    scaled = tiny.decoder(embed_scale=3.0)
    with torch.no_grad():
        plain.get_parameter("embed.weight").mul_(3.0)
    torch.testing.assert_close(logits(scaled, tiny.tokens()), logits(plain, tiny.tokens()))


def test_scores_may_be_capped_and_scaled() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 8, generator=generator) for _ in range(3))
    mask = DenseMask(is_causal=True)
    scores = (3.0 * torch.tanh(q @ k.transpose(-1, -2) * 0.7 / 3.0)).masked_fill(torch.ones(5, 5).triu(1).bool(), -1e9)
    torch.testing.assert_close(attend(q, k, v, mask, scale=0.7, soft_cap=3.0), scores.softmax(-1) @ v)
    uncapped = attend(q, k, v, mask, scale=0.7, soft_cap=None)
    torch.testing.assert_close(attend(q, k, v, mask, scale=0.7, soft_cap=1e4), uncapped, rtol=1e-4, atol=1e-4)


def test_grouped_heads_share_keys() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 6, 8, generator=generator)
    k, v = (torch.randn(1, 2, 6, 8, generator=generator) for _ in range(2))
    k_all, v_all = (x.repeat_interleave(2, dim=1) for x in (k, v))
    for mask in (DenseMask(is_causal=True), DenseMask(is_causal=False, seen_BQS=torch.ones(1, 6, 6).tril().bool())):
        shared = attend(q, k, v, mask, scale=0.5, soft_cap=None)
        torch.testing.assert_close(shared, attend(q, k_all, v_all, mask, scale=0.5, soft_cap=None))


def test_losses_are_sums_over_labels_that_count() -> None:
    model = tiny.decoder()
    tokens_BT, labels_BT = tiny.tokens(), tiny.tokens(seed=1)
    labels_BT[0, :5] = IGNORE
    made = losses(model, tokens_BT, labels_BT, LossConfig(z_loss=0.1))
    logits_BTV = logits(model, tokens_BT)
    counts = labels_BT != IGNORE
    counted = logits_BTV[counts].double()  # in float32 the expected sum itself is off by 1e-7
    torch.testing.assert_close(made.loss, F.cross_entropy(counted, labels_BT[counts], reduction="sum"))
    torch.testing.assert_close(made.z_loss, 0.1 * counted.logsumexp(-1).square().sum())
    assert made.aux.item() == 0
    assert {value.dtype for value in made} == {torch.float64}


def test_a_model_on_the_meta_device_has_shapes_and_no_memory() -> None:
    with torch.device("meta"):
        model = Decoder(tiny.config())
        made = model(torch.zeros(2, 8, dtype=torch.int64))
    assert isinstance(made, Tensor)
    assert made.shape == (2, 8, 61)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_stages_of_a_pipeline_are_decoders_that_lack_parts() -> None:
    whole = tiny.decoder(num_layers=3)
    first, last = tiny.decoder(num_layers=3), tiny.decoder(num_layers=3)
    first.norm = first.head = None
    del first.blocks["2"]
    last.embed = None
    del last.blocks["0"], last.blocks["1"]
    assert torch.equal(logits(last, logits(first, tiny.tokens())), logits(whole, tiny.tokens()))
    names = {*first.state_dict(), *last.state_dict()}
    assert names == set(whole.state_dict())


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "reordered", "attention": tiny.attention(window=3)}, {"norm": "peri"}], ids=str
)
def test_a_block_compiles_without_a_break(changes: dict[str, Any]) -> None:
    model = tiny.decoder(**changes)
    expected = logits(model, tiny.tokens())
    for block in model.blocks.values():
        block.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(logits(model, tiny.tokens()), expected)


def test_mixed_precision_leaves_rotations_in_float32() -> None:
    """FSDP casts tensors in arguments; a rotation is no tuple, so it stays."""
    from torch.utils._pytree import tree_leaves

    rotation = RopeTable(RopeConfig(), 8).take(0, 4, torch.device("cpu"))
    assert tree_leaves((rotation,)) == [rotation]
