"""A link that ends before any supervisor: what the journal hears of it, and what follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.core.clock import SystemClock
from windlass.record import events
from windlass.record.journal import JournalWriter, read_journal
from windlass.record.state import State, TaskFacts, fold
from windlass.supervise.job import ChainConfig, JobDocument, JobPaths, ReplicaCommand, TaskSettings
from windlass.supervise.slurm.setup_failure import end_link

ENVIRONMENT = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "0"}
WORDS = "`module load cuda/99` failed: no such module"


class Run:
    """A run of one task whose first job is intended."""

    def __init__(self, folder: Path, *, failed: int = 0, num_links: int = 3) -> None:
        self.journal = folder / "journal"
        self.job = folder / "jobs" / "train-1"
        self.job.mkdir(parents=True)
        document = JobDocument(
            run="demo",
            task="train",
            job=1,
            token="token",
            paths=JobPaths(str(folder)),
            command=ReplicaCommand(("true",), cwd="/"),
            settings=TaskSettings(failed=failed),
            chain=ChainConfig(mode="successor", num_links=num_links, can_submit=False),
        )
        (self.job / "job.json").write_text(json.dumps(document.to_data()))
        tasks = {"train": {"after": [], "replicas": 1, "interrupted": 50, "failed": failed}}
        self.pen = JournalWriter(self.journal, "client-1", SystemClock())
        self.pen.append(events.RUN_CREATED, run="demo", name="demo", why="", plan_hash="", tasks=tasks)
        self.intend(1)

    def intend(self, number: int) -> None:
        self.pen.append(
            events.JOB_INTENDED, task="train", job=number, token="token", backend="slurm", resets_budgets=True
        )

    def fail(self, link: int = 1, job_id: str = "7") -> int:
        return end_link(self.job, link, "setup-failed", WORDS, {**ENVIRONMENT, "SLURM_JOB_ID": job_id})

    @property
    def task(self) -> TaskFacts:
        return fold(read_journal(self.journal)).task("train")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_it_is_an_attempt_that_failed_and_ends_the_task(run: Run) -> None:
    assert run.fail() == 0
    assert run.task.state is State.FAILED
    attempt = run.task.attempts[1]
    assert attempt.end is not None
    assert (attempt.job, attempt.end.cause, attempt.end.message) == (1, "setup-failed", WORDS)
    assert run.task.end is not None
    assert run.task.end[1:3] == ("setup-failed", WORDS)


def test_within_the_budget_the_next_link_tries_again(tmp_path: Path) -> None:
    run = Run(tmp_path, failed=1)
    run.fail()
    assert run.task.end is None
    run.fail(link=2, job_id="8")
    assert sorted(run.task.attempts) == [1, 2]
    assert run.task.state is State.FAILED


def test_after_the_last_link_the_task_is_over(tmp_path: Path) -> None:
    run = Run(tmp_path, failed=5, num_links=1)
    run.fail()
    assert run.task.end is not None
    assert run.task.end[1:3] == ("setup-failed", "all 1 jobs of its chain are used up")


def test_a_late_duplicate_of_the_link_says_nothing(run: Run) -> None:
    (run.job / "link-1.json").write_text(json.dumps({"id": "6", "host": "n1", "at": 0.0}))
    assert run.fail() == 0
    assert run.task.attempts == {}


def test_a_superseded_job_says_nothing(run: Run) -> None:
    run.intend(2)
    assert run.fail() == 0
    assert run.task.attempts == {}
    assert run.task.end is None
