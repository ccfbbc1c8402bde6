"""First weights: of the seed and the name, whatever the mesh."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.train.model import tiny
from windlass.core.errors import SpecError
from windlass.train.model.config import MoEConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights

MOE = MoEConfig(num_experts=4, hidden=8)


def filled(seed: int = 0, **changes: object) -> dict[str, torch.Tensor]:
    model = Decoder(tiny.config(**changes))
    init_weights(model, seed)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_the_same_seed_gives_the_same_weights_and_another_others() -> None:
    first, again, other = filled(), filled(), filled(1)
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        assert torch.equal(weight, other[name]) == (weight.dim() == 1), name


def test_weights_do_not_depend_on_other_layers() -> None:
    small, large = filled(num_layers=1), filled(num_layers=3)
    assert all(torch.equal(weight, large[name]) for name, weight in small.items())
    assert not torch.equal(large["blocks.0.ffn.up.weight"], large["blocks.1.ffn.up.weight"])


def test_matrices_are_normal_and_cut_norms_one_and_biases_zero() -> None:
    made = filled(attention=tiny.attention(bias=True, qk_norm="head"), moe=MOE, init_std=0.05)
    values = torch.cat([weight.flatten() for weight in made.values() if weight.dim() > 1])
    assert values.std().item() == pytest.approx(0.05, rel=0.05)
    assert 0.13 < values.abs().max().item() <= 0.15
    assert all((weight == 1).all() for name, weight in made.items() if "norm" in name)
    assert all((weight == 0).all() for name, weight in made.items() if name.endswith("bias"))


def test_a_model_on_the_meta_device_becomes_real() -> None:
    with torch.device("meta"):
        model = Decoder(tiny.config())
    init_weights(model, 0)
    expected = filled()
    assert all(torch.equal(parameter, expected[name]) for name, parameter in model.named_parameters())
    assert model(tiny.tokens()).isfinite().all()


@pytest.fixture(params=[0, 2])
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    """This process's rank among three that are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=3)
    yield request.param
    dist.destroy_process_group()


def test_shards_are_cut_from_the_whole(rank: int) -> None:
    with torch.device("meta"):
        model = Decoder(tiny.config(moe=MOE))
    # another name for each rank: torch keeps meshes, and one that looks the same would be taken for it
    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=(f"shard{rank}",))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    init_weights(model, 0)
    for name, whole in filled(moe=MOE).items():
        parameter = model.get_parameter(name)
        assert isinstance(parameter, DTensor)
        parts = whole.chunk(3)
        expected = parts[rank] if rank < len(parts) else whole[:0]
        assert torch.equal(parameter.to_local(), expected), name


class Odd(torch.nn.Module):
    """A layer with parameters of its own, beside ones that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = torch.nn.Parameter(torch.full((4,), 0.9))
        self.mix = torch.nn.Parameter(torch.full((4, 4), 0.25))
        self.inner = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)


class Resettable(Odd):
    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.decay.fill_(0.5)
            self.mix.fill_(0.125)


def test_parameters_that_are_not_known_are_left_alone_and_named() -> None:
    model = Odd()
    assert init_weights(model, 0, std=0.1) == ["decay", "mix"]
    assert torch.equal(model.decay, torch.full((4,), 0.9))
    assert torch.equal(model.mix, torch.full((4, 4), 0.25))
    assert not torch.equal(model.inner.weight, Odd().inner.weight)
    assert torch.equal(model.inner.bias, torch.zeros(4))
    assert torch.equal(model.norm.weight, torch.ones(4))


def test_a_layer_of_a_decoder_keeps_its_own_parameters() -> None:
    model = Decoder(tiny.config())
    model.blocks["0"].get_submodule("attention").register_parameter("decay", torch.nn.Parameter(torch.full((4,), 0.9)))
    assert init_weights(model, 0) == ["blocks.0.attention.decay"]
    assert torch.equal(model.get_parameter("blocks.0.attention.decay"), torch.full((4,), 0.9))
    assert init_weights(Decoder(tiny.config(moe=MOE)), 0) == []


def test_without_a_value_a_module_gives_its_own_or_is_named() -> None:
    with torch.device("meta"):
        known, odd = Resettable(), Odd()
    assert init_weights(known, 0) == ["decay", "mix"]
    assert torch.equal(known.decay, torch.full((4,), 0.5))
    with pytest.raises(SpecError) as caught:
        init_weights(odd, 0)
    assert caught.value.message == "cannot initialize `decay`: unknown layer Odd"
    assert caught.value.code == "unsupported-model"
    assert "reset_parameters" in caught.value.hint
