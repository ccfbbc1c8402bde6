"""Clipping and optimisers over DDP, FSDP and HSDP against one process, on gloo."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from windlass.testing.distributed import run_distributed_test
from windlass.train.optim.build import build_optimizer, ensure_state
from windlass.train.optim.clip import clip, tensor_norms
from windlass.train.optim.config import AdamWConfig, DionConfig, LionConfig, MuonConfig, NorMuonConfig, OptimConfig
from windlass.train.optim.skip import step_unless
from windlass.train.parallel.world import World

pytestmark = pytest.mark.system

CONFIGS: dict[str, OptimConfig] = {
    "adamw": AdamWConfig(lr=0.01),
    "lion": LionConfig(lr=0.01),
    "muon": MuonConfig(lr=0.01, adamw_lr=0.02),
    "normuon": NorMuonConfig(lr=0.01, adamw_lr=0.02),
    "dion": DionConfig(lr=0.01, adamw_lr=0.02, rank_share=0.5),
}

FIXED = {name: config for name, config in CONFIGS.items() if name not in {"normuon", "dion"}}
"""Those whose sums over shards have a fixed order, and whose state is spread as the weights are."""


class Block(nn.Module):
    """Rows that two do not divide, a bias with fewer entries than four, and a stack of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 12)
        self.odd = nn.Linear(12, 5, bias=False)
        self.down = nn.Linear(5, 8)
        self.moe = nn.Parameter(torch.randn(4, 8, 6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.tanh(self.odd(self.up(x))))
        return out + torch.einsum("bi,eio,eko->bk", x, self.moe, self.moe)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(3, 8, bias=False)
        self.blocks = nn.ModuleDict({"0": Block(), "1": Block()})
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        out: Tensor = self.head(x)
        return out


def rows(seed: int) -> Tensor:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))


def whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.detach().clone()


def sharded(net: Net, shape: tuple[int, ...]) -> Net:
    """Over all processes, or over two (each half of them for itself)."""
    if shape == (2,):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("halves", "dp_shard"))["dp_shard"]
    else:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard")[-len(shape) :])
    for block in net.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def backward(net: nn.Module, seed: int, rank: int, size: int) -> None:
    net.zero_grad()
    part = rows(seed)[rank * 8 // size : (rank + 1) * 8 // size]
    (net(part).square().mean()).backward()


def train(
    net: nn.Module, config: OptimConfig, rank: int, size: int, **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    optimizer = build_optimizer(net, config, **options)
    norms = []
    for seed in range(3):
        backward(net, seed, rank, size)
        norms.append(clip(net.parameters(), 0.5))
        optimizer.step()
    return [whole(parameter) for parameter in net.parameters()], norms


def check_data_parallel(world: World) -> None:
    for name in CONFIGS:
        # Dividing by small norms enlarges what float32 rounds, so these two are compared where rounding is no question.
        torch.set_default_dtype(torch.float64 if name in {"normuon", "dion"} else torch.float32)
        check_fsdp(name, (4,), world.rank)
        check_fsdp(name, (2, 2), world.rank)
        check_fsdp(name, (2,), world.rank % 2)
        check_ddp(name, world)
    torch.set_default_dtype(torch.float32)


def check_fsdp(name: str, shape: tuple[int, ...], rank: int) -> None:
    config = CONFIGS[name]
    expected, norms = train(Net(), config, 0, 1)
    found, sharded_norms = train(sharded(Net(), shape), config, rank, torch.Size(shape).numel())
    torch.testing.assert_close(sharded_norms, norms, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def check_ddp(name: str, world: World) -> None:
    expected, norms = train(Net(), CONFIGS[name], 0, 1)
    net = nn.parallel.DistributedDataParallel(Net())
    found, ours = train(net, CONFIGS[name], world.rank, world.size, replicas=dist.group.WORLD)
    torch.testing.assert_close(ours, norms, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for weight in found:
        first = weight.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, weight), "processes hold different weights"


def check_strict(world: World) -> None:
    """The same gradients in any sharding give the same bits of norm and weights."""
    expected = strict_bits(None)
    for shape in ((2,), (4,), (2, 2)):
        assert [key for key, bits in strict_bits(shape).items() if bits != expected[key]] == []


def strict_bits(shape: tuple[int, ...] | None) -> dict[str, bytes]:
    results: dict[str, bytes] = {}
    for name, config in FIXED.items():
        net = Net() if shape is None else sharded(Net(), shape)
        optimizer = build_optimizer(net, config, is_strict=True)
        norms = []
        for seed in range(2):
            generator = torch.Generator().manual_seed(seed)
            for parameter in net.parameters():
                full = torch.randn(parameter.shape, generator=generator)
                parameter.grad = spread(full, parameter) if isinstance(parameter, DTensor) else full
            norms.append(clip(net.parameters(), 0.5, is_strict=True))
            optimizer.step()
        values = {"norm": torch.stack(norms), **{key: whole(value) for key, value in net.named_parameters()}}
        results |= {f"{name} {key}": value.numpy().tobytes() for key, value in values.items()}
    return results


def spread(full: Tensor, like: DTensor) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, like.device_mesh, like.placements)


def check_mixed(world: World) -> None:
    check_tensor_parallel(world, 1)
    check_tensor_parallel(world, 2)
    check_guard(world)


def check_tensor_parallel(world: World, data: int) -> None:
    """FSDP over tensor parallelism: norms over both axes, and Muon where matrices are cut twice."""
    mesh = init_device_mesh("cpu", (data, world.size // data), mesh_dim_names=("dp_shard", "tp"))
    for name, config in FIXED.items():
        expected, norms = train(EvenNet(), config, 0, 1)
        net = EvenNet()
        plan = {
            "embed": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0)),
            "blocks.0.norm": SequenceParallel(sequence_dim=0),
            "blocks.0.up": ColwiseParallel(input_layouts=Shard(0)),
            "blocks.0.down": RowwiseParallel(),
        }
        parallelize_module(net, mesh["tp"], plan)
        if data > 1:
            fully_shard(net, mesh=mesh["dp_shard"])
        found, ours = train(net, config, mesh["dp_shard"].get_local_rank(), data)
        torch.testing.assert_close([whole(norm) for norm in ours], norms, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=partial("{}: {}".format, name))


class EvenNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(3, 8, bias=False)
        self.blocks = nn.ModuleDict(
            {
                "0": nn.ModuleDict(
                    {"norm": nn.LayerNorm(8), "up": nn.Linear(8, 16, bias=False), "down": nn.Linear(16, 8, bias=False)}
                )
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        block: Any = self.blocks["0"]
        out: Tensor = block["down"](torch.tanh(block["up"](block["norm"](self.embed(x)))))
        return out


def check_guard(world: World) -> None:
    """A kernel that looks at `found_inf` does so for shards too, and state passes through torch's checkpoint."""
    for config in FIXED.values():
        net = sharded(Net(), (world.size,))
        optimizer = build_optimizer(net, config)
        ensure_state(optimizer)
        before = [whole(parameter) for parameter in net.parameters()]
        backward(net, 0, world.rank, world.size)
        grads = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
        torch.testing.assert_close(tensor_norms(grads), [whole(grad).norm() for grad in grads])
        step_unless(optimizer, torch.tensor(1.0))
        assert all(torch.equal(a, whole(b)) for a, b in zip(before, net.parameters(), strict=True))
        step_unless(optimizer, torch.tensor(0.0))
        assert not any(torch.equal(a, whole(b)) for a, b in zip(before, net.parameters(), strict=True))
        state: Any = get_optimizer_state_dict(net, optimizer)["state"]
        buffers = [value for entry in state.values() for value in entry.values() if value.ndim]
        assert all(isinstance(value, DTensor) and value.placements == (Shard(0),) for value in buffers)


@pytest.mark.parametrize("check", [check_data_parallel, check_strict, check_mixed])
def test_four_processes(check: Any) -> None:
    run_distributed_test(check, 4)
