"""The experiments that golden outputs are made of: some examples, and small ones that reach each part of the planner."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CONVERSIONS", "EXAMPLES", "EXPERIMENTS", "FILES", "PLANS", "RENDERS", "RUNS"]

EXAMPLES = ("grpo-slurm", "hello", "provable", "sweep-replicas", "torch-ddp")
"""Folders of examples/ that lie in the stage's repository."""

FILES = {
    "data/words.txt": "one\ntwo\n",
    "train.py": """\
import sys
from windlass import report
for step in range(3):
    report.metrics({"loss": 1.0 / (step + 1)}, step=step)
with report.checkpoint_dir(step=3) as folder:
    (folder / "weights").write_text("w")
print("loss", 1 / 3)
""",
}

_SPECS = Path(__file__).parents[1] / "compat" / "spec" / "files"
FILES |= {f"specs/{path.name}": path.read_text() for path in sorted(_SPECS.glob("*.yaml"))}

_IMAGE = "docker.io/library/python@sha256:" + "a" * 64

EXPERIMENTS = {
    "full": """\
name: full
why: does every key of an experiment reach the job?
env:
  vars: {NCCL_DEBUG: WARN}
data: {words: "file:data/words.txt"}
params: {lr: 1e-6, seed: 1, text: it's, layers: [1, 2], deep: {dim: 8}, is_fast: true}
tasks:
  train:
    nodes: 2
    gpus: 1
    cpus: 0.5
    memory: 1GiB
    cluster: torchrun
    run: python train.py --lr ${params.lr} --data ${data.words} --to ${checkpoints} --out ${out}
    checkpoints: {every: 20m, pattern: "step_*"}
    grace: 1m
    ready_timeout: 5m
    stall: {floor: 10m}
  score:
    after: train
    compat: beaker
    cpus: 1
    run: python eval.py ${tasks.train.out} --name "${name} ${params.text}" --layers ${params.layers} $HOME
limit: {time: 5d, per_job: 1d}
retry: {failed: 1}
""",
    "gang": """\
name: gang
params: {lr: 1e-3, seed: 1}
tasks:
  train:
    nodes: 4
    gpus: 4
    cpus: 32
    cluster: torchrun
    run: python train.py --lr ${params.lr} --seed ${params.seed} --out ${out} --bs ${nodes * gpus_per_node}
    checkpoints: {every: 20m, pattern: "step_*"}
context: {priority: high}
limit: {time: 5d, per_job: 12h}
retry: {interrupted: 10, failed: 1}
""",
    "array": """\
name: array
params: {seed: 1}
tasks: {train: {cpus: 1, memory: 1GiB, run: "python train.py ${params.seed}"}}
limit: {time: 1h}
""",
    "data": """\
name: data
data:
  words: file:data/words.txt
  tokens: {from: words, build: "cp ${data.words} ${out}/tokens", code: [train.py]}
tasks: {train: {run: "python train.py ${data.tokens}"}}
""",
    "mpi": """\
name: mpi
tasks: {simulate: {nodes: 2, procs_per_node: 3, cpus: 6, cluster: mpi, run: ./simulate}}
""",
    "container": f"""\
name: container
env: {{image: "{_IMAGE}", vars: {{A: "1"}}}}
data: {{words: "file:data/words.txt"}}
tasks: {{train: {{cpus: 1, memory: 1GiB, shared_memory: 256MiB, run: "python train.py ${{data.words}}"}}}}
""",
    "good": """\
name: good
params: {word: hello}
run: echo ${params.word}
""",
    "report": """\
name: report
run: [python3, train.py]
""",
    "bad": """\
name: bad
run: echo no; exit 3
""",
    "again": """\
name: again
retry: {failed: 1}
run: test -e ${checkpoints}/tried || { touch ${checkpoints}/tried; exit 1; }
""",
    "killed": """\
name: killed
retry: {interrupted: 1}
run: test -e ${checkpoints}/tried || { touch ${checkpoints}/tried; kill -KILL $$; }
""",
    "budget": """\
name: budget
retry: {interrupted: 0}
run: kill -KILL $$
""",
    "slow": """\
name: slow
limit: {time: 1s}
tasks: {main: {grace: 1s, run: exec sleep 60}}
""",
    "stopped": """\
name: stopped
tasks: {main: {grace: 1s, run: "touch ${out}/started; exec sleep 60"}}
""",
    "outputs": """\
name: outputs
run: mkdir ${out}/deep; echo 1 > ${out}/a.txt; echo 22 > ${out}/deep/b.txt; ln -s a.txt ${out}/latest
""",
    "chain": """\
name: chain
tasks:
  first: {run: 'echo 1 > ${out}/x'}
  second: {after: first, run: 'cat ${tasks.first.out}/x'}
""",
    "upstream": """\
name: upstream
tasks:
  first: {run: exit 4}
  second: {after: first, run: echo never}
""",
    "two": """\
name: two
tasks: {main: {nodes: 2, run: 'echo ${rank}'}}
""",
    "missing": """\
name: missing
run: [no-such-program]
""",
    "built": """\
name: built
data:
  words: file:data/words.txt
  tokens: {from: words, build: "cp ${data.words} ${out}/tokens"}
run: cat ${data.tokens}/tokens
""",
}
"""Name -> text of `NAME.yaml`."""

PLANS = {
    "example hello": "hello/experiment.yaml",
    "example provable": "provable/experiment.yaml",
    "example sweep-replicas": "sweep-replicas/experiment.yaml",
    "example torch-ddp at a Slurm site": "torch-ddp/experiment.yaml --on lab ~env.python",
    "example grpo-slurm at a Slurm site": "grpo-slurm/experiment.yaml --on lab ~env.uv",
    "everything, on this machine": "full.yaml",
    "overrides": "full.yaml tasks.train.nodes=1 params.lr=3e-3 ~limit.time --debug",
    "a gang at a Slurm site": "gang.yaml --on lab",
    "a gang in another partition": "gang.yaml --on lab/big --reshape",
    "a gang at a site that windlass ships": "gang.yaml --on isambard ~context.priority",
    "what a site refuses": "gang.yaml --on isambard tasks.train.nodes=9999 params.lr=fast",
    "a gang at Beaker": "gang.yaml --on berth/lab/alpha",
    "one job of an array": "array.yaml --on lab/cpu params.seed=2",
    "data and its build": "data.yaml",
    "MPI": "mpi.yaml --on lab/cpu",
    "a container": "container.yaml --on docker",
}
"""What is planned -> words behind `windlass plan`."""

RENDERS = {
    "everything, on this machine": "full.yaml",
    "data and its build": "data.yaml",
    "a gang at a Slurm site": "gang.yaml --on lab tasks.train.nodes=2",
    "MPI at a Slurm site": "mpi.yaml --on lab/cpu",
    "a container": "container.yaml --on docker",
    "a gang at Beaker": "gang.yaml --on berth/lab/alpha tasks.train.nodes=2",
}
"""What is rendered -> words behind `windlass plan --render`."""

RUNS = {
    "good": "succeeded",
    "report": "succeeded",
    "bad": "failed",
    "again": "succeeded",
    "killed": "succeeded",
    "budget": "failed",
    "slow": "failed",
    "stopped": "stopped",
    "outputs": "succeeded",
    "chain": "succeeded",
    "upstream": "failed",
    "two": "succeeded",
    "missing": "failed",
    "built": "succeeded",
}
"""Experiment that really runs on this machine -> how it ends."""

_MASON = "mason --offline --pure_docker_mode --emit spec --cluster ai2/x"
_GANTRY = "gantry run --yes --emit spec --name demo --gpus 1 --weka b:/weka/b --env A=1"
CONVERSIONS = (
    f"{_MASON} --on local --gpus 2 --budget a/b --priority high -- python t.py --lr 1",
    f"{_MASON} --on lab/big --num_nodes 2 --gpus 8 -- accelerate launch --num_processes 8 --use_deepspeed t.py",
    f"{_MASON} --on lab --map /weka/a=/shared/a --env A=1 -- cat /weka/a/x -- python second.py",
    f"{_MASON} --on local -- cat /weka/a/x",
    f"{_MASON} --on berth --image me/train --num_nodes 2 --gpus 8 --max_retries 2 -- python t.py",
    f"{_GANTRY} --on lab -- python train.py",
    f"{_GANTRY} --on lab --cluster ai2/titan --replicas 2 --torchrun --retries 2 -- train.py --lr 1",
    f"{_GANTRY} --on local -- python train.py",
    "beaker import specs/multi-node.yaml",
    "beaker import specs/old.yaml",
    "beaker import specs/pipeline.yaml",
    "beaker export gang.yaml",
    "beaker export container.yaml",
    "beaker export good.yaml env.image=beaker:me/image tasks.main.gpus=8 tasks.main.nodes=2 limit.time=1h retry.failed=2",
)
"""Command lines of windlass that turn one kind of file into another; see __init__.py for those of other tests."""
