"""The conformance suite, on the local backend and on the fake one; and the faults that only the fake can make."""

from __future__ import annotations

import pytest

from windlass.backends import Backend, JobState
from windlass.backends.local.backend import LocalBackend
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.record.state import State
from windlass.testing.conformance import BackendConformance, JobBench
from windlass.testing.fake_backend import FakeBackend

pytestmark = pytest.mark.system


class TestLocalBackend(BackendConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return LocalBackend()


class TestFake(BackendConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return FakeBackend()

    def test_a_lost_reply_makes_one_job(self, bench: JobBench) -> None:
        backend = FakeBackend()
        backend.faults.lost_replies = 2
        rendered = bench.render(backend, bench.job("echo x >> marks"))
        for _ in range(2):
            with pytest.raises(UnreachableError):
                backend.submit(rendered)
        backend.submit(rendered)
        assert bench.wait_for_end() is State.SUCCEEDED
        assert (bench.folder / "marks").read_text() == "x\n"

    def test_a_queued_job_says_why_it_waits_and_can_be_cancelled(self, bench: JobBench) -> None:
        backend = FakeBackend()
        backend.faults.is_full = True
        submission = backend.submit(bench.render(backend, bench.job("echo x >> marks")))
        assert backend.observe([submission])[submission.backend_id].state is JobState.QUEUED
        assert backend.explain(submission) == "the fake scheduler has no room"
        backend.cancel(submission)
        assert backend.schedule() == 0
        assert backend.observe([submission])[submission.backend_id].state is JobState.GONE

    def test_what_it_cannot_see_is_unknown(self, bench: JobBench) -> None:
        backend = FakeBackend()
        submission = backend.submit(bench.render(backend, bench.job("true")))
        backend.faults.is_hidden = True
        assert backend.observe([submission])[submission.backend_id].state is JobState.UNKNOWN
        assert bench.wait_for_end() is State.SUCCEEDED

    def test_a_refusal_is_final(self, bench: JobBench) -> None:
        backend = FakeBackend()
        backend.faults.refusal = "no such partition"
        with pytest.raises(PreconditionError, match="no such partition"):
            backend.submit(bench.render(backend, bench.job("true")))
