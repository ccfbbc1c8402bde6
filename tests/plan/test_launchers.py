from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.sample import plan_of
from windlass.config.field_types import ChoiceType, fields_of
from windlass.core.errors import SpecError
from windlass.plan.job import RunPaths, job_document
from windlass.plan.launchers.context import LaunchContext
from windlass.plan.launchers.registry import LAUNCHERS, launch
from windlass.plan.launchers.wrapping import with_roles
from windlass.plan.plan import TaskPlan
from windlass.spec import Command, Task
from windlass.supervise.job import JobDocument, TaskShape

TORCHRUN = (
    "python -m torch.distributed.run --nnodes 2 --nproc-per-node 4 --node-rank ${rank} "
    "--master-addr ${leader.address} --master-port ${leader.port} --max-restarts 0"
)
ACCELERATE = (
    "accelerate launch --num_machines 2 --machine_rank ${rank} --main_process_ip ${leader.address} "
    "--main_process_port ${leader.port} --num_processes 8"
)


def context(command: Command, *, nodes: int = 2, gpus: int = 4, procs: int | None = None) -> LaunchContext:
    shape = TaskShape(nodes=nodes, gpus=gpus, cpus=0.0, memory_bytes=0)
    return LaunchContext(path="tasks.t", command=command, task=Task(run=command, procs_per_node=procs), shape=shape)


def refused(launcher: str, given: LaunchContext) -> str:
    with pytest.raises(SpecError) as caught:
        launch(launcher, given)
    (problem,) = caught.value.problems
    assert problem.hint
    return f"{problem.message} [{problem.code}]"


def test_none_starts_the_command_as_it_is() -> None:
    shell = launch("none", context("python x.py && echo $HOME"))
    assert (shell.argv, shell.is_shell) == (("/bin/sh", "-c", "python x.py && echo $HOME"), True)
    assert launch("none", context(("python", "x y.py"))).argv == ("python", "x y.py")
    assert shell.env == {
        "RANK": "${rank}",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "${rank}",
        "MASTER_ADDR": "${leader.address}",
        "MASTER_PORT": "${leader.port}",
    }


@pytest.mark.parametrize(
    ("command", "after"),
    [
        ("python train.py --lr 1", "train.py --lr 1"),
        ("python -u train.py", "train.py"),
        ("python -m pkg.train --lr 1", "-m pkg.train --lr 1"),
        ("python -u -m pkg.train", "-m pkg.train"),
        ("python -O train.py", "--no-python python -O train.py"),
        ("./train.sh a", "--no-python ./train.sh a"),
        ("torchrun train.py --nnodes 7", "train.py --nnodes 7"),
        ("torchrun --nproc_per_node=4 --nnodes 2 -r 3 train.py", "-r 3 train.py"),
        ("torchrun --nnodes 2:2 --max-restarts=0 -m pkg", "-m pkg"),
        ("torchrun --nproc-per-node gpu --rdzv-backend static train.py", "train.py"),
        ("torchrun --node_rank ${rank} --master_addr ${leader.address} --master_port ${leader.port} t.py", "t.py"),
        ("/v/bin/torchrun --tee 3 train.py", "--tee 3 train.py"),
        ("python -m torch.distributed.run --log-dir ${out} train.py", "--log-dir ${out} train.py"),
    ],
)
def test_torchrun_wraps_one_command(command: str, after: str) -> None:
    as_line, as_list = launch("torchrun", context(command)), launch("torchrun", context(tuple(command.split())))
    assert " ".join(as_line.argv) == f"{TORCHRUN} {after}"
    assert as_line == as_list
    assert not as_line.is_shell
    assert (as_line.procs_per_node, dict(as_line.env)) == (4, {})


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("python train.py --home $HOME", f"{TORCHRUN} train.py --home $HOME"),
        ("OMP_NUM_THREADS=2 python t.py > log 2>&1", f"OMP_NUM_THREADS=2 {TORCHRUN} t.py > log 2>&1"),
        ("env A='b c' torchrun t.py", f"env A='b c' {TORCHRUN} t.py"),
        ("cd sub && torchrun t.py 2>&1 | tee log", f"cd sub && {TORCHRUN} t.py 2>&1 | tee log"),
        (
            "set -e\npip list\nexec torchrun t.py \\\n  --lr 1\n",
            f"set -e\npip list\nexec {TORCHRUN} t.py \\\n  --lr 1\n",
        ),
        ("if true; then torchrun t.py; fi", f"if true; then {TORCHRUN} t.py; fi"),
    ],
)
def test_torchrun_inside_a_shell_line(line: str, result: str) -> None:
    launched = launch("torchrun", context(line))
    assert (launched.argv, launched.is_shell) == (("/bin/sh", "-c", result), True)


def test_the_interpreter_is_kept() -> None:
    assert launch("torchrun", context("/v/bin/python3.11 t.py")).argv[0] == "/v/bin/python3.11"
    assert launch("torchrun", context("/v/bin/python3 -m torch.distributed.run t.py")).argv[0] == "/v/bin/python3"


@pytest.mark.parametrize(
    ("gpus", "procs", "command", "expected"),
    [
        (0, None, "python t.py", 1),
        (4, None, "python t.py", 4),
        (4, 2, "python t.py", 2),
        (0, None, "torchrun --nproc-per-node 3 t.py", 3),
    ],
)
def test_processes_per_node(gpus: int, procs: int | None, command: str, expected: int) -> None:
    launched = launch("torchrun", context(command, gpus=gpus, procs=procs))
    assert launched.procs_per_node == expected
    assert launched.argv[launched.argv.index("--nproc-per-node") + 1] == str(expected)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "python a.py && python b.py",
            "tasks.t.run has several commands and names torchrun not at all [launcher-command]",
        ),
        (
            "torchrun a.py; torchrun b.py",
            "tasks.t.run has several commands and names torchrun several times [launcher-command]",
        ),
        ("python", "tasks.t.run starts python without a script [launcher-command]"),
        ("python -m torch.distributed.launch t.py", "tasks.t.run uses torch.distributed.launch [launcher-command]"),
        ("torchrun --nnodes 3 t.py", "`--nnodes 3` in tasks.t.run is set by windlass [launcher-command]"),
        (
            "torchrun --rdzv_backend=c10d t.py",
            "`--rdzv-backend c10d` in tasks.t.run is set by windlass [launcher-command]",
        ),
        ("torchrun --standalone t.py", "`--standalone` in tasks.t.run contradicts nodes=2 [launcher-command]"),
        (
            "torchrun --max-restarts 3 t.py",
            "`--max-restarts 3` in tasks.t.run: attempts are counted by windlass, not by the launcher [launcher-command]",
        ),
        (
            "torchrun --nproc-per-node $N t.py",
            "`--nproc-per-node $N` in tasks.t.run is not a valid number of processes [launcher-command]",
        ),
        (
            "python 'a",
            "the command of tasks.t.run cannot be rewritten for a launcher: a quote or `$(` is not closed [launcher-command]",
        ),
        ("", "tasks.t.run contains no command [launcher-command]"),
        ("A=1", "tasks.t.run contains no command [launcher-command]"),
        ("torchrun --tee 3", "tasks.t.run starts torchrun without a script [launcher-command]"),
    ],
)
def test_torchrun_refuses(command: str, message: str) -> None:
    assert refused("torchrun", context(command)) == message


def test_torchrun_refuses_two_opinions() -> None:
    message = "`--nproc-per-node 3` in tasks.t.run contradicts procs_per_node=2 [launcher-command]"
    assert refused("torchrun", context("torchrun --nproc-per-node 3 t.py", procs=2)) == message


def test_standalone_is_what_one_node_gets_anyway() -> None:
    launched = launch("torchrun", context("torchrun --standalone t.py", nodes=1))
    assert "--standalone" not in launched.argv


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("accelerate launch t.py", f"{ACCELERATE} --multi_gpu t.py"),
        (
            "accelerate launch --num_processes 4 t.py --num_processes 9",
            f"{ACCELERATE} --multi_gpu t.py --num_processes 9",
        ),
        ("accelerate launch --num-processes=4 --multi_gpu t.py", f"{ACCELERATE} --multi_gpu t.py"),
        ("accelerate launch --config_file c.yaml -m pkg", f"{ACCELERATE} --config_file c.yaml -m pkg"),
        (
            "accelerate launch --mixed_precision bf16 --use_deepspeed t.py",
            f"{ACCELERATE} --deepspeed_multinode_launcher standard --mixed_precision bf16 --use_deepspeed t.py",
        ),
        (
            "accelerate launch --use_deepspeed --deepspeed_multinode_launcher nossh t.py",
            f"{ACCELERATE} --use_deepspeed --deepspeed_multinode_launcher nossh t.py",
        ),
        (
            "/v/bin/accelerate-launch t.py",
            f"{ACCELERATE.replace('accelerate launch', '/v/bin/accelerate-launch')} --multi_gpu t.py",
        ),
    ],
)
def test_accelerate_is_filled_in(command: str, result: str) -> None:
    assert " ".join(launch("accelerate", context(command)).argv) == result
    assert " ".join(launch("accelerate", context(tuple(command.split()))).argv) == result


def test_accelerate_in_a_shell_line() -> None:
    launched = launch("accelerate", context("source setup.sh && accelerate launch --num_processes 4 t.py --x $X"))
    assert launched.argv[2] == f"source setup.sh && {ACCELERATE} --multi_gpu t.py --x $X"
    assert launched.procs_per_node == 4


def test_accelerate_on_one_process_is_left_simple() -> None:
    launched = launch("accelerate", context("accelerate launch --cpu t.py", nodes=1, gpus=0))
    assert launched.argv[-4:] == ("--num_processes", "1", "--cpu", "t.py")


@pytest.mark.parametrize(
    ("command", "gpus", "message"),
    [
        ("python t.py", 4, "tasks.t.run has no `accelerate launch` [launcher-command]"),
        (
            "accelerate launch a & accelerate launch b",
            4,
            "tasks.t.run has several `accelerate launch` [launcher-command]",
        ),
        (
            "accelerate launch --machine_rank 0 t.py",
            4,
            "`--machine_rank 0` in tasks.t.run is set by windlass [launcher-command]",
        ),
        (
            "accelerate launch --num_processes x t.py",
            4,
            "`--num_processes x` in tasks.t.run is not a valid number of processes [launcher-command]",
        ),
        (
            "accelerate launch t.py",
            0,
            "accelerate starts one process per node on CPUs, and tasks.t asks for 2 in one group [launcher-command]",
        ),
        (
            "accelerate launch --cpu t.py",
            4,
            "accelerate starts one process per node on CPUs, and tasks.t asks for 8 in one group [launcher-command]",
        ),
    ],
)
def test_accelerate_refuses(command: str, gpus: int, message: str) -> None:
    assert refused("accelerate", context(command, gpus=gpus)) == message


WINDLASS = "${supervisor.python} -I -S ${supervisor.archive}"


def test_ray_takes_its_counts_from_the_plan_and_the_command_as_it_is() -> None:
    command = "python x.py && echo $HOME"
    shape = TaskShape(nodes=10, gpus=4, cpus=72.0, memory_bytes=1024, node_cpus=72)
    task = Task(run=command, ready_timeout=90.0)
    launched = launch("ray", LaunchContext(path="tasks.t", command=command, task=task, shape=shape))
    options = "--scratch=${supervisor.scratch} --num-gpus=4 --num-cpus=72 --memory=1024 --join-timeout=90"
    assert " ".join(launched.argv[:-3]) == f"{WINDLASS} ray {options} --"
    assert (launched.argv[-3:], launched.is_shell) == (("/bin/sh", "-c", "python x.py && echo $HOME"), True)
    assert launched.procs_per_node == 1


def test_ray_leaves_counts_that_the_plan_does_not_know_to_the_job() -> None:
    launched = launch("ray", context(("python", "x.py"), gpus=0))
    assert " ".join(launched.argv) == (
        f"{WINDLASS} ray --scratch=${{supervisor.scratch}} --num-gpus=0 --join-timeout=600 -- python x.py"
    )
    assert not launched.is_shell


@pytest.mark.parametrize(("gpus", "procs", "slots"), [(4, None, 4), (0, None, 1), (4, 2, 2)])
def test_mpi_names_the_file_of_hosts_and_its_slots(gpus: int, procs: int | None, slots: int) -> None:
    launched = launch("mpi", context("deepspeed --hostfile ${hostfile} t.py", gpus=gpus, procs=procs))
    assert " ".join(launched.argv[:7]) == f"{WINDLASS} mpi --slots={slots} --"
    assert launched.argv[-1] == "deepspeed --hostfile ${hostfile} t.py"
    assert launched.env == {"WINDLASS_HOSTFILE": "${hostfile}"}
    assert launched.procs_per_node == slots


@pytest.mark.parametrize("launcher", ["none", "torchrun", "srun", "ray"])
def test_a_file_of_hosts_means_nothing_elsewhere(launcher: str) -> None:
    message = f"`${{hostfile}}` in tasks.t.run cannot be used with `cluster: {launcher}` [launcher-command]"
    assert refused(launcher, context(("python", "--hosts=${hostfile}"))) == message


def test_srun_starts_a_process_per_gpu() -> None:
    launched = launch("srun", context(("python", "t.py")))
    assert " ".join(launched.argv) == f"{WINDLASS} ranks --procs=4 -- python t.py"
    assert launched.env == {"MASTER_ADDR": "${leader.address}", "MASTER_PORT": "${leader.port}"}
    assert launch("srun", context("python t.py", gpus=0)).procs_per_node == 1


def test_every_value_of_cluster_has_a_launcher() -> None:
    cluster = fields_of(Task)["cluster"].type
    assert isinstance(cluster, ChoiceType)
    assert set(cluster.values) == set(LAUNCHERS)


def test_variables_of_a_role_go_to_the_program_that_knows_the_roles() -> None:
    launched = launch("ray", context(("python", "t.py")))
    site = {"driver_env": {"LD_PRELOAD": "${env.path}/x.so"}, "worker_unset": ("LD_PRELOAD", "A")}
    planned = TaskPlan(name="t", argv=launched.argv, is_shell=False, launcher="ray", **site)  # type: ignore[arg-type]
    words = with_roles(planned)
    assert words[5:8] == ("--driver-set=LD_PRELOAD=${env.path}/x.so", "--worker-unset=A", "--worker-unset=LD_PRELOAD")
    assert (*words[:5], *words[8:]) == launched.argv
    plain = TaskPlan(name="t", argv=("python",), is_shell=False, **site)  # type: ignore[arg-type]
    assert with_roles(plain) == ("python",)


PLACES = RunPaths(run="r-1", run_dir=Path("/a b/r-1"), code=Path("/a b/code"), virtual_env=Path("/env"))
ROLES = {
    "site_env": {"S": "s"},
    "site_unset": ("GONE",),
    "driver_env": {"D": "${out}"},
    "driver_unset": ("LD_PRELOAD",),
    "worker_env": {"W": "w"},
}


def document_of(text: str) -> JobDocument:
    plan = plan_of(text)
    task = replace(plan.tasks[0], **ROLES)  # type: ignore[arg-type]
    return job_document(replace(plan, tasks=(task,)), task, places=PLACES, job=1, token="t")


def test_a_task_with_a_head_in_its_job() -> None:
    document = document_of("{name: x, tasks: {t: {run: 'python t.py --to ${out} || exit 4', cluster: ray, nodes: 2}}}")
    argv = document.command.argv
    assert document.command.num_heads == 1
    assert document.command.is_shell
    assert argv[:5] == ("${supervisor.python}", "-I", "-S", "${supervisor.archive}", "ray")
    assert argv[5:8] == ("--driver-set=D=/a b/r-1/out/t", "--driver-unset=LD_PRELOAD", "--worker-set=W=w")
    assert argv[-3:] == ("/bin/sh", "-c", "python t.py --to '/a b/r-1/out/t' || exit 4")
    assert "D" not in document.command.env
    assert document.command.unset == ("GONE",)


def test_where_all_run_the_command_the_drivers_variables_are_everybodys() -> None:
    document = document_of("{name: x, tasks: {t: {run: [python, t.py], nodes: 2, vars: {S: mine}}}}")
    assert document.command.num_heads == 0
    assert document.command.env["D"] == "/a b/r-1/out/t"
    assert document.command.env["S"] == "mine"
    assert "W" not in document.command.env
    assert document.command.unset == ("GONE", "LD_PRELOAD")
