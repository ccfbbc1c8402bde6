"""The grpo-slurm example: what its plan says for Isambard-AI, and its stand-in on four nodes of a real Slurm with Ray."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import windlass
from tests.examples.example_copy import EXAMPLES, copy_example
from tests.lab.slurm import SlurmLab
from tests.system.slurm.slurm_stage import SITE, SlurmStage
from tests.system.stage import until
from windlass import Options, Run, launch
from windlass.cli import main
from windlass.core.process import send_signal
from windlass.launcher.prepare import prepare_file
from windlass.record.facts import SavedCheckpoint
from windlass.record.manifest import commit_manifest
from windlass.record.state import State
from windlass.runs.home import Home

EXAMPLE = EXAMPLES / "grpo-slurm"
FLAGS = """
    --exp_name grpo-rlzero --beta 0.0 --clip_higher 0.272 --learning_rate 1e-6 --lr_scheduler_type constant
    --temperature 1.0 --kl_estimator 2 --num_samples_per_prompt_rollout 8 --num_unique_prompts_rollout 32
    --num_mini_batches 1 --num_epochs 1 --per_device_train_batch_size 1 --async_steps 4 --inflight_updates true
    --truncated_importance_sampling_ratio_cap 2.0 --apply_verifiable_reward true --mask_truncated_completions true
    --non_stop_penalty false --stop_strings '</answer>' --dataset_mixer_list ${data.prompts} 1.0
    --dataset_mixer_list_splits train --dataset_mixer_eval_list ${data.prompts} 8
    --dataset_mixer_eval_list_splits train --max_prompt_token_length 2048 --response_length 16384
    --pack_length 18432 --model_name_or_path allenai/OLMo-3-1025-7B --chat_template_name olmo_thinker
    --total_episodes 10000000 --deepspeed_stage 3 --gradient_checkpointing true
    --num_learners_per_node 2 2 2 2 2 2 2 2 2 2 --vllm_num_engines 20 --vllm_tensor_parallel_size 1
    --vllm_enable_prefix_caching true --vllm_sync_backend gloo --llm_judge_model null/null --llm_judge_timeout 600
    --llm_judge_max_tokens 2048 --llm_judge_max_context_length 32768 --seed 1 --local_eval_every 50 --save_freq 50
    --checkpoint_state_freq 50 --checkpoint_state_dir ${checkpoints}/state --keep_last_n_checkpoints 3
    --output_dir ${out}/models --push_to_hub false --with_tracking false
"""
PAGE = """
where        isambard/workq (slurm)
data         prompts: file:prompts.jsonl  sha256:
  replicas     10 x 4 GPUs
  launcher     ray, 1 process per replica
  queue        partition workq, whole nodes, away from nid010798, nid010869, nid010632
  jobs         5 x 1d, at most 30; 2 queued at the launch
  bundles      learners: 10 x (2 GPUs, 20 CPUs), strict-spread: 20 GPUs, 200 CPUs
               data-preparation: 1 x (2 CPUs), pack: 2 CPUs
               engines: 20 x (1 GPU, 1 CPU), pack: 20 GPUs, 20 CPUs
               together: 40 of 10 x 4 = 40 GPUs, 222 of 10 x 32 = 320 CPUs
               VLLM_ATTENTION_BACKEND=FLASH_ATTN
               PYTHONUNBUFFERED=1
  of the site  NCCL_NET=AWS Libfabric
               NCCL_SOCKET_IFNAME=hsn
               FI_PROVIDER=cxi
               NCCL_CUMEM_ENABLE=0
  its driver   LD_PRELOAD=${env.path}/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2
  its workers  LD_PRELOAD is unset
  checkpoints  when the code saves, matching state/global_step*, resumes from the latest
  limits       5d for each task, 1d per job
"""
SCRIPT = """
#SBATCH --job-name=wl-grpo-rlzero-
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --dependency=singleton
#SBATCH --time=1-00:00:00
#SBATCH --signal=B:USR1@900
#SBATCH --partition=workq
#SBATCH --exclude=nid010798,nid010869,nid010632
#SBATCH --nodes=10
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
{ module purge
{ module load PrgEnv-cray cuda/12.6 brics/aws-ofi-nccl/1.8.1
exec srun --nodes=10 --ntasks=10 --ntasks-per-node=1
"""
Planned = Callable[..., str]


@pytest.fixture
def planned(home: Path, need: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planned:
    """What `windlass plan --on isambard experiment.yaml ...` prints, with nobody's profile but the shipped one."""
    need("git")
    project = copy_example("grpo-slurm", tmp_path / "project")

    def plan(*words: str, on: str = "isambard", code: int = 0) -> str:
        capsys.readouterr()
        assert main(("plan", "--on", on, str(project / "experiment.yaml"), *words)) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return plan


def words_of(name: str) -> list[str]:
    """The overrides in a file of the example."""
    return (EXAMPLE / name).read_text().split()


def command_of(page: str) -> list[str]:
    """The program and its arguments, from the shell line of a plan's page."""
    [line] = [line for line in page.splitlines() if line.startswith("  shell ")]
    cleared, _, command = line.removeprefix("  shell ").partition("; exec ")
    assert cleared.strip() == "test -e ${checkpoints}/state/latest || rm -rf ${checkpoints}/state"
    return shlex.split(command)


def assert_holds(text: str, wanted: str) -> None:
    """Every line of `wanted` begins a line of `text`, in this order."""
    lines = iter(text.splitlines())
    for line in wanted.strip("\n").splitlines():
        assert any(found.startswith(line) for found in lines), f"{line!r} is not in its place in\n{text}"


def test_the_plan_for_isambard_says_what_will_run(planned: Planned) -> None:
    page = planned()
    assert_holds(page, PAGE)
    assert command_of(page) == ["python", "open_instruct/grpo_fast.py", *shlex.split(FLAGS)]


def test_the_script_for_isambard_is_rendered_from_any_machine(planned: Planned) -> None:
    [job] = json.loads(planned("--render"))["jobs"]
    assert_holds(job["files"]["job.sbatch"], SCRIPT)
    document = job["files"]["job.json"]
    argv = document["command"]["argv"]
    assert document["shape"]["nodes"] == 10
    assert {"ray", "--num-gpus=4", "--num-cpus=32", "--worker-unset=LD_PRELOAD"} <= set(argv)
    assert "; exec python open_instruct/grpo_fast.py --exp_name grpo-rlzero " in argv[-1]


def test_learners_that_leave_no_cpus_are_refused_with_the_arithmetic(planned: Planned) -> None:
    said = planned("params.learners_per_node=4", code=3)
    assert "[does-not-fit]" in said
    assert "each takes 40 CPUs, and nodes with GPUs left have 32 CPUs left at most" in said


def test_flags_follow_the_shape(planned: Planned) -> None:
    page = planned("tasks.train.nodes=6", "params.learners_per_node=1", "params.tensor_parallel=3")
    command = command_of(page)
    at = command.index("--num_learners_per_node")
    assert command[at : at + 8] == ["--num_learners_per_node", *"111111", "--vllm_num_engines"]
    assert command[at + 8] == "6"
    assert "together: 24 of 6 x 4 = 24 GPUs, 80 of 6 x 32 = 192 CPUs" in page


@pytest.mark.parametrize("files", [["one-node.txt"], ["one-node.txt", "stand-in.txt"]])
@pytest.mark.parametrize("on", ["isambard", "local"])
def test_the_files_of_overrides_fit(
    planned: Planned, files: list[str], on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_GPUS", "0,1,2,3")
    page = planned(*(word for name in files for word in words_of(name)), on=on)
    assert "  replicas     1 x 4 GPUs" in page
    assert command_of(page)[1] == ("stand_in/grpo_fast.py" if len(files) == 2 else "open_instruct/grpo_fast.py")


def stand_in(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The stand-in with the flags of the plan, outside of any run."""
    flags = FLAGS.replace("${data.prompts}", str(EXAMPLE / "prompts.jsonl")).replace(
        "${checkpoints}", f"{folder}/saved"
    )
    words = shlex.split(flags.replace("${out}", str(folder / "out")))
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(Path(windlass.__file__).parents[1]),
        "WINDLASS_CHECKPOINTS": str(folder / "saved" / "state"),
    }
    command = [sys.executable, str(EXAMPLE / "stand_in" / "grpo_fast.py"), *words, *more]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_finished_run_that_is_started_again_ends_well_at_once(need: Callable[[str], None], tmp_path: Path) -> None:
    need("ray")
    state = tmp_path / "saved" / "state" / "global_step4"
    state.mkdir(parents=True)
    num_prompts = len((EXAMPLE / "prompts.jsonl").read_text().splitlines())
    (state / "state.json").write_text(json.dumps({"step": 4, "table": [[0.0] * 17] * num_prompts}))
    commit_manifest(state, step=4, at=0.0)
    done = stand_in(tmp_path, "--total_episodes", str(4 * 32 * 8))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("attempt 0: 4 of 4 steps are done\ndone: accuracy 0.059, digest ")


def test_a_flag_that_is_misspelt_ends_the_stand_in(need: Callable[[str], None], tmp_path: Path) -> None:
    need("ray")
    done = stand_in(tmp_path, "--clip_hihger", "0.3")
    assert done.returncode == 2
    assert "unrecognized arguments: --clip_hihger 0.3" in done.stderr


def test_the_stand_in_learns_the_same_whoever_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SimpleNamespace(**runpy.run_path(str(EXAMPLE / "stand_in" / "policy.py")))
    args = SimpleNamespace(
        seed=1,
        learning_rate=1e-6,
        temperature=1.0,
        num_unique_prompts_rollout=32,
        num_samples_per_prompt_rollout=8,
    )
    prompts = policy.load_prompts(EXAMPLE / "prompts.jsonl")
    tables = {num_learners: policy.fresh(prompts) for num_learners in (1, 3, 20)}
    for num_learners, table in tables.items():
        for step in range(1, 21):
            groups = {
                at: policy.generate(args, prompts, table, step, at) for at in policy.chosen(args, step, len(prompts))
            }
            names = list(groups)
            shares = [
                policy.gradient(args, table, {at: groups[at] for at in names[rank::num_learners]})
                for rank in range(num_learners)
            ]
            for rows in shares:
                policy.apply(args, table, rows)
        rewards = [reward for group in groups.values() for _, reward in group]
        assert sum(rewards) / len(rewards) > 0.6
    assert len({policy.digest(20, table) for table in tables.values()}) == 1


class Pretended:
    """Stands for `launch` in the ladder: runs that are over at once, of which those named in `broken` failed."""

    def __init__(self, folder: Path, broken: str = "") -> None:
        self.folder, self.broken = folder, broken
        self.overrides: list[list[str]] = []

    def load(self, path: Path, overrides: list[str], options: Options) -> list[str]:
        assert path.name == "experiment.yaml"
        assert options.on == "somewhere"
        self.overrides.append(overrides)
        return overrides

    def launch(self, overrides: list[str], log: object) -> SimpleNamespace:
        is_broken = bool(self.broken) and any(self.broken in word for word in overrides)
        state = State.FAILED if is_broken else State.SUCCEEDED
        nodes = [int(word.partition("=")[2]) for word in overrides if word.startswith("tasks.train.nodes=")][-1]
        (self.folder / "models").mkdir(exist_ok=True)
        for name, content in {
            "proof.json": {"hosts": ["n1", "n2"], "how": "nccl", "gb_per_s": 20.5, "ray": "2"},
            "models/result.json": {"step": 20, "digest": "d" * 64},
            "models/placement.json": {"learners": ["x"] * nodes},
            "steps-1.json": [3, 6, 9, 12],
            "steps-2.json": [3, 6] if self.broken == "resume" else [15, 18],
        }.items():
            (self.folder / name).write_text(json.dumps(content))
        attempts = {1: None, 2: None} if any("kill_once" in word for word in overrides) else {1: None}
        task = SimpleNamespace(
            entries={"global_step3"}, last_checkpoint=SavedCheckpoint(3, "/c/global_step3"), attempts=attempts
        )
        facts = SimpleNamespace(cause="user-error", task=lambda name: task)
        return SimpleNamespace(
            id="grpo-1", state=state, facts=facts, wait=lambda: state, fetch_output=lambda name: self.folder
        )


def climb(pretended: Pretended, *words: str) -> int:
    """The ladder's exit code."""
    ladder = runpy.run_path(str(EXAMPLE / "ladder.py"))
    ladder["main"].__globals__.update(load=pretended.load, launch=pretended.launch)
    code = ladder["main"](["somewhere", *words])
    assert isinstance(code, int)
    return code


def test_the_ladder_says_what_each_step_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretended = Pretended(tmp_path)
    assert climb(pretended, "--stand-in", "tasks.train.nodes=4", "params.seed=2") == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "proved" in line]
    assert [line.split(":")[0] for line in said] == [
        "1/6 environment",
        "2/6 allreduce",
        "3/6 one-node",
        "4/6 two-nodes",
        "5/6 resume",
        "6/6 full",
    ]
    assert said[1].endswith("n1 and n2 sum right through nccl, 20.50 GB/s")
    assert "killed after step 12, went on with 15; 20 steps, learners on 2 nodes" in said[4]
    assert all("params.seed=2" not in overrides for overrides in pretended.overrides[:2])
    assert pretended.overrides[5] == ["params.program=stand_in/grpo_fast.py", "tasks.train.nodes=4", "params.seed=2"]


@pytest.mark.parametrize(
    ("broken", "num_runs", "said"),
    [
        ("allreduce", 2, "2/6 allreduce: NOT PROVED: grpo-1 failed: user-error; windlass show grpo-1 says more"),
        ("kill_once", 5, "5/6 resume: NOT PROVED: grpo-1 failed"),
        ("resume", 5, "attempt 1 saved [3, 6, 9, 12], attempt 2 [3, 6]: it began again"),
    ],
)
def test_the_ladder_stops_at_the_first_step_that_proves_nothing(
    broken: str, num_runs: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretended = Pretended(tmp_path, broken)
    assert climb(pretended, "--stand-in", "tasks.train.nodes=4") == 1
    assert said in capsys.readouterr().out
    assert len(pretended.overrides) == num_runs


_STEPS = 32
_STAND_IN = [
    "tasks.train.nodes=4",
    "params.program=stand_in/grpo_fast.py",
    f"params.episodes={_STEPS * 32 * 8}",
    "params.checkpoint_every=4",
    "~env.uv",
    f"env.python={sys.executable}",
]
_LAPTOP = ["tasks.train.nodes=1", "~limit.jobs"]
_WAIT_S = 900.0  # means hung: four Rays on two cores that other tests use too need 45 s to start, each time


@pytest.fixture
def stage(
    tmp_path: Path, home: Path, need: Callable[[str], None], at_slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmStage]:
    """The lab as a site of whole nodes where Ray may count 32 CPUs of each, as on Isambard-AI."""
    need("ray")
    monkeypatch.setenv("WINDLASS_GPUS", "0,1,2,3")
    stage = SlurmStage(tmp_path, Home(home), at_slurm)
    stage.write_site(**{"kill_wait:": "exclusive: true\n  kill_wait:", "\nfs:": "\nray: {cpus: 32}\nfs:"})
    yield stage
    stage.close()


@pytest.mark.system
def test_a_killed_chain_on_four_nodes_ends_as_one_machine_that_nobody_touched(
    stage: SlurmStage, tmp_path: Path
) -> None:
    """A driver is killed, and Slurm ends link 1's time; the other run has one node, so another number of everything.

    Both happen when steps were saved, so the test takes a slow machine as it is.
    """
    project = copy_example("grpo-slurm", tmp_path / "project")
    run = start(stage, project, "limit.per_job=30m", "tasks.train.vars.STAND_IN_STEP_S=2")
    wait_for_step(stage, run, 4)
    until(lambda: kill_driver(stage, run), "its driver is killed", _WAIT_S)
    wait_for_step(stage, run, 8)
    [link] = stage.job_ids(run, "train")
    stage.lab.command("scontrol", "update", f"JobId={link}", "EndTime=now+120seconds")
    laptop = start(stage, project, *_LAPTOP, on="local")
    assert stage.end(run, _WAIT_S) is State.SUCCEEDED, stage.story(run)
    assert stage.end(laptop, _WAIT_S) is State.SUCCEEDED, stage.story(laptop)

    attempts = stage.attempts(run, "train")
    killed = [attempt for attempt in attempts if attempt.end and attempt.end.cause == "killed"]
    assert len(killed) == 1, stage.story(run)
    assert "walltime" in [attempt.end.cause for attempt in attempts if attempt.end], stage.story(run)
    assert killed[0].checkpoint_step >= 4
    assert attempts[-1].link >= 2
    log = (run.folder.logs / str(attempts[-1].number) / "train" / "0.log").read_text()
    [done] = re.findall(rf"attempt \d+: (\d+) of {_STEPS} steps are done", log)
    assert int(done) >= max(attempt.checkpoint_step for attempt in attempts[:-1])
    assert result(run) == result(laptop)
    assert result(run)["step"] == _STEPS
    nodes = [f"windlass-{rank}" for rank in range(4)]
    assert sorted(placement(run)["learners"]) == nodes
    assert sorted(placement(run)["engines"]) == sorted(2 * nodes)
    assert placement(laptop) == {"learners": nodes[:1], "engines": 2 * nodes[:1]}
    stage.wait_until_queue_is_empty()
    assert stage.survivors(run) == {}


def wait_for_step(stage: SlurmStage, run: Run, step: int) -> None:
    """Wait until so many steps are saved, of a run that has not ended."""

    def is_there() -> bool:
        assert not run.state.is_terminal, stage.story(run)
        return saved(run) >= step

    until(is_there, f"step {step} is saved", _WAIT_S, story=lambda: stage.story(run))


def kill_driver(stage: SlurmStage, run: Run) -> bool:
    """SIGKILL the process that runs the stand-in's own code, on the head; false between two attempts."""
    found = [
        pid for pid, line in stage.inhabitants(run).items() if line.split()[:2] == ["python", "stand_in/grpo_fast.py"]
    ]
    for pid in found:
        send_signal(pid, signal.SIGKILL)
    return len(found) == 1


def start(stage: SlurmStage, project: Path, *overrides: str, on: str = SITE) -> Run:
    """Launch the stand-in."""
    options = Options(on=on)
    return launch(prepare_file(project / "experiment.yaml", [*_STAND_IN, *overrides], options, home=stage.home))


def saved(run: Run) -> int:
    """The newest step that was saved."""
    return run.facts.task("train").last_checkpoint.step


def result(run: Run) -> dict[str, Any]:
    """What the stand-in says of itself at the end."""
    return said(run, "result.json")


def placement(run: Run) -> dict[str, Any]:
    """The nodes of learner bundles and engines."""
    return said(run, "placement.json")


def said(run: Run, name: str) -> dict[str, Any]:
    found = json.loads((run.output("train") / "models" / name).read_text())
    assert isinstance(found, dict)
    return found
