"""The conformance suite on the Beaker backend: the genuine client against the fake service, real replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.beaker.dressing import dressed, fake_profile
from windlass.backends import Backend, JobState
from windlass.backends.beaker.backend import BeakerBackend
from windlass.record.state import State
from windlass.supervise.job import JobDocument
from windlass.testing.beaker import FakeBeaker
from windlass.testing.conformance import BackendConformance, JobBench

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeBeaker]:
    patch = pytest.MonkeyPatch()
    with FakeBeaker(tmp_path_factory.mktemp("beaker")) as beaker:
        for name, value in beaker.environ.items():
            patch.setenv(name, value)
        yield beaker
    patch.undo()


class TestBeaker(BackendConformance):
    @pytest.fixture
    def storage(self, fake: FakeBeaker) -> Path:
        """The bucket that jobs see, under the path that this machine sees it by."""
        return fake.weka("main")

    @pytest.fixture
    def backend(self, fake: FakeBeaker) -> Backend:
        return BeakerBackend(fake_profile(fake))

    @pytest.fixture
    def tmp_path(self, storage: Path, request: pytest.FixtureRequest) -> Path:
        """On the storage, so that jobs see the run's folder."""
        self._storage = storage
        folder = storage / "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
        folder.mkdir()
        return folder

    def dress(self, document: JobDocument) -> JobDocument:
        return dressed(document, self._storage)

    def test_a_preempted_job_is_started_again_and_goes_on(
        self, fake: FakeBeaker, backend: Backend, bench: JobBench
    ) -> None:
        line = "echo at $ATTEMPT; if [ $ATTEMPT = 1 ]; then sleep 600; fi"
        submission = backend.submit(bench.render(backend, bench.job(line, num_replicas=2)))
        bench.wait_until(lambda facts: facts.state is State.RUNNING)
        fake.scenario.preempt(submission.backend_id, rank=1)
        assert bench.wait_for_end() is State.SUCCEEDED
        task = bench.facts().tasks["main"]
        end = task.attempts[1].end
        assert end is not None
        assert end.cause == "preempted"
        assert task.attempts[1].incarnation != task.attempts[2].incarnation
        assert len(task.jobs) == 1
        assert len(fake.experiments) >= 1
        self._wait_for(backend, submission.backend_id, submission.folder, JobState.GONE, bench)
        assert fake.experiment(submission.backend_id).status.name == "SUCCEEDED"

    def test_a_lost_reply_makes_one_experiment(self, fake: FakeBeaker, backend: Backend, bench: JobBench) -> None:
        before = len(fake.experiments)
        fake.scenario.lose_next_reply("CreateExperiment")
        backend.submit(bench.render(backend, bench.job("echo x >> marks")))
        assert bench.wait_for_end() is State.SUCCEEDED
        assert len(fake.experiments) == before + 1
        assert (bench.folder / "marks").read_text() == "x\n"

    def test_a_failure_is_one_for_beaker_too(self, fake: FakeBeaker, backend: Backend, bench: JobBench) -> None:
        submission = backend.submit(bench.render(backend, bench.job("exit 3", num_replicas=2)))
        assert bench.wait_for_end() is State.FAILED
        self._wait_for(backend, submission.backend_id, submission.folder, JobState.GONE, bench)
        assert fake.experiment(submission.backend_id).status.name == "FAILED"
