from __future__ import annotations

import pytest

from windlass.core.errors import SpecError
from windlass.plan.launchers import LAUNCHERS, Gang, launch
from windlass.spec import Command

TORCHRUN = (
    "python -m torch.distributed.run --nnodes 2 --nproc-per-node 4 --node-rank ${rank} "
    "--master-addr ${leader.address} --master-port ${leader.port} --max-restarts 0"
)
ACCELERATE = (
    "accelerate launch --num_machines 2 --machine_rank ${rank} --main_process_ip ${leader.address} "
    "--main_process_port ${leader.port} --num_processes 8"
)


def gang(command: Command, *, nodes: int = 2, gpus: int = 4, procs: int | None = None) -> Gang:
    return Gang(path="tasks.t", command=command, nodes=nodes, gpus=gpus, procs_per_node=procs)


def refused(launcher: str, given: Gang) -> str:
    with pytest.raises(SpecError) as caught:
        launch(launcher, given)
    (problem,) = caught.value.problems
    assert problem.hint
    return f"{problem.message} [{problem.code}]"


def test_none_starts_the_command_as_it_is() -> None:
    shell = launch("none", gang("python x.py && echo $HOME"))
    assert (shell.argv, shell.is_shell) == (("/bin/sh", "-c", "python x.py && echo $HOME"), True)
    assert launch("none", gang(("python", "x y.py"))).argv == ("python", "x y.py")
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
    as_line, as_list = launch("torchrun", gang(command)), launch("torchrun", gang(tuple(command.split())))
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
    launched = launch("torchrun", gang(line))
    assert (launched.argv, launched.is_shell) == (("/bin/sh", "-c", result), True)


def test_the_interpreter_is_kept() -> None:
    assert launch("torchrun", gang("/v/bin/python3.11 t.py")).argv[0] == "/v/bin/python3.11"
    assert launch("torchrun", gang("/v/bin/python3 -m torch.distributed.run t.py")).argv[0] == "/v/bin/python3"


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
    launched = launch("torchrun", gang(command, gpus=gpus, procs=procs))
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
        ("torchrun --nnodes 3 t.py", "`--nnodes 3` in tasks.t.run is filled in by windlass [launcher-flag]"),
        (
            "torchrun --rdzv_backend=c10d t.py",
            "`--rdzv-backend c10d` in tasks.t.run is filled in by windlass [launcher-flag]",
        ),
        ("torchrun --standalone t.py", "`--standalone` in tasks.t.run contradicts nodes=2 [launcher-flag]"),
        (
            "torchrun --max-restarts 3 t.py",
            "`--max-restarts 3` in tasks.t.run: attempts are counted by windlass, not by the launcher [launcher-flag]",
        ),
        (
            "torchrun --nproc-per-node $N t.py",
            "`--nproc-per-node $N` in tasks.t.run is no number of processes [launcher-flag]",
        ),
        (
            "python 'a",
            "the command of tasks.t.run cannot be rewritten for a launcher: a quote or `$(` has no end [launcher-command]",
        ),
        ("", "tasks.t.run holds no command [launcher-command]"),
        ("A=1", "tasks.t.run holds no command [launcher-command]"),
        ("torchrun --tee 3", "tasks.t.run starts torchrun without a script [launcher-command]"),
    ],
)
def test_torchrun_refuses(command: str, message: str) -> None:
    assert refused("torchrun", gang(command)) == message


def test_torchrun_refuses_two_opinions() -> None:
    message = "`--nproc-per-node 3` in tasks.t.run contradicts procs_per_node=2 [launcher-flag]"
    assert refused("torchrun", gang("torchrun --nproc-per-node 3 t.py", procs=2)) == message


def test_standalone_is_what_one_node_gets_anyway() -> None:
    launched = launch("torchrun", gang("torchrun --standalone t.py", nodes=1))
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
    assert " ".join(launch("accelerate", gang(command)).argv) == result
    assert " ".join(launch("accelerate", gang(tuple(command.split()))).argv) == result


def test_accelerate_in_a_shell_line() -> None:
    launched = launch("accelerate", gang("source setup.sh && accelerate launch --num_processes 4 t.py --x $X"))
    assert launched.argv[2] == f"source setup.sh && {ACCELERATE} --multi_gpu t.py --x $X"
    assert launched.procs_per_node == 4


def test_accelerate_on_one_process_is_left_simple() -> None:
    launched = launch("accelerate", gang("accelerate launch --cpu t.py", nodes=1, gpus=0))
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
            "`--machine_rank 0` in tasks.t.run is filled in by windlass [launcher-flag]",
        ),
        (
            "accelerate launch --num_processes x t.py",
            4,
            "`--num_processes x` in tasks.t.run is no number of processes [launcher-flag]",
        ),
        (
            "accelerate launch t.py",
            0,
            "accelerate starts one process per node on CPUs, and tasks.t asks for 2 that belong together [launcher-command]",
        ),
        (
            "accelerate launch --cpu t.py",
            4,
            "accelerate starts one process per node on CPUs, and tasks.t asks for 8 that belong together [launcher-command]",
        ),
    ],
)
def test_accelerate_refuses(command: str, gpus: int, message: str) -> None:
    assert refused("accelerate", gang(command, gpus=gpus)) == message


@pytest.mark.parametrize("launcher", ["ray", "mpi"])
def test_what_is_not_there_yet_is_refused(launcher: str) -> None:
    message = f"`tasks.t.cluster: {launcher}` is not there yet on the local backend [launcher-unsupported]"
    assert refused(launcher, gang("python t.py")) == message
    assert launcher not in LAUNCHERS
