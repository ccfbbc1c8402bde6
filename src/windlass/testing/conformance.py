"""Conformance tests for backends: subclass `BackendConformance` and define a `backend` fixture.

class TestLocalBackend(BackendConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return LocalBackend()
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from windlass.backends import Backend, JobState, Rendered
from windlass.core.clock import SystemClock
from windlass.core.names import new_token
from windlass.core.process import find_by_environment
from windlass.record import events
from windlass.record.journal import JournalWriter, read_journal
from windlass.record.state import RunFacts, State, fold
from windlass.supervise.archive import ensure_archive
from windlass.supervise.job import JobDocument, JobPaths, ReplicaCommand, TaskSettings, TaskShape
from windlass.supervise.replica.environment import TOKEN_NAME

__all__ = ["BackendConformance", "JobBench"]

_DEADLINE_S = 300.0
_POLL_S = 0.02


class JobBench:
    """Helper that creates small jobs in a run's folder and waits for facts in the journal.

    Args:
        dress: adds fields that the backend needs and a plan would set: queue, chain, fencing.
    """

    def __init__(self, folder: Path, dress: Callable[[JobDocument], JobDocument] = lambda document: document) -> None:
        self.folder = folder
        self._dress = dress
        self._documents: list[JobDocument] = []
        self.archive = ensure_archive(folder / "archives")

    def job(
        self, line: str, *, num_replicas: int = 1, job: int = 1, grace_s: float = 2.0, failed: int = 0
    ) -> JobDocument:
        """Create a job whose replicas run a shell line, and record its intent in the journal."""
        document = JobDocument(
            run=self.folder.name,
            task="main",
            job=job,
            token=new_token(),
            command=ReplicaCommand(
                ("/bin/sh", "-c", line),
                {"RANK": "${rank}", "ATTEMPT": "${attempt}"},
                cwd=str(self.folder),
                is_shell=True,
            ),
            paths=JobPaths(str(self.folder), str(self.folder / "out"), str(self.folder / "checkpoints")),
            shape=TaskShape(nodes=num_replicas),
            settings=TaskSettings(grace_s=grace_s, failed=failed),
        )
        document = self._dress(document)
        tasks = {"main": {"after": [], "replicas": num_replicas, "interrupted": 50, "failed": failed}}
        writer = JournalWriter(self.folder / "journal", f"client-{job}", SystemClock())
        if job == 1:
            writer.append(events.RUN_CREATED, run=document.run, name="conformance", why="", plan_hash="", tasks=tasks)
        writer.append(
            events.JOB_INTENDED, task="main", job=job, token=document.token, backend="", resets_budgets=job == 1
        )
        writer.close()
        self._documents.append(document)
        return document

    def stop(self, job: int) -> None:
        """Request a stop of the task, as `windlass stop` does."""
        writer = JournalWriter(self.folder / "journal", f"client-stop-{job}", SystemClock())
        writer.append(events.STOP_REQUESTED, tasks={"main": job}, reason="asked", is_checkpoint_wanted=False)
        writer.close()

    def render(self, backend: Backend, document: JobDocument) -> Rendered:
        """Return the submission as rendered by the backend."""
        return backend.render(document, self.folder / "jobs" / f"main-{document.job}", self.archive)

    def facts(self) -> RunFacts:
        """Return the facts of the run according to its journal."""
        return fold(read_journal(self.folder / "journal"))

    def wait_for_end(self) -> State:
        """Wait until the task has ended."""
        self.wait_until(lambda facts: facts.state.is_terminal)
        return self.facts().state

    def wait_until(self, is_true: object) -> None:
        """Wait until a predicate of the facts is true; fail the test after five minutes."""
        assert callable(is_true)
        deadline = time.monotonic() + _DEADLINE_S
        while not is_true(self.facts()):
            if time.monotonic() > deadline:
                pytest.fail(f"the journal has no such record: {self.facts()}")
            time.sleep(_POLL_S)

    def log(self, attempt: int, rank: int) -> str:
        """Return the output of one replica."""
        return (self.folder / "logs" / str(attempt) / "main" / f"{rank}.log").read_text()

    def survivors(self) -> list[int]:
        """Return the ids of live processes that have the token of one of this bench's jobs."""
        return [
            pid
            for document in self._documents
            for rank in range(document.num_replicas)
            for pid in find_by_environment(TOKEN_NAME, f"{document.token}.{rank}")
        ]


class BackendConformance:
    """Conformance suite for a backend, which must pass all tests on the real system."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Return the backend under test; each subclass defines it."""
        pytest.fail("a subclass of BackendConformance must define a `backend` fixture")

    def dress(self, document: JobDocument) -> JobDocument:
        """Return the job with backend-specific fields added; the default returns it unchanged."""
        return document

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[JobBench]:
        """Yield a helper that creates jobs in a run's folder; then fail if one of their processes is still alive."""
        folder = tmp_path / "conformance-00000000"
        folder.mkdir()
        bench = JobBench(folder, self.dress)
        yield bench
        deadline = time.monotonic() + _DEADLINE_S
        while bench.survivors() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        assert bench.survivors() == []

    def test_render_is_pure(self, backend: Backend, bench: JobBench) -> None:
        document = bench.job("true")
        first = bench.render(backend, document)
        assert bench.render(backend, document) == first
        assert not first.folder.exists()
        assert document.token not in " ".join(first.argv)

    def test_a_job_runs_to_its_end(self, backend: Backend, bench: JobBench) -> None:
        submission = backend.submit(bench.render(backend, bench.job("echo hello from $RANK; echo x > $PWD/mark")))
        assert bench.wait_for_end() is State.SUCCEEDED
        assert bench.log(1, 0) == "hello from 0\n"
        self._wait_for(backend, submission.backend_id, submission.folder, JobState.GONE, bench)

    def test_a_gang_starts_together_and_has_one_cause(self, backend: Backend, bench: JobBench) -> None:
        line = "echo rank $RANK; if [ $RANK = 1 ]; then exit 5; fi; sleep 60"
        backend.submit(bench.render(backend, bench.job(line, num_replicas=3)))
        assert bench.wait_for_end() is State.FAILED
        end = bench.facts().tasks["main"].attempts[1].end
        assert end is not None
        assert (end.cause, end.code, end.rank) == ("user-error", 5, 1)
        assert [bench.log(1, rank).splitlines()[0] for rank in range(3)] == ["rank 0", "rank 1", "rank 2"]

    def test_a_failed_attempt_is_started_again_inside_the_job(self, backend: Backend, bench: JobBench) -> None:
        document = bench.job("echo attempt $ATTEMPT; [ $ATTEMPT = 2 ]", failed=1)
        backend.submit(bench.render(backend, document))
        assert bench.wait_for_end() is State.SUCCEEDED
        assert [bench.log(number, 0) for number in (1, 2)] == ["attempt 1\n", "attempt 2\n"]
        assert len(bench.facts().tasks["main"].jobs) == 1

    def test_submit_is_idempotent(self, backend: Backend, bench: JobBench) -> None:
        document = bench.job("echo x >> marks; sleep 0.3")
        rendered = bench.render(backend, document)
        with ThreadPoolExecutor(4) as pool:
            ids = {submission.backend_id for submission in pool.map(lambda _: backend.submit(rendered), range(8))}
        assert len(ids) == 1
        assert bench.wait_for_end() is State.SUCCEEDED
        assert backend.submit(rendered).backend_id in ids
        assert (bench.folder / "marks").read_text() == "x\n"

    def test_a_superseded_job_leaves_before_user_code(self, backend: Backend, bench: JobBench) -> None:
        old = bench.render(backend, bench.job("echo old >> marks"))
        new = bench.render(backend, bench.job("echo new >> marks", job=2))
        submission = backend.submit(old)
        self._wait_for(backend, submission.backend_id, submission.folder, JobState.GONE, bench)
        assert not (bench.folder / "marks").exists()
        backend.submit(new)
        assert bench.wait_for_end() is State.SUCCEEDED
        assert (bench.folder / "marks").read_text() == "new\n"

    def test_a_finished_task_is_never_started_again(self, backend: Backend, bench: JobBench) -> None:
        backend.submit(bench.render(backend, bench.job("echo once >> marks")))
        assert bench.wait_for_end() is State.SUCCEEDED
        late = bench.job("echo twice >> marks", job=2)
        submission = backend.submit(bench.render(backend, late))
        self._wait_for(backend, submission.backend_id, submission.folder, JobState.GONE, bench)
        assert (bench.folder / "marks").read_text() == "once\n"
        assert bench.facts().state is State.SUCCEEDED

    def test_a_stop_is_heard(self, backend: Backend, bench: JobBench) -> None:
        backend.submit(bench.render(backend, bench.job("trap 'echo bye; exit 0' TERM; while :; do sleep 0.1; done")))
        bench.wait_until(lambda facts: facts.state is State.RUNNING)
        bench.stop(1)
        assert bench.wait_for_end() in (State.STOPPED, State.SUCCEEDED)

    def test_cancel_leaves_no_process(self, backend: Backend, bench: JobBench) -> None:
        document = bench.job("setsid sleep 300 & sleep 300", num_replicas=2)
        submission = backend.submit(bench.render(backend, document))
        bench.wait_until(lambda facts: len(bench.survivors()) >= document.num_replicas)
        backend.cancel(submission)
        backend.cancel(submission)
        assert backend.observe([submission])[submission.backend_id].state is JobState.GONE

    def test_one_question_for_many_jobs(self, backend: Backend, bench: JobBench) -> None:
        submission = backend.submit(bench.render(backend, bench.job("sleep 300")))
        bench.wait_until(lambda facts: facts.state is State.RUNNING)
        other = dataclasses.replace(submission, folder=submission.folder)
        seen = backend.observe([submission, other])
        assert seen[submission.backend_id].state in (JobState.RUNNING, JobState.QUEUED)
        assert backend.explain(submission) == ""
        backend.cancel(submission)

    def test_the_environment_is_what_the_plan_says(self, backend: Backend, bench: JobBench) -> None:
        os.environ["WINDLASS_LEAK"] = "outside"
        try:
            backend.submit(bench.render(backend, bench.job("echo [$WINDLASS_LEAK] [$RANK]")))
            assert bench.wait_for_end() is State.SUCCEEDED
        finally:
            del os.environ["WINDLASS_LEAK"]
        assert bench.log(1, 0) == "[] [0]\n"

    def _wait_for(self, backend: Backend, backend_id: str, folder: Path, state: JobState, bench: JobBench) -> None:
        submission = backend.submit(bench.render(backend, JobDocument.read(folder / "job.json")))
        deadline = time.monotonic() + _DEADLINE_S
        while backend.observe([submission])[backend_id].state is not state:
            assert time.monotonic() < deadline, f"the job never became {state}"
            time.sleep(_POLL_S)
