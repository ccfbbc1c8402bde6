from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import Job
from windlass import report
from windlass.core.errors import UsageError
from windlass.record import events
from windlass.report import channel, reporter


def test_public_names_are_the_documented_ones() -> None:
    assert report.__all__ == sorted(report.__all__)
    assert all(callable(getattr(report, name)) for name in report.__all__)


def test_outside_windlass_every_call_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not report.is_active()
    report.metrics({"loss": 1.0}, step=1)
    report.progress("eval")
    report.finish(1, "user-error")
    assert not report.should_stop()
    assert not report.should_checkpoint()
    assert report.latest_checkpoint() is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert list(tmp_path.iterdir()) == []


def test_place_outside_windlass_is_that_of_a_single_process() -> None:
    place = report.place()
    assert (place.run, place.rank, place.num_replicas, place.global_rank, place.world_size) == ("", 0, 1, 0, 1)
    assert (place.address, place.out, place.checkpoints, place.deadline) == (
        "127.0.0.1",
        Path("out"),
        Path("checkpoints"),
        None,
    )


def test_place_in_a_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
    }.items():
        monkeypatch.setenv(name, value)
    job.restart()
    job.control(deadline=1234.5)
    place = report.place()
    assert (place.run, place.task, place.attempt) == ("exp-abcdefgh", "train", 2)
    assert (place.rank, place.num_replicas, place.local_rank, place.global_rank, place.world_size) == (1, 4, 1, 5, 8)
    assert (place.address, place.port, place.deadline) == ("10.0.0.1", 4000, 1234.5)


def test_place_without_launcher_counts_replicas(job: Job) -> None:
    assert (report.place().global_rank, report.place().world_size) == (1, 4)


def test_metrics_reach_the_journal(job: Job) -> None:
    report.metrics({"loss": 0.5, "n": 3}, step=7)
    report.metrics({"loss": 0.25})
    first, second = job.records(events.METRICS)
    assert first.data == {"task": "train", "attempt": 2, "rank": 1, "step": 7, "values": {"loss": 0.5, "n": 3.0}}
    assert second.data["step"] == -1
    assert first.writer.startswith(f"train.1.report-{os.getpid()}-")


def test_what_json_has_no_number_for_is_text(job: Job) -> None:
    report.metrics({"a": float("nan"), "b": float("inf"), "c": float("-inf")}, step=1)
    (record,) = job.records(events.METRICS)
    assert record.data["values"] == {"a": "nan", "b": "inf", "c": "-inf"}


def test_a_metric_that_is_no_number_never_ends_training(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    reporter._complained.clear()
    report.metrics({"loss": "high"}, step=1)  # type: ignore[dict-item]
    report.metrics({"loss": "low"}, step=2)  # type: ignore[dict-item]
    assert [record.data["values"] for record in job.records(events.METRICS)] == [{"loss": "nan"}] * 2
    assert capsys.readouterr().err == "windlass: a metric of type str is not a number; recorded as nan: high\n"


def test_progress_names_its_phase(job: Job) -> None:
    report.progress(step=3)
    report.progress("save")
    assert [(r.data["phase"], r.data["step"]) for r in job.records(events.PROGRESS)] == [("step", 3), ("save", -1)]


def test_progress_says_what_the_code_waits_for(job: Job) -> None:
    report.progress(step=3, waits_for="answers from worker 2 " + "." * 300, waited_s=60.0)
    report.progress(step=4)
    waiting, going = (record.data for record in job.records(events.PROGRESS))
    assert waiting["waits_for"] == ("answers from worker 2 " + "." * 300)[:200]
    assert time.time() - 120 < waiting["since"] < time.time() - 50
    assert "waits_for" not in going


def test_an_unknown_phase_is_refused_everywhere() -> None:
    with pytest.raises(UsageError, match="unknown phase 'sav'") as caught:
        report.progress("sav")
    assert caught.value.hint == "one of init, step, eval, save, load"


def test_the_thread_writes_without_being_asked(job: Job) -> None:
    report.metrics({"loss": 1.0}, step=1)
    found = reporter.current().channel
    assert found is not None
    for _ in range(200):
        if not found._queue and list(job.journal.glob("*.wj")):
            break
        threading.Event().wait(0.01)
    assert not found._queue


def test_a_full_queue_drops_counts_and_warns_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(channel, "MAX_QUEUED", 3)
    monkeypatch.setattr(channel.Channel, "_start", lambda self: None)
    for step in range(5):
        report.metrics({"loss": 1.0}, step=step)
    found = reporter.current().channel
    assert found is not None
    assert found.num_dropped == 2
    assert len(job.records(events.METRICS)) == 3
    assert capsys.readouterr().err.count("metrics are being dropped, training continues") == 1


def test_a_journal_that_cannot_be_written_does_not_end_training(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.journal.write_text("a file where the folder should be")
    report.metrics({"loss": 1.0}, step=1)
    report.progress()
    found = reporter.current().channel
    assert found is not None
    found.flush()
    report.metrics({"loss": 1.0}, step=2)
    found.flush()
    assert found.num_dropped == 3
    assert capsys.readouterr().err.count("the journal cannot be written") == 1
    with pytest.raises(OSError):
        report.finish(1)


def test_finish_is_durable_and_after_what_was_queued(job: Job) -> None:
    report.metrics({"loss": 1.0}, step=1)
    report.finish(75, "preempted", "saved at 1")
    kinds = [(record.kind, record.data.get("code")) for record in job.records()]
    assert kinds == [(events.METRICS, None), (events.FINISH, 75)]
    assert job.records(events.FINISH)[0].data["cause"] == "preempted"


def test_an_unknown_cause_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown cause 'preempt'") as caught:
        report.finish(1, "preempt")
    assert caught.value.hint == "did you mean `preempted`?"


@pytest.mark.parametrize("cause", [None, 3, ["ok"]])
def test_a_cause_that_is_no_text_is_refused(cause: object) -> None:
    with pytest.raises(UsageError, match="unknown cause") as caught:
        report.finish(1, cause)  # type: ignore[arg-type]  # what user code may do
    assert caught.value.code == "invalid-value"


def test_a_failure_cannot_be_ok() -> None:
    with pytest.raises(UsageError, match="cause 'ok' with the code 3, which is a failure"):
        report.finish(3, "ok")
    report.finish(0, "ok")


def test_secrets_do_not_reach_the_journal(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "delivered").write_text("f1le-s3cret\n")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdef/1234")
    monkeypatch.setenv("KEY_FILE", str(tmp_path / "delivered"))
    job.set(SECRET_NAMES="HF_TOKEN,GONE", SECRET_FILES="KEY_FILE")
    report.metrics({"loss of hf_abcdef/1234": 1.0, "f1le-s3cret": 2.0, "loss": 3.0}, step=1)
    monkeypatch.delenv("HF_TOKEN")  # what the process forgets meanwhile is a secret still
    report.finish(1, "user-error", "401 for hf_abcdef%2F1234 and f1le-s3cret")
    assert job.records(events.METRICS)[-1].data["values"] == {
        "loss of [secret HF_TOKEN]": 1.0,
        "[secret KEY_FILE]": 2.0,
        "loss": 3.0,
    }
    assert job.records(events.FINISH)[-1].data["message"] == "401 for [secret HF_TOKEN] and [secret KEY_FILE]"


def test_stop_by_the_control_file(job: Job) -> None:
    assert not report.should_stop()
    job.control(stop=True, reason="walltime")
    assert report.should_stop()


def test_should_stop_says_once_that_the_code_cooperates(job: Job) -> None:
    report.should_stop()
    report.should_stop()
    assert [record.data for record in job.records(events.COOPERATES)] == [{"task": "train", "attempt": 2, "rank": 1}]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_stop_by_a_signal(job: Job, number: signal.Signals) -> None:
    assert not report.should_stop()
    os.kill(os.getpid(), number)
    assert report.should_stop()


def test_a_handler_may_report_while_its_thread_empties_the_queue(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two records of a queue, where nothing is half-written and the queue is held."""
    monkeypatch.setattr(channel, "FLUSH_EVERY_S", 600.0)
    own = reporter.current().channel
    assert own is not None
    append = own._append
    handled: list[str] = []

    def appended(kind: str, data: dict[str, Any], *, is_durable: bool) -> None:
        append(kind, data, is_durable=is_durable)
        if not handled:
            handled.append(kind)  # as the handler of a signal that comes now
            own.write(events.FINISH, task="train", attempt=2, rank=1, code=75, cause="", message="")
            own.sync()

    monkeypatch.setattr(own, "_append", appended)
    report.metrics({"a": 1.0}, step=1)
    report.metrics({"a": 2.0}, step=2)
    thread = threading.Thread(target=own.flush, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), "it waits for itself"
    assert [record.kind for record in job.records()] == [events.METRICS, events.METRICS, events.FINISH]


def test_a_handler_of_the_user_is_left_alone(job: Job) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        report.should_stop()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
        assert not report.should_stop()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_another_thread_may_ask_but_installs_nothing(job: Job) -> None:
    thread = threading.Thread(target=report.should_stop)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    report.should_stop()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_a_broken_control_file_keeps_the_last_word(job: Job) -> None:
    job.control(stop=True)
    assert report.should_stop()
    job.control_file.write_text('{"stop": fal')
    assert report.should_stop()
    job.control_file.unlink()
    assert report.should_stop()


def test_the_control_file_is_not_looked_at_more_than_every_50_ms(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("windlass.report.requests.LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("windlass.report.requests.time.monotonic", lambda: now[0])
    assert not report.should_stop()
    job.control(stop=True)
    now[0] += 0.049
    assert not report.should_stop()
    now[0] += 0.002
    assert report.should_stop()


def test_a_save_is_due_after_its_interval(job: Job, monotonic: Callable[[float], None], tmp_path: Path) -> None:
    job.set(CHECKPOINT_EVERY="600")
    assert not report.should_checkpoint()
    monotonic(599.0)
    assert not report.should_checkpoint()
    monotonic(1.0)
    assert report.should_checkpoint()
    (tmp_path / "model").write_bytes(b"weights")
    report.checkpoint(tmp_path / "model", step=1)
    assert not report.should_checkpoint()
    monotonic(600.0)
    assert report.should_checkpoint()


def test_a_save_on_request_is_answered_once(job: Job) -> None:
    assert not report.should_checkpoint()
    job.control(checkpoint=1)
    assert report.should_checkpoint()
    with report.checkpoint_dir(step=1) as folder:
        (folder / "w").write_bytes(b"1")
        job.control(checkpoint=2)  # asked while saving: this save may hold older state
    assert report.should_checkpoint()
    with report.checkpoint_dir(step=2) as folder:
        (folder / "w").write_bytes(b"2")
    assert not report.should_checkpoint()


def test_a_signal_handler_may_report_in_the_middle_of_a_write(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync

    def interrupted(descriptor: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        report.metrics({"x": 1.0}, step=1)
        report.finish(75, "preempted")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", interrupted)
    report.finish(0)
    assert sorted(record.data["code"] for record in job.records(events.FINISH)) == [0, 75]


def test_an_exception_out_of_a_signal_handler_spoils_no_later_record(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync

    def interrupted(descriptor: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdatasync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report.finish(1, "user-error", "a long message that leaves a longer line")
    report.finish(2)
    assert [(record.seq, record.data["code"]) for record in job.records()] == [(1, 1), (2, 2)]


_FORKING = """
import os, signal
from windlass import report
report.should_stop()
report.metrics({"who": 0.0}, step=0)
report.finish(0)
child = os.fork()
if child == 0:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    report.metrics({"who": 1.0}, step=1)
    report.finish(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
report.metrics({"who": 0.0}, step=2)
"""


def test_a_forked_child_has_its_own_file_and_no_handlers(job: Job) -> None:
    subprocess.run([sys.executable, "-c", _FORKING], check=True, env=dict(os.environ))
    by_writer: dict[str, list[int]] = {}
    for record in job.records(events.METRICS):
        by_writer.setdefault(record.writer, []).append(record.data["step"])
    assert sorted(by_writer.values()) == [[0, 2], [1]]
    assert len(job.records(events.FINISH)) == 2


_WORKERS = """
import multiprocessing
from windlass import report
def work(step):
    report.metrics({"x": 1.0}, step=step)
if __name__ == "__main__":
    report.metrics({"x": 1.0}, step=0)
    workers = [multiprocessing.get_context("fork").Process(target=work, args=(n,)) for n in (1, 2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
"""


def test_nothing_is_lost_when_multiprocessing_workers_end(job: Job) -> None:
    subprocess.run([sys.executable, "-c", _WORKERS], check=True, env=dict(os.environ))
    assert sorted(record.data["step"] for record in job.records(events.METRICS)) == [0, 1, 2]


def test_what_is_queued_at_exit_is_written(job: Job) -> None:
    code = "from windlass import report; report.metrics({'x': 1.0}, step=9)"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
    assert [record.data["step"] for record in job.records(events.METRICS)] == [9]
