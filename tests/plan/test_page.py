from __future__ import annotations

import dataclasses

from tests.plan.sample import FULL, PINS, plan_of
from windlass.pin.code.pinned import CodePin
from windlass.pin.environment.pinned import EnvironmentPin
from windlass.plan.page import plan_page
from windlass.plan.pins import Pins

PAGE = """\
experiment   grpo
why          does clip_higher 0.272 stop the entropy collapse?
plan         a464251c7626
where        local (local)
code         commit cccccccccccc (main of https://example.org/r.git)
environment  uv uv.lock sha256:111111111111, python 3.11.7
data         prompts: file:data/p.jsonl  sha256:dddddddddddd  1.5 KiB, 1 file
overrides    'tasks.score.vars.A=b c'
debug        CUDA_LAUNCH_BLOCKING=1

task train
  replicas     2 x 2 GPUs, 1.5 CPUs, 16GiB
  launcher     torchrun, 2 processes per replica
  command      python -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --node-rank ${rank} --master-addr ${leader.address} --master-port ${leader.port} --max-restarts 0 train.py --lr 1e-06 --seed 1 --data ${data.prompts} --to ${checkpoints} --out ${out}
  variables    NCCL_CUMEM_ENABLE=0
               CUDA_LAUNCH_BLOCKING=1
               PYTHONUNBUFFERED=1
               WINDLASS_* (12 variables)
  secrets      HF_TOKEN, WANDB_API_KEY (file)
  checkpoints  every 20m, matching step_*, resumes from the latest
  limits       5d for each task, 1d per job, ready within 10m, 30s to stop, stalled after 1m of silence at the earliest
  retries      50 after interruptions, 1 after failures

task score   after train
  replicas     1 x 0 GPUs
  shell        python eval.py ${tasks.train.out} --name "grpo it's" --layers 1 2 $HOME
  variables    A=b c
               NCCL_CUMEM_ENABLE=0
               CUDA_LAUNCH_BLOCKING=1
               LOCAL_RANK=0
               LOCAL_WORLD_SIZE=1
               MASTER_ADDR=${leader.address}
               MASTER_PORT=${leader.port}
               NODE_RANK=${rank}
               PYTHONUNBUFFERED=1
               RANK=${rank}
               WORLD_SIZE=1
               WINDLASS_* (12 variables)
  of the site  RESULTS_DIR=${out}
               BEAKER_* (16 variables)
  secrets      HF_TOKEN, WANDB_API_KEY (file)
  checkpoints  when the code saves, resumes from the latest
  limits       5d for each task, 1d per job, ready within 10m, 30s to stop, stalled after 1m of silence at the earliest
  retries      50 after interruptions, 1 after failures

notes
  - context.priority=high: no other user's runs compete for this machine
  - limit.time: applies to each task, to all its attempts together
  - params.deep.dim, params.is_fast: no command or variable uses it
"""


def test_the_page() -> None:
    assert plan_page(plan_of(FULL, overrides=["tasks.score.vars.A=b c"], is_debug=True)) == PAGE


def test_what_is_not_pinned_is_said() -> None:
    def head(code: CodePin) -> str:
        return plan_page(plan_of("{name: x, run: f}", pins=Pins(code=code)))

    in_place = head(CodePin(kind="in-place", commit="a" * 40, is_dirty=True, dirty_files=("a.py", "b.py")))
    assert "code         runs in place and is not pinned; its base is commit aaaaaaaaaaaa, edited:\n" in in_place
    assert "               b.py\n" in in_place
    snapshot = head(
        CodePin(kind="snapshot", tree="7" * 40, base="b" * 40, dirty_files=tuple(f"f{i}" for i in range(10)))
    )
    assert "code         snapshot 777777777777, differs from commit bbbbbbbbbbbb in\n" in snapshot
    assert "               and 2 more\n" in snapshot
    assert "code         none\n" in head(CodePin(kind="none"))


def test_environments() -> None:
    def line(environment: EnvironmentPin) -> str:
        text = plan_page(plan_of("{name: x, run: f}", pins=Pins(environment=environment)))
        return next(line for line in text.splitlines() if line.startswith("environment"))

    uv = dataclasses.replace(PINS.environment, groups=("dev",), unhashed=("torch==2.13.0",))
    expected = "uv uv.lock sha256:111111111111, python 3.11.7, group dev, torch==2.13.0 from outside the lock"
    assert line(uv) == f"environment  {expected}"
    python = EnvironmentPin(kind="python", python_version="3.11.7", interpreter="/v/bin/python", packages=("a==1",))
    assert line(python) == "environment  python 3.11.7 at /v/bin/python, as it is, 1 package"


def test_secrets_by_name_and_arguments_as_they_could_be_typed() -> None:
    text = plan_page(
        plan_of("{name: x, run: [f, 'a b', '${out}/x', '', \"it's\"], env: {secrets: [A, {name: B, as: file}]}}")
    )
    assert "  command      f 'a b' ${out}/x '' 'it'\"'\"'s'\n" in text
    assert "  secrets      A, B (file)\n" in text
