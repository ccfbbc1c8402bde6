"""Launchers of distributed training over several nodes of a real Slurm, on CPUs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON
from windlass import Run
from windlass.record.state import State

pytestmark = pytest.mark.system

_DDP = """
import json, os, pathlib, signal, sys
import torch, torch.distributed as dist

num_steps, victim, out = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(os.environ["WINDLASS_OUT"])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
saved = out / "state.pt"
begin = 0
if saved.exists():
    state = torch.load(saved)
    begin = state["step"]
    model.module.load_state_dict(state["model"])
for step in range(begin, num_steps):
    model.zero_grad()
    model(torch.full((1, 4), float(rank + step))).sum().backward()
    with torch.no_grad():
        for each in model.parameters():
            each -= 0.1 * each.grad
    if rank == 0:
        torch.save({"step": step + 1, "model": model.module.state_dict()}, out / "new.pt")
        os.replace(out / "new.pt", saved)
    dist.barrier()
    if rank == victim and step == 1 and os.environ["WINDLASS_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
said = {"rank": rank, "local": int(os.environ.get("LOCAL_RANK", 0)), "world": dist.get_world_size(), "sum": total.item()}
said |= {"host": os.uname().nodename, "leader": os.environ["MASTER_ADDR"], "begin": begin}
said |= {"weights": [round(value, 5) for each in model.parameters() for value in each.flatten().tolist()]}
(out / f"said-{rank}").write_text(json.dumps(said))
dist.destroy_process_group()
"""


def train(stage: SlurmStage, *words: str, **settings: object) -> Run:
    stage.write("ddp.py", _DDP)
    spec = stage.task([PYTHON, "ddp.py", *words], **settings)
    spec["env"] = {"vars": {"OMP_NUM_THREADS": "1"}}
    return stage.start(spec)


def said(run: Run) -> list[dict[str, object]]:
    """What every rank said, by rank."""
    found = [json.loads(path.read_text()) for path in run.output("main").glob("said-*")]
    return sorted(found, key=lambda each: each["rank"])


def test_torchrun_over_four_nodes_trains_as_one(slurm_stage: SlurmStage, need: Callable[[str], None]) -> None:
    need("torch")
    run = train(slurm_stage, "2", "-1", nodes=4, cluster="torchrun", procs_per_node=2)
    assert slurm_stage.end(run, 300) is State.SUCCEEDED, slurm_stage.story(run) + slurm_stage.log(run)
    ranks = said(run)
    assert [each["rank"] for each in ranks] == list(range(8))
    assert [each["local"] for each in ranks] == [0, 1] * 4
    assert {(each["world"], each["sum"]) for each in ranks} == {(8, 36.0)}
    assert len({each["host"] for each in ranks}) == 4
    assert {each["leader"] for each in ranks} == {slurm_stage.lab.ip(str(ranks[0]["host"]))}
    assert len({str(each["weights"]) for each in ranks}) == 1, "the replicas hold different weights"
    slurm_stage.wait_until_queue_is_empty()


def test_a_killed_rank_goes_on_from_its_checkpoint_in_the_same_job(
    slurm_stage: SlurmStage, need: Callable[[str], None]
) -> None:
    need("torch")
    run = train(slurm_stage, "3", "1", nodes=2, cluster="torchrun", procs_per_node=1)
    assert slurm_stage.end(run, 300) is State.SUCCEEDED, slurm_stage.story(run) + slurm_stage.log(run)
    assert slurm_stage.causes(run) == ["killed", "ok"]
    assert len(slurm_stage.job_ids(run)) == 1
    assert [(each["begin"], each["sum"]) for each in said(run)] == [(2, 3.0)] * 2
    slurm_stage.wait_until_queue_is_empty()


def test_a_plain_gang_meets_through_the_variables_of_torch(
    slurm_stage: SlurmStage, need: Callable[[str], None]
) -> None:
    need("torch")
    run = train(slurm_stage, "1", "-1", nodes=2)
    assert slurm_stage.end(run, 300) is State.SUCCEEDED, slurm_stage.story(run) + slurm_stage.log(run)
    assert [(each["world"], each["sum"]) for each in said(run)] == [(2, 3.0)] * 2
    assert len({each["host"] for each in said(run)}) == 2


def test_mpi_gets_a_file_of_all_hosts_on_the_first(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    line = 'cat ${hostfile} > $WINDLASS_OUT/hosts; hostname > $WINDLASS_OUT/"head-$(hostname)"'
    run = stage.start(stage.task(line, nodes=4, cluster="mpi", procs_per_node=2))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    newest = run.facts.task("main").newest_attempt
    assert newest is not None
    hosts = [newest.replicas[rank].host for rank in range(4)]
    assert (run.output("main") / "hosts").read_text().splitlines() == [
        f"{stage.lab.ip(host)} slots=2" for host in hosts
    ]
    assert [path.name for path in run.output("main").glob("head-*")] == [f"head-{hosts[0]}"]
    stage.wait_until_queue_is_empty()


def test_srun_gives_every_process_its_place_and_gpu(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "MASTER_ADDR")
    text = f"import os; os.write(1, (' '.join(os.environ[name] for name in {names}) + '\\n').encode())"
    run = stage.start(stage.python(text, nodes=2, gpus=2, cluster="srun"))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    lines = [line.split() for rank in range(2) for line in sorted(stage.log(run, 1, rank).splitlines())]
    assert [line[:6] for line in lines] == [[str(n), str(n % 2), "4", str(n), str(n % 2), "4"] for n in range(4)]
    newest = run.facts.task("main").newest_attempt
    assert newest is not None
    assert {line[6] for line in lines} == {stage.lab.ip(newest.replicas[0].host)}
