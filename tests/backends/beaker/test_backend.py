"""The backend against the fake Beaker, beyond what the conformance suite asks: refusals, ends, words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.backends.beaker.dressing import fake_profile
from tests.backends.beaker.sample_jobs import job
from windlass.backends.beaker import client
from windlass.backends.beaker.backend import BeakerBackend
from windlass.backends.protocol import JobState, Observation, Rendered, Submission
from windlass.core.errors import AccessError, PreconditionError, UnreachableError
from windlass.supervise.job import TaskSettings
from windlass.testing.beaker import FakeBeaker, Status

pytestmark = pytest.mark.system


@pytest.fixture
def backend(beaker: FakeBeaker) -> BeakerBackend:
    return BeakerBackend(fake_profile(beaker))


def rendered(
    backend: BeakerBackend, tmp_path: Path, line: str, *, task: Mapping[str, Any] | None = None, **options: Any
) -> Rendered:
    """A job whose replicas execute a shell line instead of the supervisor."""
    command = {"command": ["/bin/sh", "-c", line], **(task or {})}
    ask = {"image": "beaker:me/image", "task": command, **options.pop("ask", {})}
    return backend.render(job(ask=ask, **options), tmp_path / "run" / "jobs" / "main-1", Path("/archive.pyz"))


def ended(backend: BeakerBackend, beaker: FakeBeaker, submission: Submission) -> Observation:
    beaker.wait(submission.backend_id)
    return backend.observe([submission])[submission.backend_id]


def test_a_secret_that_is_not_there_stops_the_submission(
    beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path
) -> None:
    ask = {"secrets": {"WINDLASS_FROM_BEAKER_KEY": "me_KEY"}}
    plan = rendered(backend, tmp_path, "exit 0", ask=ask)
    with pytest.raises(AccessError) as caught:
        backend.submit(plan)
    assert caught.value.message == ("workspace lab/main has no secret `me_KEY` (variable WINDLASS_FROM_BEAKER_KEY)")
    assert beaker.experiments == []
    beaker.add_secret("me_KEY", "value")
    backend.submit(plan)
    assert len(beaker.experiments) == 1


def test_the_folder_is_pushed_before_anything_is_made(beaker: FakeBeaker, tmp_path: Path) -> None:
    pushed = []

    def push(here: Path, there: object) -> None:
        assert (here / "job.json").exists()
        assert beaker.experiments == []
        pushed.append(str(there))

    backend = BeakerBackend(fake_profile(beaker), push=push)
    plan = rendered(backend, tmp_path, "exit 0")
    first = backend.submit(plan)
    assert backend.submit(plan) == first
    assert pushed == ["/weka/bucket/runs/demo-01234567/jobs/main-1"]


def test_a_note_that_is_lost_is_found_again_by_name(beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path) -> None:
    plan = rendered(backend, tmp_path, "exit 0")
    first = backend.submit(plan)
    (plan.folder / "submitted.json").unlink()
    assert backend.submit(plan) == first
    assert len(beaker.experiments) == 1


def test_a_job_that_is_rendered_in_another_way_is_the_same_job(
    beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path
) -> None:
    plan = rendered(backend, tmp_path, "exit 0")
    first = backend.submit(plan)
    (plan.folder / "submitted.json").unlink()
    assert backend.submit(rendered(backend, tmp_path, "true; exit 0")) == first
    assert len(beaker.experiments) == 1


def test_a_damaged_note_is_named(backend: BeakerBackend, tmp_path: Path) -> None:
    plan = rendered(backend, tmp_path, "exit 0")
    backend.submit(plan)
    (plan.folder / "submitted.json").write_text("{}")
    with pytest.raises(PreconditionError, match=r"submitted\.json is damaged"):
        backend.submit(plan)


def test_a_job_waits_runs_and_is_gone(beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path) -> None:
    beaker.scenario.slot_limit("no slots")
    line = f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"
    submission = backend.submit(rendered(backend, tmp_path, line))
    assert backend.observe([submission])[submission.backend_id].state is JobState.QUEUED
    beaker.scenario.slot_limit("")
    beaker.wait(submission.backend_id, Status.RUNNING)
    assert backend.observe([submission])[submission.backend_id].state is JobState.RUNNING
    (tmp_path / "go").touch()
    assert ended(backend, beaker, submission) == Observation(state=JobState.GONE, detail="succeeded")


def test_an_end_is_asked_for_once(beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path) -> None:
    submission = backend.submit(rendered(backend, tmp_path, "exit 0"))
    seen = ended(backend, beaker, submission)
    beaker.calls.clear()
    assert backend.observe([submission])[submission.backend_id] == seen
    assert not beaker.calls


@pytest.mark.parametrize(
    ("line", "cause", "detail"),
    [
        ("exit 5", "", "replica 1: failed, exit code 5"),
        ("exit 76", "setup-failed", "replica 1: failed, exit code 76"),
    ],
)
def test_the_replica_that_failed_is_named(
    beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path, line: str, cause: str, detail: str
) -> None:
    line = f"if [ $BEAKER_REPLICA_RANK = 1 ]; then {line}; fi; sleep 600"
    submission = backend.submit(rendered(backend, tmp_path, line, num_replicas=3))
    seen = ended(backend, beaker, submission)
    assert (seen.state, seen.cause) == (JobState.GONE, cause)
    assert seen.detail.startswith(detail)


def test_a_preemption_without_resume_is_one(beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path) -> None:
    beaker.scenario.preempt()
    plan = rendered(backend, tmp_path, "sleep 600", task={"context": {"autoResume": False}})
    seen = ended(backend, beaker, backend.submit(plan))
    assert (seen.state, seen.cause) == (JobState.GONE, "preempted")


def test_a_cancelled_job_is_gone(beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path) -> None:
    submission = backend.submit(rendered(backend, tmp_path, "sleep 600"))
    beaker.wait(submission.backend_id, Status.RUNNING)
    backend.cancel(submission)
    backend.cancel(submission)
    seen = backend.observe([submission])[submission.backend_id]
    assert (seen.state, seen.cause) == (JobState.GONE, "cancelled")


def test_a_replica_that_never_got_ready_is_the_cause(
    beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path
) -> None:
    beaker.scenario.never_ready(1)
    submission = backend.submit(
        rendered(backend, tmp_path, "sleep 600", num_replicas=2, settings=TaskSettings(ready_timeout_s=1.0))
    )
    seen = ended(backend, beaker, submission)
    assert (seen.state, seen.cause) == (JobState.GONE, "never-ready")


def test_while_beaker_is_away_nothing_is_known(
    beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = backend.submit(rendered(backend, tmp_path, "sleep 600"))
    beaker.scenario.expire_token()
    assert backend.observe([submission])[submission.backend_id].state is JobState.UNKNOWN
    beaker.scenario.renew_token()
    beaker.stop()
    with monkeypatch.context() as impatient:
        impatient.setattr(client, "PATIENCE_S", 0.5)
        seen = backend.observe([submission])[submission.backend_id]
        assert seen.state is JobState.UNKNOWN
        assert seen.detail.startswith("cannot connect to Beaker at ")
        with pytest.raises(UnreachableError):
            backend.explain(submission)
    beaker.start()
    backend.cancel(submission)


def test_why_it_waits_is_in_the_schedulers_words(beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path) -> None:
    beaker.scenario.slot_limit("8 of 8 slots are in use")
    submission = backend.submit(rendered(backend, tmp_path, "exit 0"))
    assert backend.explain(submission).startswith("it is not scheduled: ")
    backend.cancel(submission)


def test_an_experiment_that_was_deleted_is_gone(beaker: FakeBeaker, backend: BeakerBackend, tmp_path: Path) -> None:
    submission = Submission(backend_id="01J00000000000000000000000", locator="", folder=tmp_path)
    assert backend.observe([submission])[submission.backend_id] == Observation(
        state=JobState.GONE, detail="Beaker no longer has the experiment"
    )
    assert backend.explain(submission) == ""
    backend.cancel(submission)
