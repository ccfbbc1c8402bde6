"""A project that is launched with mason, as stand-ins: two trainings, `accelerate`, and the script that sets up Ray.

The trainings cost nothing and prove what matters: every process finds its rank, the processes of all nodes meet at the
leader's address, the cache is there, and BEAKER_* variables are there at Beaker alone, where they tell the truth: the real
trainings that see one write to Beaker's storage. `accelerate` starts processes as accelerate does, with the variables of
torch.distributed; it is not accelerate.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.system.stage import PYTHON
from windlass import Run
from windlass import launch as start
from windlass.compat.mason.account import KnownAccount
from windlass.compat.mason.launch import prepare_at_site
from windlass.compat.mason.reading import read_command_line
from windlass.runs.home import Home

__all__ = ["ACCELERATE_JOB", "RAY_JOB", "MasonProject", "check_accelerate", "check_ray"]

_FINETUNE = """
import argparse, json, os, pathlib, socket, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--cache_dataset_only", action="store_true")
parser.add_argument("--dataset_local_cache_dir", default="local_dataset_cache")
parser.add_argument("--output_dir")
args, rest = parser.parse_known_args()
cache = pathlib.Path(args.dataset_local_cache_dir) / "tokens.txt"
if args.cache_dataset_only:
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(" ".join(rest))
    print("cached")
    sys.exit(0)

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
mine = {"rank": rank, "beaker": [os.environ.get("BEAKER_REPLICA_" + name) for name in ("RANK", "COUNT")]}
mine |= {"is_beaker_job": "BEAKER_JOB_ID" in os.environ, "greeting": os.environ["GREETING"]}
if rank == 0:
    server = socket.create_server(place, backlog=world)
    server.settimeout(30)
    met = [mine]
    for _ in range(world - 1):
        with server.accept()[0] as peer, peer.makefile() as lines:
            met.append(json.loads(lines.readline()))
    said = {"met": sorted(met, key=lambda one: one["rank"]), "cache": cache.read_text(), "rest": rest}
    (pathlib.Path(args.output_dir) / "said.json").write_text(json.dumps(said))
else:
    for _ in range(300):
        try:
            with socket.create_connection(place, timeout=60) as peer:
                peer.sendall((json.dumps(mine) + chr(10)).encode())
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("the leader does not answer")
"""

_GRPO = """
import argparse, json, os, pathlib, ray

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir")
parser.add_argument("--checkpoint_state_dir")
args, rest = parser.parse_known_args()
ray.init(log_to_driver=False)
nodes = [node["Resources"].get("GPU", 0) for node in ray.nodes()]
(pathlib.Path(args.checkpoint_state_dir) / "step_1").mkdir(parents=True, exist_ok=True)
said = {"gpus": nodes, "is_beaker_job": "BEAKER_JOB_ID" in os.environ, "id": os.environ["WANDB_RUN_ID"], "rest": rest}
said |= {"tool": os.environ["TOOL_URL"], "path": os.environ["PYTHONPATH"], "checkpoints": args.checkpoint_state_dir}
(pathlib.Path(args.output_dir) / "said.json").write_text(json.dumps(said))
"""

_ACCELERATE = """#!{python}
import argparse, os, subprocess, sys

words = sys.argv[2:] if sys.argv[1] == "launch" else sys.exit("accelerate launch is all there is")
at = next(index for index, word in enumerate(words) if word.endswith(".py"))
parser = argparse.ArgumentParser()
for name in ("num_machines", "machine_rank", "num_processes", "main_process_port"):
    parser.add_argument("--" + name, type=int, required=True)
parser.add_argument("--main_process_ip", required=True)
parser.add_argument("--mixed_precision")
parser.add_argument("--deepspeed_multinode_launcher")
parser.add_argument("--use_deepspeed", action="store_true")
args = parser.parse_args(words[:at])
here = args.num_processes // args.num_machines
procs = []
for local in range(here):
    place = dict(RANK=args.machine_rank * here + local, LOCAL_RANK=local, WORLD_SIZE=args.num_processes)
    place |= dict(MASTER_ADDR=args.main_process_ip, MASTER_PORT=args.main_process_port)
    env = os.environ | {{name: str(value) for name, value in place.items()}}
    procs.append(subprocess.Popen([sys.executable, *words[at:]], env=env))
sys.exit(max(proc.wait() for proc in procs))
"""

_NEVER = "echo 'this brings up Ray by hand, and must not run' >&2; exit 9\n"

ACCELERATE_JOB = """
    --cluster ai2/jupiter --image lab/train --pure_docker_mode --workspace lab/main --budget lab/budget
    --priority high --preemptible --max_retries 0 --description toy --num_nodes 4 --gpus 2 --env GREETING=hello
    -- accelerate launch --mixed_precision bf16 --num_processes 2 --use_deepspeed
    --deepspeed_multinode_launcher standard open_instruct/finetune.py --exp_name toy
    --dataset_mixer_list lab/data 1.0 --with_tracking --output_dir /output/
"""
RAY_JOB = """
    --cluster ai2/jupiter --image lab/train --pure_docker_mode --priority urgent --no_auto_dataset_cache
    --num_nodes 2 --gpus 2
    -- source configs/beaker_configs/ray_node_setup.sh && source configs/beaker_configs/tools.sh &&python
    open_instruct/grpo_fast.py --num_learners_per_node 2 --vllm_num_engines 2 --output_dir /output/
"""


class MasonProject:
    """The project's files in a folder, and launches of it."""

    def __init__(self, folder: Path, home: Home) -> None:
        self.folder, self.home = folder, home
        self.bin = folder / "bin"
        self._write("open_instruct/finetune.py", _FINETUNE)
        self._write("open_instruct/grpo_fast.py", _GRPO)
        self._write("configs/beaker_configs/ray_node_setup.sh", _NEVER)
        self._write("configs/beaker_configs/tools.sh", "export TOOL_URL=http://tools\n")
        self._write("bin/accelerate", _ACCELERATE.format(python=PYTHON)).chmod(0o755)

    def launch(self, line: str, *own: str) -> Run:
        """Launch a mason command line with options of windlass in front of it."""
        path = os.pathsep.join([str(self.bin), os.path.dirname(PYTHON), "/usr/bin", "/bin"])
        words = [*own, "--allow-dirty", "--env", f"PATH={path}", *line.split()]
        account = KnownAccount(name="jo", secret_names=())
        launch = read_command_line(words, environ={"PATH": path}, account=account, folder=str(self.folder))
        return start(prepare_at_site(launch, home=self.home, environ={}))

    def said(self, run: Run) -> Any:
        """What a training left in its output folder."""
        (path,) = run.folder.path.glob("out/main/**/said.json")
        return json.loads(path.read_text())

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def check_accelerate(project: MasonProject, run: Run, *, is_beaker: bool = False) -> None:
    """Assert that the processes of all nodes met, and that each was told the truth."""
    said = project.said(run)
    assert [one["rank"] for one in said["met"]] == list(range(8))
    told = [[str(rank // 2), "4"] if is_beaker else [None, None] for rank in range(8)]
    assert [one["beaker"] for one in said["met"]] == told
    assert {one["is_beaker_job"] for one in said["met"]} == {is_beaker}
    assert {one["greeting"] for one in said["met"]} == {"hello"}
    assert said["cache"] == "--dataset_mixer_list lab/data 1.0"
    assert "--with_tracking" in said["rest"]


def check_ray(project: MasonProject, run: Run, *, is_beaker: bool = False) -> None:
    """Assert that the driver saw all nodes, with the run's own id and folders."""
    said = project.said(run)
    assert said["gpus"] == [2.0, 2.0]
    assert (said["is_beaker_job"], said["id"], said["tool"]) == (is_beaker, run.id, "http://tools")
    assert Path(said["checkpoints"], "step_1").is_dir()
    assert str(project.folder) in said["path"].split(os.pathsep)
