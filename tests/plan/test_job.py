from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.sample import FULL, plan_of
from windlass.core.errors import InternalError, PreconditionError
from windlass.plan.job import RunPaths, job_document
from windlass.supervise.job import JobDocument, JobSecret, Lease

PLACES = RunPaths(
    run="grpo-abcd1234",
    run_dir=Path("/home/a b/runs/grpo-abcd1234"),
    code=Path("/home/a b/runs/grpo-abcd1234/code/sub"),
    data={"prompts": Path("/data/p.jsonl")},
    path=(Path("/env/bin"),),
    python_path=(Path("/code"), Path("/report.zip")),
    virtual_env=Path("/env"),
    lease=Path("/leases"),
    delivery=Path("/vault/d"),
)


def test_paths_become_absolute_and_keep_their_spaces() -> None:
    plan = plan_of(FULL)
    train = job_document(plan, plan.task("train"), places=PLACES, job=1, token="t")
    score = job_document(plan, plan.task("score"), places=PLACES, job=2, token="t")
    run = "/home/a b/runs/grpo-abcd1234"
    assert train.command.argv[-6:] == (
        "--data",
        "/data/p.jsonl",
        "--to",
        f"{run}/checkpoints/train",
        "--out",
        f"{run}/out/train",
    )
    assert score.command.argv[2] == f"""python eval.py '{run}/out/train' --name "grpo it's" --layers 1 2 $HOME"""
    assert (train.command.is_shell, score.command.is_shell) == (False, True)
    assert (train.paths.out, train.paths.checkpoints, train.paths.run_dir) == (
        f"{run}/out/train",
        f"{run}/checkpoints/train",
        run,
    )
    assert train.command.cwd == f"{run}/code/sub"


def test_what_only_the_job_knows_stays() -> None:
    plan = plan_of(FULL)
    document = job_document(plan, plan.task("train"), places=PLACES, job=1, token="t")
    assert document.num_replicas == 2
    assert "${rank}" in document.command.argv
    assert document.command.env["WINDLASS_RANK"] == "${rank}"
    assert document.command.env["WINDLASS_RUN"] == "grpo-abcd1234"
    assert [name for name, value in document.command.env.items() if "${" in value] == [
        *("WINDLASS_ATTEMPT", "WINDLASS_RANK", "WINDLASS_LEADER_ADDRESS", "WINDLASS_LEADER_PORT"),
    ]


def test_the_rest_of_the_document() -> None:
    plan = plan_of(FULL)
    document = job_document(plan, plan.task("train"), places=PLACES, job=3, token="tok")
    assert (document.run, document.task, document.job, document.token) == (
        "grpo-abcd1234",
        "train",
        3,
        "tok",
    )
    assert (document.command.path, document.command.python_path) == (("/env/bin",), ("/code", "/report.zip"))
    assert document.command.env["VIRTUAL_ENV"] == "/env"
    assert document.lease == Lease(folder="/leases", gpus=4, cpus=3.0, memory_bytes=32 << 30)
    assert document.shape.memory_bytes == 16 << 30
    assert document.settings.secrets == (JobSecret("HF_TOKEN"), JobSecret("WANDB_API_KEY", is_file=True))
    assert document.paths.delivery == "/vault/d"
    assert (document.settings.time_s, document.settings.per_job_s, document.settings.failed) == (432000.0, 86400.0, 1)
    assert (document.settings.checkpoint_every_s, document.settings.checkpoint_pattern) == (1200.0, "step_*")


def test_the_document_is_what_a_supervisor_reads(tmp_path: Path) -> None:
    plan = plan_of(FULL)
    document = job_document(plan, plan.task("score"), places=PLACES, job=1, token="t")
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document.to_data()))
    assert JobDocument.read(path) == document
    assert document.settings.after == ("train",)


def test_a_job_number_reaches_the_command() -> None:
    plan = plan_of("{name: x, run: [f, '${run}/${job}', '$${X}'], env: {vars: {VIRTUAL_ENV: mine}}}")
    document = job_document(plan, plan.tasks[0], places=PLACES, job=4, token="t")
    assert document.command.argv == ("f", "grpo-abcd1234/4", "${X}")
    assert document.command.env["VIRTUAL_ENV"] == "mine"


def test_a_path_that_cannot_stand_where_it_should() -> None:
    plan = plan_of("{name: x, run: 'f `ls ${out}`'}")
    with pytest.raises(
        PreconditionError, match=r"task `main`: `\$\{out}` is `/home/a b/runs/.*`, which needs quotes"
    ) as caught:
        job_document(plan, plan.tasks[0], places=PLACES, job=1, token="t")
    assert caught.value.code == "unsafe-insert"


def test_relative_paths_are_our_bug() -> None:
    plan = plan_of("{name: x, run: f}")
    with pytest.raises(InternalError, match="not absolute"):
        job_document(
            plan, plan.tasks[0], places=RunPaths(run="r", run_dir=Path("r"), code=Path("/c")), job=1, token="t"
        )


@pytest.mark.parametrize(
    "places",
    [
        replace(PLACES, run_dir=Path("/home/${rank}/x")),
        replace(PLACES, code=Path("/home/${rank}/x")),
        replace(PLACES, virtual_env=Path("/home/${rank}/x")),
        replace(PLACES, data={"prompts": Path("/home/${rank}/x")}),
    ],
)
def test_a_path_with_a_token_is_refused(places: RunPaths) -> None:
    plan = plan_of("{name: x, run: [f, '${out}', '${code}']}")
    with pytest.raises(
        PreconditionError, match=r"contains `\$\{`, which would be replaced in the job: /home/\$\{rank}"
    ) as caught:
        job_document(plan, plan.tasks[0], places=places, job=1, token="t")
    assert (caught.value.code, caught.value.hint) == (
        "unsafe-insert",
        "move windlass's home or the data to a path without `${`",
    )
