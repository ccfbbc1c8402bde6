"""Checkpoints written by any number of processes, in any parallel shape, are read by any other."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from windlass.testing.distributed import run_distributed_test
from windlass.train.checkpoint import saving
from windlass.train.checkpoint.collectives import Collectives
from windlass.train.checkpoint.files import open_files
from windlass.train.checkpoint.store import FolderStore
from windlass.train.errors import CheckpointError
from windlass.train.parallel.world import World

SHAPES = {"embed.weight": (13, 8), "q.weight": (8, 6), "experts": (4, 6, 2), "norm.weight": (7,), "step": ()}
KINDS = {1: ("plain",), 2: ("plain", "fsdp", "tp"), 4: ("plain", "fsdp", "hsdp", "fsdp-tp")}


def whole(name: str) -> Tensor:
    """The whole tensor of a name; any process can make it."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(SHAPES[name], generator=generator)


class StagedTensor:
    """The first so many processes of a larger world, as a world of their own; made by all processes together."""

    def __init__(self, world: World, size: int) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        self.size, self.is_in = size, world.rank < size
        self.collectives = Collectives(World(device=torch.device("cpu")))
        self.collectives.rank, self.collectives.size = world.rank, size
        self.collectives._group = dist.new_group(list(range(size)), backend="gloo")
        self.line = DeviceMesh("cpu", torch.arange(size))
        self.grid = DeviceMesh("cpu", torch.arange(size).view(2, -1)) if size > 2 else self.line

    def store(self, folder: str) -> FolderStore:
        return FolderStore(open_files(folder), self.collectives, owner="run")

    def placed(self, kind: str, tensor: Tensor) -> Tensor:
        """A tensor as a parallel shape holds it."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

        if kind == "plain" or tensor.ndim == 0:
            return tensor.clone()
        columns: Placement = Shard(1) if tensor.ndim > 1 else Replicate()
        layouts: dict[str, tuple[DeviceMesh, list[Placement]]] = {
            "fsdp": (self.line, [Shard(0)]),
            "tp": (self.line, [columns]),
            "hsdp": (self.grid, [Replicate(), Shard(0)]),
            "fsdp-tp": (self.grid, [Shard(0), columns]),
        }
        mesh, placements = layouts[kind]
        return distribute_tensor(tensor, mesh, placements, src_data_rank=None)

    def state(self, kind: str, *, is_filled: bool) -> dict[str, Any]:
        """A training state in a parallel shape, with its values or with zeros to be filled."""
        tensors = {name: whole(name) if is_filled else torch.zeros(SHAPES[name]) for name in SHAPES}
        return {
            "model": {name: self.placed(kind, tensor) for name, tensor in tensors.items() if name != "step"},
            "optim": {
                "embed.weight.exp_avg": self.placed(kind, tensors["embed.weight"] * 2),
                "embed.weight.step": tensors["step"].clone(),
                "groups": {"0": {"lr": 0.125 if is_filled else 0.0, "betas": [0.9, 0.95]}},
            },
        }


def everything(world: World, folder: str) -> None:
    parts = {size: StagedTensor(world, size) for size in KINDS}
    written = [(size, kind) for size, kinds in KINDS.items() for kind in kinds]
    for number, (size, kind) in enumerate(written):
        if parts[size].is_in:
            save(parts[size], folder, kind, number)
    dist.barrier()
    for size, kind in written:
        if parts[size].is_in:
            for number in range(len(written)):
                load(parts[size], folder, kind, number)
    if world.rank == 0:
        check_shares(folder, written)


def save(part: StagedTensor, folder: str, kind: str, number: int) -> None:
    store = part.store(folder)
    state = part.state(kind, is_filled=True)
    pending = store.save(
        state, {"number": number}, step=number, tokens=0, config={}, is_permanent=True, is_async=number % 2 == 0
    )
    for tensor in state["model"].values():
        tensor.mul_(2 if number % 2 == 0 else 1)
    pending.wait()


def load(part: StagedTensor, folder: str, kind: str, number: int) -> None:
    store, state = part.store(folder), part.state(kind, is_filled=False)
    assert store.load(f"{folder}/step-{number}", state) == {"number": number}
    for name, tensor in state["model"].items():
        assert torch.equal(local(tensor), local(part.placed(kind, whole(name)))), (kind, number, name)
    expected = part.placed(kind, whole("embed.weight") * 2)
    assert torch.equal(local(state["optim"]["embed.weight.exp_avg"]), local(expected))
    assert torch.equal(state["optim"]["embed.weight.step"], whole("step"))
    assert state["optim"]["groups"]["0"]["lr"] == 0.125


def local(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def check_shares(folder: str, written: Sequence[tuple[int, str]]) -> None:
    """Every process wrote, and each byte was written once."""
    for number, (size, _) in enumerate(written):
        files = sorted(Path(folder, f"step-{number}").glob("model-*.safetensors"))
        assert len(files) > 1 or size == 1
        payload = sum(file.stat().st_size - 8 - int.from_bytes(file.read_bytes()[:8], "little") for file in files)
        assert payload == 4 * sum(whole(name).numel() for name in SHAPES if name != "step")


def real_modules(world: World, folder: str) -> None:
    """What torch's own FSDP, HSDP, TP and both together make of a model, uneven rows and all."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def model(kind: str) -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(10, 14, bias=False), nn.Linear(14, 5, bias=False))
        if kind == "fsdp":
            fully_shard(made, mesh=init_device_mesh("cpu", (4,)))
        elif kind == "hsdp":
            fully_shard(made, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")))
        elif kind == "both":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            parallelize_module(made, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
            fully_shard(made, mesh=mesh["dp"])
        return made

    reference = model("plain").state_dict()
    kinds = ("plain", "fsdp", "hsdp", "both")
    store = FolderStore(open_files(folder), Collectives(world), owner="run")
    for number, kind in enumerate(kinds):
        state = {"model": model(kind).state_dict()}
        store.save(state, {}, step=number, tokens=0, config={}, is_permanent=True, is_async=False)
    for number in range(len(kinds)):
        for kind in kinds:
            made = model(kind)
            with torch.no_grad():
                for weight in made.parameters():
                    weight.zero_()
            store.load(f"{folder}/step-{number}", {"model": made.state_dict()})
            for name, value in made.state_dict().items():
                full = value.full_tensor() if hasattr(value, "full_tensor") else value
                assert torch.equal(full, reference[name]), (number, kind, name)


def four_processes(world: World, folder: str) -> None:
    everything(world, f"{folder}/shapes")
    real_modules(world, f"{folder}/modules")


@pytest.mark.system
def test_any_shape_to_any(tmp_path: Path) -> None:
    run_distributed_test(four_processes, 4, args=(str(tmp_path),))


def stages(world: World, folder: str) -> None:
    """Processes with different weights, as stages of a pipeline have them, and one process with all."""
    store = FolderStore(open_files(folder), Collectives(world), owner="run")
    mine = {"model": {f"w{world.rank}": torch.full((3,), float(world.rank))}, "optim": {f"lr{world.rank}": world.rank}}
    store.save(mine, {}, step=1, tokens=0, config={}, is_permanent=True, is_async=True)
    found: dict[str, Any] = {"model": {f"w{world.rank}": torch.zeros(3)}, "optim": {f"lr{world.rank}": -1}}
    store.load(f"{folder}/step-1", found)
    assert found["model"][f"w{world.rank}"].tolist() == [world.rank] * 3
    assert found["optim"][f"lr{world.rank}"] == world.rank
    everything = {"model": {f"w{rank}": torch.zeros(3) for rank in range(2)}, "optim": {"lr0": -1, "lr1": -1}}
    store.load(f"{folder}/step-1", everything)
    assert everything["optim"] == {"lr0": 0, "lr1": 1}
    with pytest.raises(CheckpointError, match=r"unexpected `model\.w1`"):
        store.load(f"{folder}/step-1", {"model": {"w0": torch.zeros(3)}})


def errors(world: World, folder: str) -> None:
    """Whatever goes wrong on one process is raised on all, and the next save works."""
    store = FolderStore(open_files(folder), Collectives(world), owner="run")
    good = {"model": {"a": torch.arange(4.0)}}

    def save(state: dict[str, Any], step: int, *, is_async: bool = True) -> str:
        pending = store.save(state, {}, step=step, tokens=0, config={}, is_permanent=True, is_async=is_async)
        return pending.wait().path

    def refused(state: dict[str, Any], problem: str) -> None:
        with pytest.raises(CheckpointError, match=problem):
            save(state, 2)

    path = save(good, 1)
    refused({"model": {"a": object() if world.rank else torch.zeros(1)}}, "unsupported type object")
    refused(
        {"model": {"a": torch.zeros(2 + world.rank)}}, r"`model\.a` is F32 \[3\] on rank 1 and F32 \[2\] on another"
    )
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == 1:
            patch.setattr(saving, "write_shard", full_disk)
        refused({"model": {"a": torch.zeros(1), "b": torch.zeros(1)}}, "step 2 was not saved: rank 1: x: No space left")
    assert [item.step for item in store.committed()] == [1]
    wanted = {"model": {"a": torch.zeros(4 + world.rank)}}
    with pytest.raises(CheckpointError, match=r"`model\.a` is \[4\] there, \[5\] here"):
        store.load(path, wanted)
    assert save(good, 3).endswith("step-3")
    assert sorted(found.name for found in Path(folder).iterdir()) == ["step-1", "step-3"]


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")


def two_processes(world: World, folder: str) -> None:
    errors(world, f"{folder}/errors")
    stages(world, f"{folder}/stages")


@pytest.mark.system
def test_errors_of_one_are_errors_of_all_and_stages_have_their_own(tmp_path: Path) -> None:
    run_distributed_test(two_processes, 2, args=(str(tmp_path),))
