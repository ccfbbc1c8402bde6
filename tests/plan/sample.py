"""Experiments and pins that the tests of the planner share."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.config.loading import load_config
from windlass.pin.code.pinned import CodePin
from windlass.pin.data.pinned import DataPin
from windlass.pin.environment.pinned import EnvironmentPin
from windlass.plan.pins import Pins
from windlass.plan.plan import Plan
from windlass.plan.planner import make_plan
from windlass.plan.site import Site, SiteResources
from windlass.spec import Experiment

BIG = Site(machine=SiteResources(num_gpus=8, num_cpus=64.0, memory_bytes=256 << 30))
SMALL = Site(machine=SiteResources(num_gpus=2, num_cpus=4.0, memory_bytes=8 << 30))
BARE = Site(machine=SiteResources(num_gpus=0, num_cpus=2.0, memory_bytes=4 << 30))

PINS = Pins(
    code=CodePin(kind="commit", commit="c" * 40, tree="7" * 40, remote="https://example.org/r.git", branch="main"),
    environment=EnvironmentPin(
        kind="uv",
        lock_file="uv.lock",
        lock_sha256="1" * 64,
        manifest_sha256="2" * 64,
        python_version="3.11.7",
        interpreter="/usr/bin/python3.11",
        platform="linux-x86_64-glibc2.36",
        key="k" * 16,
    ),
    data={
        "prompts": DataPin(
            name="prompts", source="file:data/p.jsonl", digest="d" * 64, size_bytes=1536, kind="file", num_files=1
        )
    },
)

FULL = """\
name: grpo
why: does clip_higher 0.272 stop the entropy collapse?
env:
  uv: .
  vars: {NCCL_CUMEM_ENABLE: "0"}
  secrets: [HF_TOKEN, {name: WANDB_API_KEY, as: file}]
data: {prompts: "file:data/p.jsonl"}
params: {lr: 1e-6, seed: 1, text: it's, layers: [1, 2], deep: {dim: 8}, is_fast: true}
tasks:
  train:
    nodes: 2
    gpus: 2
    cpus: 1.5
    memory: 16GiB
    cluster: torchrun
    run: python train.py --lr ${params.lr} --seed ${params.seed} --data ${data.prompts} --to ${checkpoints} --out ${out}
    checkpoints: {every: 20m, pattern: "step_*"}
  score:
    after: train
    compat: beaker
    run: python eval.py ${tasks.train.out} --name "${name} ${params.text}" --layers ${params.layers} $HOME
context: {priority: high}
limit: {time: 5d, per_job: 1d}
retry: {failed: 1}
"""


def plan_of(
    text: str,
    *,
    site: Site = BIG,
    pins: Pins = PINS,
    overrides: Sequence[str] = (),
    is_debug: bool = False,
    best_effort: bool = False,
) -> Plan:
    loaded = load_config(Experiment, text, source="exp.yaml", overrides=overrides)
    return make_plan(
        loaded.value,
        pins,
        site,
        overrides=overrides,
        is_debug=is_debug,
        best_effort=best_effort,
        origins=loaded.origins,
    )
