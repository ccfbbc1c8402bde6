"""What the local backend makes of jobs it cannot judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.backends import JobState, Submission
from windlass.backends.local.backend import LocalBackend
from windlass.core.errors import UnreachableError
from windlass.core.process import process_world

DEAD = "4194000:1:00000000"


def make_job(folder: Path, **where: str) -> Submission:
    (folder / "submitted.json").write_text(json.dumps({"guard": DEAD, "where": {**process_world(), **where}}))
    return Submission(backend_id=DEAD, locator="local://", folder=folder)


def state_of(job: Submission) -> JobState:
    return LocalBackend().observe([job])[job.backend_id].state


def test_a_dead_job_of_this_machine_is_gone(tmp_path: Path) -> None:
    assert state_of(make_job(tmp_path)) is JobState.GONE


def test_a_job_from_before_a_reboot_is_gone(tmp_path: Path) -> None:
    assert state_of(make_job(tmp_path, boot="another", namespace="pid:[1]")) is JobState.GONE


@pytest.mark.parametrize("where", [{"machine": "other"}, {"namespace": "pid:[1]"}])
def test_a_job_of_another_machine_or_container_is_unknown_and_left_alone(tmp_path: Path, where: dict[str, str]) -> None:
    job = make_job(tmp_path, **where)
    assert state_of(job) is JobState.UNKNOWN
    with pytest.raises(UnreachableError, match="another machine or in another container") as caught:
        LocalBackend().cancel(job)
    assert caught.value.code == "other-machine"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"guard": "x"}'])
def test_a_damaged_guard_file_makes_a_job_unknown(tmp_path: Path, content: str) -> None:
    job = make_job(tmp_path)
    (tmp_path / "guard-0.json").write_text(content)
    assert state_of(job) is JobState.UNKNOWN
