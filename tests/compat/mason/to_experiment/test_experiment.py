"""From a mason command line to an experiment for other places: one row per rule, and what is refused."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from windlass.compat.mason.account import KnownAccount
from windlass.compat.mason.reading import read_command_line
from windlass.compat.mason.to_experiment.experiment import ConvertedExperiment, to_experiment
from windlass.compat.to_experiment.destination import Destination
from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.core.errors import SpecError
from windlass.spec import Env, Experiment, Task

LOCAL = Destination()
FOUR = Destination(name="lab", kind="slurm", gpus={"": 4, "big": 8}, clusters={"ai2/titan": "big"})
MAPPED = Destination(name="lab", kind="slurm", gpus={"": 8}, paths={"/weka/oe-adapt-default": "/scratch/a b"})
DOCKER = Destination(name="docker", kind="docker")
LEADER = "'$BEAKER_LEADER_REPLICA_HOSTNAME'"
MACHINES = (
    f"--num_machines 2 --machine_rank '$BEAKER_REPLICA_RANK' --main_process_ip {LEADER} --main_process_port 29400"
)
NODES = f"--nnodes=2 --node_rank='$BEAKER_REPLICA_RANK' --master_addr={LEADER} --master_port 29500"
SETUP = "source configs/beaker_configs/ray_node_setup.sh"


def bring(
    line: str, place: Destination = LOCAL, *, cluster: str = "ai2/x", secrets: str = "", **options: Any
) -> ConvertedExperiment:
    """The experiment of a command line; the cluster has no Weka unless it is named."""
    words = ["--cluster", *cluster.split(), "--pure_docker_mode", *shlex.split(line)]
    account = KnownAccount(name="jo", secret_names=tuple(secrets.split()))
    environ = {"WANDB_ENTITY": "lab"} if options.pop("tracked", False) else {}
    return to_experiment(read_command_line(words, environ=environ, account=account, folder="/code"), place, **options)


def task(converted: ConvertedExperiment) -> Task:
    (only,) = converted.experiment.tasks.values()
    return only


def bash(line: str) -> tuple[str, ...]:
    return ("bash", "-c", line)


STARTS: dict[str, tuple[str, str, object]] = {
    "plain": ("-- python train.py --lr 1", "none", "python train.py --lr 1"),
    "quoted": ("-- python train.py --note 'a b'", "none", ("python", "train.py", "--note", "a b")),
    "json": ("""-- python t.py --mix '{"a": 1}'""", "none", ("python", "t.py", "--mix", '{"a": 1}')),
    "variable": ("-- python t.py --x '$HOME/${Y}'", "none", ("python", "t.py", "--x", "$HOME/$${Y}")),
    "shell variable": ("-- python t.py --x '$HOME'", "none", bash("python t.py --x $HOME")),
    "accelerate": (
        "--num_nodes 2 --gpus 8 -- accelerate launch --mixed_precision bf16 --num_processes 8 --use_deepspeed t.py",
        "accelerate",
        "accelerate launch --mixed_precision bf16 --use_deepspeed t.py",
    ),
    "accelerate on fewer than all GPUs": (
        "--num_nodes 2 --gpus 8 -- accelerate launch --num_processes 4 --use_fsdp t.py",
        "accelerate",
        "accelerate launch --num_processes 4 --use_fsdp t.py",
    ),
    "accelerate told everything already": (
        f"--num_nodes 2 --gpus 8 -- accelerate launch --num_processes=16 {MACHINES} t.py --num_processes 3",
        "accelerate",
        "accelerate launch t.py --num_processes 3",
    ),
    "accelerate in a line for the shell": (
        "--num_nodes 2 --gpus 8 -- export A=1 '&&' accelerate launch --num_processes 8 t.py",
        "none",
        bash(
            "export A=1 && accelerate launch --num_machines $WINDLASS_NUM_REPLICAS --machine_rank $WINDLASS_RANK"
            " --main_process_ip $WINDLASS_LEADER_ADDRESS --main_process_port $WINDLASS_LEADER_PORT"
            " --num_processes $((WINDLASS_NUM_REPLICAS * $WINDLASS_NUM_GPUS)) t.py"
        ),
    ),
    "accelerate through uv": (
        "--num_nodes 2 --gpus 2 -- uv run accelerate launch --num_processes 1 t.py",
        "none",
        bash(
            "uv run accelerate launch --num_machines $WINDLASS_NUM_REPLICAS --machine_rank $WINDLASS_RANK"
            " --main_process_ip $WINDLASS_LEADER_ADDRESS --main_process_port $WINDLASS_LEADER_PORT"
            " --num_processes $((WINDLASS_NUM_REPLICAS * 1)) t.py"
        ),
    ),
    "torchrun": (
        f"--num_nodes 2 --gpus 8 -- torchrun {NODES} --nproc_per_node=8 t.py --nnodes 9",
        "torchrun",
        "torchrun t.py --nnodes 9",
    ),
    "torchrun alone": ("--gpus 8 -- torchrun --standalone --nproc_per_node 8 t.py", "torchrun", "torchrun t.py"),
    "torchrun with few processes": (
        "--gpus 8 -- torchrun --nproc_per_node 2 t.py",
        "torchrun",
        "torchrun --nproc_per_node 2 t.py",
    ),
    "torchrun in a line for the shell": (
        "--num_nodes 2 --gpus 8 -- cd sub '&&' torchrun --nproc_per_node 8 t.py",
        "none",
        bash(
            "cd sub && torchrun --nnodes $WINDLASS_NUM_REPLICAS --node_rank $WINDLASS_RANK"
            " --master_addr $WINDLASS_LEADER_ADDRESS --master_port $WINDLASS_LEADER_PORT"
            " --nproc_per_node $WINDLASS_NUM_GPUS t.py"
        ),
    ),
    "ray": (f"-- {SETUP} '&&' python train.py", "ray", "python train.py"),
    "ray, glued": (f"-- {SETUP} '&&python' train.py", "ray", "python train.py"),
    "ray, of another folder": ("-- . /stage/ray_node_setup.sh ';' python train.py", "ray", "python train.py"),
    "ray, in one word": (
        f'-- "{SETUP} && export A=1 && pytest tests -k x"',
        "ray",
        bash("export A=1 && pytest tests -k x"),
    ),
    "ray, with a set-up behind": (
        f"-- {SETUP} '&&' source configs/code_api_setup.sh '&&' python t.py",
        "ray",
        bash("source configs/code_api_setup.sh && python t.py"),
    ),
    "ray, with a set-up before": (
        f"--num_nodes 2 -- source configs/code_api_setup.sh '&&' {SETUP} '&&' python t.py",
        "ray",
        bash("source configs/code_api_setup.sh && python t.py"),
    ),
    "output": (
        "-- python t.py --output_dir /output/a --x=/output",
        "none",
        "python t.py --output_dir ${out}/a --x=${out}",
    ),
    "output in a line for the shell": (
        """-- python t.py --o /output/a --p '"/output/b"' '|' tee '/outputs'""",
        "none",
        bash('python t.py --o "$WINDLASS_OUT"/a --p "$${WINDLASS_OUT}/b" | tee /outputs'),
    ),
    "several launchers": ("-- accelerate config '&&' python t.py", "none", bash("accelerate config && python t.py")),
    "unreadable": ("-- 'python t.py `hostname`'", "none", bash("python t.py `hostname`")),
}


@pytest.mark.parametrize("row", STARTS.values(), ids=STARTS)
def test_what_starts_a_command(row: tuple[str, str, object]) -> None:
    line, cluster, run = row
    found = task(bring(line))
    assert (found.cluster, found.run) == (cluster, tuple(run.split()) if isinstance(run, str) else run)
    assert found.compat == (("beaker",) if "BEAKER_" in str(found.run) else ())


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("-- python t.py", False),
        ("--num_nodes 2 --gpus 8 -- accelerate launch --num_processes 8 open_instruct/finetune.py", False),
        (f"--num_nodes 2 -- {SETUP} '&&' python open_instruct/grpo_fast.py", False),
        (f"--num_nodes 2 -- export A=1 '&&' torchrun {NODES} t.py", False),
        ("--num_nodes 2 -- bash find_the_others.sh", True),
        ("-- python t.py --name 'run-$BEAKER_JOB_ID'", True),
        ("--env 'NAME=$BEAKER_JOB_ID' -- python t.py", True),
    ],
)
def test_code_takes_itself_for_a_beaker_job_only_where_it_asks(line: str, is_told: bool) -> None:
    converted = bring(line)
    assert task(converted).compat == (("beaker",) if is_told else ())
    said = "BEAKER_* variables are not set, so that code does not assume a Beaker job"
    assert any(note.startswith(said) for note in converted.notes) is not is_told
    assert task(bring(line, Destination(name="b", kind="beaker"))).compat == ("beaker",)


@pytest.mark.parametrize(
    ("line", "place", "shape"),
    [
        ("--num_nodes 4 --gpus 8", LOCAL, (4, 8, None)),
        ("--num_nodes 4 --gpus 8", FOUR, (None, 0, 32)),
        ("--gpus 8", FOUR, (None, 0, 8)),
        ("--num_nodes 4 --gpus 4", FOUR, (4, 4, None)),
        ("--num_nodes 2", FOUR, (2, 0, None)),
        ("", FOUR, (None, 0, None)),
    ],
)
def test_shape(line: str, place: Destination, shape: tuple[int | None, int, int | None]) -> None:
    found = task(bring(f"{line} -- python t.py", place))
    assert (found.nodes, found.num_gpus, found.total_gpus) == shape


def test_a_cluster_that_the_profile_maps_is_a_partition() -> None:
    converted = bring("--gpus 8 -- python t.py", FOUR, cluster="ai2/titan")
    assert converted.experiment.where == ("lab/big",)
    assert task(converted).num_gpus == 8
    assert not [note for note in converted.notes if "chooses by itself" in note]


def test_a_partition_of_the_command_line_wins() -> None:
    place = Destination(name="lab", kind="slurm", partition="small", clusters={"*": "big"})
    assert bring("-- python t.py", place).experiment.where == ("lab/small",)


def test_tasks_are_called_after_the_task_name_as_far_as_that_is_legal() -> None:
    assert list(bring("--task_name My.run -- true -- false").experiment.tasks) == ["my-run-0", "my-run-1"]


def test_settings_have_their_places() -> None:
    line = "--max_retries 2 --timeout 1h30m --priority high --preemptible --description 'does it learn' --env A=1 "
    line += "--secret MINE=jo_MINE --task_name My_Run -- python t.py"
    place = Destination(name="lab", kind="slurm", priorities=frozenset({"normal", "high"}))
    experiment = bring(line, place, secrets="HF_TOKEN jo_WANDB_API_KEY jo_MINE BEAKER_TOKEN", tracked=True).experiment
    assert (experiment.name, experiment.why) == ("my_run", "does it learn")
    assert (experiment.retry.failed, experiment.limit.time) == (2, 5400.0)
    assert (experiment.context.priority, experiment.context.preemptible) == ("high", True)
    assert {use.name: use.source for use in experiment.env.secrets} == {
        "MINE": "jo_MINE",
        "HF_TOKEN": "HF_TOKEN",
        "WANDB_API_KEY": "jo_WANDB_API_KEY",
    }
    assert experiment.env.vars["A"] == "1"
    assert experiment.env.vars["NCCL_DEBUG"] == "ERROR"
    (only,) = experiment.tasks.values()
    assert (only.vars, only.run) == ({"WANDB_ENTITY": "lab"}, ("python", "t.py"))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("python open_instruct/finetune.py --exp_name Tulu_3/8b", "tulu_3-8b"),
        ("python -u scripts/train.py", "train"),
        (f"{SETUP} && python a/b.py", "b"),
        ("bash go.sh", "go"),
        ("hostname", "mason"),
    ],
)
def test_a_name_is_found(words: str, name: str) -> None:
    assert bring(f"-- {words.replace('&&', chr(39) + '&&' + chr(39))}").experiment.name == name


def test_folders_that_mason_chose_are_those_of_the_run() -> None:
    converted = bring("-- python open_instruct/grpo_fast.py", cluster="ai2/jupiter", caches=False)
    run = task(converted).run
    assert run[-4:] == ("--checkpoint_state_dir", "${checkpoints}", "--output_dir", "${out}")
    assert task(converted).vars == {"WANDB_RUN_ID": "${run}", "CHECKPOINT_OUTPUT_DIR": "${checkpoints}"}
    assert converted.experiment.env.vars["WANDB_RESUME"] == "allow"
    assert "HF_HOME" not in converted.experiment.env.vars
    assert any(note.startswith("left out, because they refer to Beaker's storage") for note in converted.notes)


def test_a_run_that_goes_on_keeps_its_id() -> None:
    converted = bring("--run-id abc12345 -- python open_instruct/grpo_fast.py", caches=False)
    assert task(converted).vars["WANDB_RUN_ID"] == "abc12345"


def test_paths_follow_the_profile() -> None:
    line = "--env DATA=/weka/oe-adapt-default/d -- python t.py --a /weka/oe-adapt-default/x --b s3://k/weka/oe-adapt-default"
    experiment = bring(line, MAPPED, cluster="ai2/jupiter").experiment
    (only,) = experiment.tasks.values()
    assert only.run == ("python", "t.py", "--a", "/scratch/a b/x", "--b", "s3://k/weka/oe-adapt-default")
    assert experiment.env.vars["DATA"] == "/scratch/a b/d"
    assert experiment.env.vars["HF_HOME"] == "/scratch/a b/allennlp/.cache/huggingface"


def test_the_code_of_the_image_is_the_code_of_the_run() -> None:
    converted = bring("--env REPO_PATH=/stage -- python t.py --config /stage/c.yaml --no /stages")
    assert task(converted).run == ("python", "t.py", "--config", "${code}/c.yaml", "--no", "/stages")
    assert converted.experiment.env.vars["REPO_PATH"] == "${code}"


def test_torchrun_without_nodes_is_joined_and_says_so() -> None:
    converted = bring("--num_nodes 2 --gpus 8 -- torchrun --nproc_per_node=8 t.py")
    assert task(converted).cluster == "torchrun"
    assert [note for note in converted.notes if "the 2 nodes train together" in note]


def test_a_path_that_is_the_same_there_stays() -> None:
    place = Destination(present=("/weka/oe-adapt-default",))
    assert task(bring("-- cat /weka/oe-adapt-default/x", place)).run == ("cat", "/weka/oe-adapt-default/x")


def test_each_command_is_a_task_with_an_id_of_its_own() -> None:
    line = "-- python open_instruct/grpo_fast.py --a 1 -- python open_instruct/grpo_fast.py --a 2"
    tasks = bring(line, caches=False).experiment.tasks
    assert list(tasks) == ["beaker_mason-0", "beaker_mason-1"]
    assert len({each.vars["WANDB_RUN_ID"] for each in tasks.values()}) == 2


def test_caching_is_a_step_before() -> None:
    line = "--gpus 8 -- accelerate launch --num_processes 8 open_instruct/finetune.py --exp_name e --with_tracking"
    converted = bring(f"{line} --mix a 1.0 --output_dir /output --dataset_local_cache_dir mine")
    data = converted.experiment.data["cache"]
    assert data.build is not None
    assert data.build[:2] == ("python", "open_instruct/finetune.py")
    assert data.build[2:5] == ("--mix", "a", "1.0")
    assert data.build[-3:] == ("--cache_dataset_only", "--dataset_local_cache_dir", "${out}")
    run = task(converted).run
    assert run[-2:] == ("--dataset_local_cache_dir", "${data.cache}")
    assert run.count("--dataset_local_cache_dir") == 1
    assert not bring(f"--no_auto_dataset_cache {line}").experiment.data
    assert not bring("-- python train.py").experiment.data


def test_caching_of_a_line_for_the_shell() -> None:
    converted = bring(f"-- {SETUP} '&&' export A=1 '&&' python open_instruct/grpo_fast.py --url '$URL/x'")
    assert converted.experiment.data["cache"].build == (
        "python", "open_instruct/grpo_fast.py", "--url", "$URL/x",
        "--cache_dataset_only", "--dataset_local_cache_dir", "${out}",
    )  # fmt: skip
    assert task(converted).run[2].endswith('--dataset_local_cache_dir "$DATASET_CACHE"')
    assert task(converted).vars["DATASET_CACHE"] == "${data.cache}"


def test_what_runs_the_tasks() -> None:
    docker = bring("--image jo/train --shared_memory 2GiB --no-host-networking -- python t.py", DOCKER).experiment
    assert (docker.env.image.name, docker.env.image.code, docker.env.image.network) == ("jo/train", "image", "private")
    assert task(ConvertedExperiment(experiment=docker, notes=())).shared_memory == 2 << 30
    assert bring("-- python t.py", LOCAL, env=Env(uv=".")).experiment.env.uv == "."
    converted = bring("--image jo/train -- python t.py", FOUR)
    assert converted.experiment.env.image.name == ""
    assert any("jo/train is a Beaker image" in note for note in converted.notes)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--budget a/b", "--budget a/b applies only to Beaker"),
        ("--workspace a/b", "--workspace a/b applies only to Beaker"),
        ("--hostname one two", "--hostname one two applies only to Beaker"),
        ("--min_runtime 30m", "--min_runtime applies only to Beaker"),
        ("--mount_docker_socket", "no access to the host's Docker"),
        ("--no-host-networking", "tasks use the host's network"),
        ("--shared_memory 1GiB", "the nodes of the site set the size of shared memory"),
        ("--priority immediate", "--priority immediate becomes `urgent`"),
        ("--priority high", "it is not in the profile of `lab`"),
        ("--timeout 1h --max_retries 1", "--timeout limits all attempts together"),
        ("--beaker_datasets /models:01ABC", "the dataset 01ABC of Beaker is not mounted at /models"),
    ],
)
def test_what_only_beaker_knows_gets_a_note(flag: str, said: str) -> None:
    assert [note for note in bring(f"{flag} -- python t.py", FOUR).notes if said in note]


@pytest.mark.parametrize(
    ("line", "place", "code", "message"),
    [
        ("-- cat /weka/team/x", FOUR, "mason-path", "`/weka/team/x` in the command"),
        ("--env A=/weka/team/x -- true", LOCAL, "mason-path", "in --env A"),
        ("--beaker_datasets /models:01A -- cat /models/m", LOCAL, "mason-path", "`/models/m`"),
        (f"-- {SETUP} '||' python t.py", LOCAL, "mason-usage", "ray_node_setup.sh"),
        (f"-- {SETUP}", LOCAL, "mason-usage", "ray_node_setup.sh"),
        (f"--gpus 8 -- {SETUP} '&&' python t.py --num_learners_per_node 8 6", FOUR, "does-not-fit", "`--num_learners_per_node 8 6`"),
        (f"--gpus 8 -- {SETUP} '&&' python t.py --vllm_tensor_parallel_size 8", FOUR, "does-not-fit", "tensor_parallel"),
        ("--num_nodes 2 --gpus 8 -- accelerate launch --num_processes 6 t.py", FOUR, "does-not-fit", "6 processes"),
        ("--num_nodes 2 --gpus 8 -- torchrun --nnodes 4 t.py", LOCAL, "does-not-fit", "--num_nodes 2"),
    ],
)  # fmt: skip
def test_refusals(line: str, place: Destination, code: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        bring(line, place)
    (problem,) = caught.value.problems
    assert problem.code == code
    assert message in problem.message
    assert problem.hint


def test_learners_are_shared_out_in_the_hint() -> None:
    with pytest.raises(SpecError) as caught:
        bring(f"--gpus 8 -- {SETUP} '&&' python t.py --num_learners_per_node 8 6", FOUR)
    assert caught.value.hint == "write --num_learners_per_node 4 4 4 2, or pass --split-learners before the `--`"


def test_learners_are_split_when_asked_for() -> None:
    converted = bring(
        f"--gpus 8 --on local --split-learners -- {SETUP} '&&' python t.py --num_learners_per_node 8 6 --lr 1", FOUR
    )
    task = converted.experiment.tasks["main"]
    assert task.run == ("python", "t.py", "--num_learners_per_node", "4", "4", "4", "2", "--lr", "1")
    assert task.total_gpus == 8
    said = "`--num_learners_per_node 8 6` becomes `--num_learners_per_node 4 4 4 2` (--split-learners)"
    assert said in converted.notes


def test_learners_with_an_equals_sign_are_split_too() -> None:
    line = f"--gpus 8 --on local --split-learners -- {SETUP} '&&' python t.py --num-learners-per-node=8"
    assert bring(line, FOUR).experiment.tasks["main"].run == ("python", "t.py", "--num_learners_per_node", "4", "4")


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("-- bash -c 'source /var/lib/tcpxo/lib64/env.sh && python t.py'", "/var/lib/tcpxo/lib64/env.sh"),
        ("--env LD_LIBRARY_PATH=/var/lib/tcpxo/lib64 -- python t.py", "/var/lib/tcpxo/lib64"),
        ("-- python t.py --data=/net/team/data", "/net/team/data"),
    ],
)
def test_a_path_that_stays_is_noted(line: str, noted: str) -> None:
    (note,) = [note for note in bring(line, LOCAL).notes if "is not changed" in note]
    assert note.startswith(f"`{noted}` in ")
    assert note.endswith(f"--map {noted}=FOLDER")


@pytest.mark.parametrize(
    "line",
    [
        "-- /usr/bin/python3 t.py --out /output/x > /dev/null",
        "-- python t.py --url https://example.org/a/b gs://bucket/c/d",
        "-- python t.py org/model/name ./a/b ../c/d $HOME/e/f",
    ],
)
def test_other_paths_are_not_noted(line: str) -> None:
    assert not [note for note in bring(line, LOCAL).notes if "is not changed" in note]


def test_the_experiment_is_a_file() -> None:
    for line, _, _ in STARTS.values():
        experiment = bring(line, cluster="ai2/jupiter").experiment
        text = to_yaml(experiment)
        assert load_config(Experiment, text, source="x").value == experiment


def test_a_beaker_site_is_asked_for_what_mason_asks() -> None:
    gpus = {"ai2/jupiter": None, "ai2/ceres": None}
    place = Destination(name="mine", kind="beaker", gpus=gpus, present=("/weka/oe-adapt-default",))
    line = "--budget lab/main --priority immediate --min_runtime 30m --image jo/train --gpus 8 --num_nodes 2 --env A=/weka/oe-adapt-default/x"
    converted = bring(f"{line} --beaker_datasets /models:01A -- python t.py", place, cluster="ai2/jupiter ai2/ceres")
    found = task(converted)
    assert found.beaker == {
        "constraints": {"cluster": ["ai2/jupiter", "ai2/ceres"]},
        "context": {"priority": "immediate", "minRuntime": 1_800_000_000_000},
        "datasets": [
            {"source": {"weka": "oe-training-default"}, "mountPath": "/weka/oe-training-default"},
            {"source": {"beaker": "01A"}, "mountPath": "/models"},
        ],
    }
    experiment = converted.experiment
    assert (experiment.context.account, experiment.env.image.name) == ("lab/main", "beaker:jo/train")
    assert experiment.env.vars["NCCL_IB_HCA"] == "^=mlx5_bond_0"
    assert (found.nodes, found.num_gpus, found.shared_memory) == (2, 8, 10_240_000_000)
    alone = bring("-- python t.py", place, cluster="ai2/ceres")
    assert (alone.experiment.where, task(alone).beaker) == (
        ("mine/ai2/ceres",),
        {"datasets": task(alone).beaker["datasets"]},
    )


def test_what_mason_adds_on_google_cloud_stays_there() -> None:
    line = "-- python open_instruct/finetune.py --model_name_or_path gs://b/models/m/ --x 1"
    converted = bring(line, cluster="ai2/augusta", caches=False)
    run = task(converted).run
    assert run[:6] == ("python", "open_instruct/finetune.py", "--model_name_or_path", "gs://b/models/m", "--x", "1")
    assert "--gs_bucket_path" not in run
    assert [note for note in converted.notes if "gs://b/models/m is not copied first" in note]
    alone = bring("-- python open_instruct/finetune.py --gs_bucket_path gs://mine", cluster="ai2/augusta", caches=False)
    assert "gs://mine" in task(alone).run
