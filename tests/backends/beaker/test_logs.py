"""Logs over cut connections: no line is lost, none is told twice, whatever their moments are."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest

from tests.backends.beaker.sample_jobs import plain_spec
from windlass.backends.beaker import client, following
from windlass.backends.beaker.following import BeakerLogFile, follow_all, keep_all, log_name
from windlass.backends.beaker.service import BeakerService
from windlass.backends.beaker.values import BeakerJob, BeakerLogLine
from windlass.core.errors import NotFoundError, UnreachableError
from windlass.testing.beaker import FakeBeaker, Status


def line(at_ns: int, text: str) -> BeakerLogLine:
    return BeakerLogLine(at_ns=at_ns, message=text.encode())


@pytest.mark.parametrize(
    ("task", "name"),
    [("main", "main-2.1.log"), ("", "task-01J-2.1.log"), ("../../up", "..-..-up-2.1.log"), ("a b/c", "a-b-c-2.1.log")],
)
def test_the_name_of_a_log_stays_in_its_folder(task: str, name: str) -> None:
    assert log_name(BeakerJob(id="j", task=task, task_id="01J", rank=2, size=3, attempt=1, status="running")) == name


def test_a_log_file_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "main-0.1.log"
    file = BeakerLogFile(path)
    for one in (line(1, "a"), line(2, "b"), line(2, "c\n")):
        file.add(one)
    file.close()
    assert path.read_text() == "a\nb\nc\n"
    again = BeakerLogFile(path)
    assert again.position == (2, 2)
    again.add(line(2, "d"))
    again.close()
    assert BeakerLogFile(path).position == (2, 3)
    assert path.read_text() == "a\nb\nc\nd\n"


def test_what_was_written_behind_the_note_is_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "main-0.1.log"
    file = BeakerLogFile(path)
    file.add(line(1, "a"))
    file.close()
    with path.open("a") as torn:
        torn.write("half of a li")
    assert BeakerLogFile(path).position == (1, 1)
    assert path.read_text() == "a\n"


def test_a_log_that_was_cut_short_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "main-0.1.log"
    file = BeakerLogFile(path)
    file.add(line(1, "abc"))
    file.close()
    path.write_text("a")
    assert BeakerLogFile(path).position == (0, 0)
    assert path.read_text() == ""


@pytest.mark.system
class TestFollowing:
    def test_a_log_that_is_over_is_read_whole(self, beaker: FakeBeaker, service: BeakerService) -> None:
        made = service.create(plain_spec("for i in 1 2 3 4 5; do echo $i; done"))
        beaker.wait(made.id)
        (job,) = service.jobs(made.id)
        lines = list(service.logs(job.id))
        assert _text(lines) == "12345"
        assert _text(service.logs(job.id, tail=2)) == "45"
        for number, one in enumerate(lines, start=1):
            same = [other for other in lines[:number] if other.at_ns == one.at_ns]
            rest = service.logs(job.id, since_ns=one.at_ns, num_known=len(same))
            assert _text(rest) == "12345"[number:]

    def test_following_ends_with_the_job(self, beaker: FakeBeaker, service: BeakerService) -> None:
        made = service.create(plain_spec("for i in 1 2 3; do echo $i; sleep 0.1; done"))
        beaker.wait(made.id, Status.RUNNING, Status.SUCCEEDED)
        (job,) = service.jobs(made.id)
        assert _text(service.logs(job.id, follow=True)) == "123"

    def test_following_goes_on_over_a_server_that_is_started_anew(
        self, beaker: FakeBeaker, service: BeakerService
    ) -> None:
        made = service.create(plain_spec("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.15; done"))
        beaker.wait_for_line(made.id, "1")
        (job,) = service.jobs(made.id)
        text = ""
        for one in service.logs(job.id, follow=True):
            text += one.message.decode().strip()
            if text == "12":
                beaker.stop()
                threading.Timer(0.3, beaker.start).start()
        assert text == "123456789"

    def test_a_cut_stream_of_lines_of_one_moment_loses_none(
        self, beaker: FakeBeaker, service: BeakerService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = service.create(plain_spec("for i in 1 2 3 4 5 6; do echo $i; done"))
        beaker.wait(made.id)
        (job,) = service.jobs(made.id)
        with service.asking("cutting streams") as client:
            genuine = client.service.StreamJobLogs
            monkeypatch.setattr(client.service, "StreamJobLogs", _Cutting(genuine), raising=False)
        assert _text(service.logs(job.id)) == "123456"

    def test_every_attempt_of_every_replica_is_followed(
        self, beaker: FakeBeaker, service: BeakerService, tmp_path: Path
    ) -> None:
        """Rank 1 is preempted once rank 0 has printed as well; who is started again lives until both were told."""
        line = (
            f"cd {tmp_path}; rank=$BEAKER_REPLICA_RANK; [ $rank = 0 ] || until [ -e printed0 ]; do sleep 0.02; done; "
            "echo at $rank; touch printed$rank; until [ -e told ]; do sleep 0.02; done"
        )
        beaker.scenario.preempt("followed", rank=1, after="at 1")
        made = service.create(plain_spec(line, replicas=2, propagatePreemption=True), name="followed")
        told: list[tuple[int, int, str]] = []

        def tell(job: BeakerJob, one: BeakerLogLine) -> None:
            told.append((job.rank, job.attempt, one.message.decode().strip()))
            if {(0, 2, "at 0"), (1, 2, "at 1")} <= {*told}:
                (tmp_path / "told").touch()

        follow_all(service, made.id, tell, follow=True, look_s=0.05)
        assert sorted(told) == [(0, 1, "at 0"), (0, 2, "at 0"), (1, 1, "at 1"), (1, 2, "at 1")]

    def test_following_survives_an_outage(
        self, beaker: FakeBeaker, service: BeakerService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "PATIENCE_S", 0.1)
        made = service.create(plain_spec("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.2; done"))
        beaker.wait_for_line(made.id, "1")
        told: list[str] = []

        def tell(job: BeakerJob, one: BeakerLogLine) -> None:
            told.append(one.message.decode().strip())
            if told == ["1", "2"]:
                beaker.stop()
                threading.Timer(2.5, beaker.start).start()

        follow_all(service, made.id, tell, follow=True, look_s=0.2)
        assert "".join(told) == "123456789"

    def test_following_ends_when_beaker_stays_away(
        self, beaker: FakeBeaker, service: BeakerService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = service.create(plain_spec("sleep 600"))
        beaker.wait(made.id, Status.RUNNING)
        beaker.stop()
        with monkeypatch.context() as short:
            short.setattr(client, "PATIENCE_S", 0.1)
            short.setattr(following, "PATIENCE_S", 0.5)
            with pytest.raises(UnreachableError):
                follow_all(service, made.id, lambda job, line: None, follow=True, look_s=0.2)
        beaker.start()
        service.cancel(made.id)

    def test_logs_are_kept_and_added_to(self, beaker: FakeBeaker, service: BeakerService, tmp_path: Path) -> None:
        made = service.create(plain_spec(f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.02; done; echo two"))
        beaker.wait_for_line(made.id, "one")
        (path,) = keep_all(service, made.id, tmp_path / "logs")
        assert (path.name, path.read_text()) == ("main-0.1.log", "one\n")
        (tmp_path / "go").touch()
        beaker.wait(made.id)
        for _ in range(2):
            keep_all(service, made.id, tmp_path / "logs")
            assert path.read_text() == "one\ntwo\n"

    def test_a_job_that_is_not_there_is_named(self, service: BeakerService) -> None:
        with pytest.raises(NotFoundError) as caught:
            list(service.logs("01J00000000000000000000000"))
        assert caught.value.code == "beaker-not-found"


class _Cutting:
    """Streams that are cut after two lines more than the one before; all lines have one moment, the hard case."""

    def __init__(self, genuine: object) -> None:
        self._genuine = genuine
        self._num_streams = 0

    def __call__(self, request: object, **options: object) -> object:
        assert callable(self._genuine)
        self._num_streams += 1
        return _Cut(self._genuine(request, **options), 2 * self._num_streams)


class _Cut:
    def __init__(self, stream: Any, num_lines: int) -> None:
        self._stream = stream
        self._num_left = num_lines

    def __next__(self) -> object:
        if not self._num_left:
            raise _SocketClosed
        message = next(self._stream)
        message.timestamp.FromNanoseconds(10**18)
        self._num_left -= 1
        return message

    def cancel(self) -> None:
        self._stream.cancel()


class _SocketClosed(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """What grpc raises when the server goes away in the middle."""

    __abstractmethods__ = frozenset[str]()

    def code(self) -> object:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "Socket closed"


def _text(lines: object) -> str:
    return "".join(one.message.decode().strip() for one in lines)  # type: ignore[attr-defined]
