"""What the local executor does besides what every executor must: processes, imports, logs, hangs, reuse."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from windlass.core.errors import UsageError
from windlass.testing.executor_conformance import ExecutorBench
from windlass.testing.sample_trainables import act, show_environment
from windlass.tune.executors.local import Local
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptStarted,
    CanReattach,
    Work,
)
from windlass.tune.trainable.session import get_context, report
from windlass.tune.trial import Resources

pytestmark = pytest.mark.system


@contextmanager
def local(folder: Path, trainable: Any = act, **fields: Any) -> Iterator[ExecutorBench]:
    folder.mkdir(exist_ok=True)
    work = Work(trainable=trainable, name="s", folder=str(folder), storage=f"{folder}/c", **{"num_slots": 2, **fields})
    executor = Local()
    try:
        executor.open(work)
        yield ExecutorBench(executor, work)
    finally:
        executor.close()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def prints(config: dict[str, Any]) -> None:
    if config.get("prints"):
        print(config["prints"])  # noqa: T201
    if config.get("shouts"):
        os.system("echo from a child >&2")
    report({"value": 1})
    if config.get("dies"):
        print("last words")  # noqa: T201
        os.kill(os.getpid(), 9)
    while config.get("hangs"):
        wait_for_ever()


def wait_for_ever() -> None:
    time.sleep(0.05)


def test_a_worker_takes_the_next_trial_unless_it_must_not(tmp_path: Path) -> None:
    for reuse, num_workers in (("auto", 1), ("never", 3)):
        with local(tmp_path / reuse, show_environment, reuse=reuse, num_slots=1) as bench:
            pids = set()
            for trial in ("00000", "00001", "00002"):
                bench.start(trial)
                assert bench.finish(trial).how is AttemptOutcome.DONE
                pids.add(bench.of(AttemptStarted, trial)[0].pid)
                assert bench.of(AttemptReported, trial)[0].metrics["pid"] == bench.of(AttemptStarted, trial)[0].pid
            assert len(pids) == num_workers


def test_trials_run_in_the_main_thread_of_a_process_of_its_own_group(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        import signal
        import threading

        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # raises elsewhere
        is_main = threading.current_thread() is threading.main_thread()
        report({"is_main": is_main, "leads": os.getpgrp() == os.getpid(), "id": get_context().get_trial_id()})

    with local(tmp_path, trial) as bench:
        bench.start("00000")
        bench.finish("00000")
        metrics = bench.of(AttemptReported, "00000")[0].metrics
        assert (metrics["is_main"], metrics["leads"], metrics["id"]) == (True, True, "00000")


def test_logs_are_made_only_for_trials_that_print(tmp_path: Path) -> None:
    with local(tmp_path, prints, num_slots=1) as bench:
        bench.start("00000")
        bench.finish("00000")
        bench.start("00001", config={"prints": "hello", "shouts": True})
        bench.finish("00001")
        bench.start("00001", attempt=2, config={"prints": "again"})
        bench.finish("00001", 2)
        bench.start("00002", config={"dies": True})
        bench.finish("00002")
    assert files(tmp_path) == ["trials/00001/log", "trials/00002/log"]
    assert (tmp_path / "trials/00001/log").read_text() == "hello\nfrom a child\nagain\n"
    assert (tmp_path / "trials/00002/log").read_text() == "last words\n"


def test_logs_have_the_names_that_were_asked_for_and_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with local(tmp_path, prints, options={"log_to_file": True, "shows_output": True}) as bench:
        bench.start("00000", config={"prints": "hello", "shouts": True})
        bench.finish("00000")
    assert files(tmp_path) == ["trials/00000/stderr", "trials/00000/stdout"]
    assert sorted(capsys.readouterr().err.splitlines()) == ["(00000) from a child", "(00000) hello"]


def test_a_trial_that_hangs_is_noted_with_its_stack(tmp_path: Path) -> None:
    with local(tmp_path, prints, options={"quiet_floor_s": 0.2}) as bench:
        bench.start("00000", config={"hangs": True}, credit=5)
        bench.wait_for(AttemptReported, "00000")
        notes: list[tuple[str, str]] = []
        deadline = time.monotonic() + 300
        while not notes and time.monotonic() < deadline:
            bench.look(0.1)
            notes = bench.executor.notes()  # type: ignore[attr-defined]
        ((trial, text),) = notes
        assert trial == "00000"
        assert text.startswith("no report for ")
        assert "wait_for_ever" in text


def test_a_trial_that_does_not_answer_a_halt_is_killed(tmp_path: Path) -> None:
    with local(tmp_path, prints, options={"halt_grace_s": 0.2}) as bench:
        bench.start("00000", config={"hangs": True}, credit=5)
        bench.wait_for(AttemptReported, "00000")
        bench.halt("00000")
        assert bench.wait_for(AttemptEnded, "00000").how is AttemptOutcome.HALTED
        bench.start("00001")
        assert bench.finish("00001").how is AttemptOutcome.DONE


def test_what_a_lost_worker_had_started_ends_with_it(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        import subprocess

        for is_far in (False, True):
            child = subprocess.Popen(["sleep", "1000"], start_new_session=is_far)
            report({"child": child.pid})
        os.kill(os.getpid(), 9)

    with local(tmp_path, trial) as bench:
        bench.start("00000", credit=5)
        assert bench.finish("00000").how is AttemptOutcome.LOST
        children = [found.metrics["child"] for found in bench.of(AttemptReported, "00000")]
        assert len(children) == 2
        for child in children:
            deadline = time.monotonic() + 300
            while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not os.path.exists(f"/proc/{child}")


def module(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = f"made_{folder.name}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    found = __import__(name)
    monkeypatch.delitem(sys.modules, name)
    sys.modules[name] = found
    return found


def test_a_module_that_fails_in_a_fresh_process_is_refused_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"import os\nif os.getpid() != {os.getpid()}: 1 // 0\ndef trial(config): pass\n"
    found = module(tmp_path, text, monkeypatch)
    with pytest.raises(UsageError) as refused, local(tmp_path / "s", found.trial):
        pass
    assert refused.value.code == "user-code-failed"
    assert "ZeroDivisionError" in refused.value.message


def test_preload_is_imported_before_the_first_trial(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        import sys

        report({"is_there": "wave" in sys.modules or "colorsys" in sys.modules})

    for preload in (["colorsys"], []):
        with local(tmp_path / str(len(preload)), trial, preload=preload) as bench:
            bench.start("00000")
            bench.finish("00000")
            assert bench.of(AttemptReported, "00000")[0].metrics["is_there"] is bool(preload)


def test_modules_that_start_threads_are_imported_in_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "from windlass.tune import report\n"
        "def trial(config): report({'num_threads': threading.active_count()})\n"
    )
    found = module(tmp_path, text, monkeypatch)
    with local(tmp_path / "s", found.trial) as bench:
        bench.start("00000")
        assert bench.finish("00000").how is AttemptOutcome.DONE
        assert bench.of(AttemptReported, "00000")[0].metrics["num_threads"] == 2


def test_workers_do_not_share_random_numbers(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        import random

        import numpy as np

        report({"own": random.random(), "numpy": float(np.random.rand())})

    with local(tmp_path, trial, preload=["numpy"], reuse="never") as bench:
        seen = set()
        for trial_id in ("00000", "00001"):
            bench.start(trial_id)
            bench.finish(trial_id)
            metrics = bench.of(AttemptReported, trial_id)[0].metrics
            seen |= {metrics["own"], metrics["numpy"]}
        assert len(seen) == 4


def test_folders_with_long_names_do(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    with local(deep, options={"detach": True}) as bench:
        bench.start("00000", config={"num": 1})
        assert bench.finish("00000").how is AttemptOutcome.DONE


def test_big_configurations_travel(tmp_path: Path) -> None:
    with local(tmp_path) as bench:
        config = {"num": 1, "echo": {"text": "x" * 5_000_000}}
        for trial in ("00000", "00001"):
            bench.start(trial, config=config)
        for trial in ("00000", "00001"):
            bench.finish(trial)
            assert len(bench.of(AttemptReported, trial)[0].metrics["echo/text"]) == 5_000_000


def test_closing_what_was_never_opened_does_no_harm() -> None:
    executor = Local()
    executor.close()
    executor.close()


def test_a_worker_has_as_many_threads_as_its_trial_has_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with local(tmp_path, show_environment, options={"resources": {"CPU": 8}}) as bench:
        pids = {}
        for trial, num_cpus in (("00000", 1.0), ("00001", 3.0), ("00002", 1.0), ("00003", 5.0)):
            bench.start(trial, resources=Resources(bundles=({"CPU": num_cpus},)))
            bench.finish(trial)
            assert bench.of(AttemptReported, trial)[0].metrics["OMP_NUM_THREADS"] == str(int(num_cpus))
            pids[trial] = bench.of(AttemptStarted, trial)[0].pid
        assert pids["00000"] == pids["00002"] != pids["00001"]
        bench.look(0.2)
        assert len(bench.executor._slots) <= 2 + 1  # type: ignore[attr-defined]  # idle ones of other shapes go


def test_the_next_trial_begins_in_the_same_folder(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        report({"folder": os.getcwd()})
        os.chdir("/")

    with local(tmp_path, trial, num_slots=1) as bench:
        for trial_id in ("00000", "00001"):
            bench.start(trial_id)
            bench.finish(trial_id)
            assert bench.of(AttemptReported, trial_id)[0].metrics["folder"] == os.getcwd()


def test_who_reads_the_output_of_a_killed_detached_head_waits_no_longer(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.tune.executors.local.head_program",
            str(tmp_path),
            '{"detach": true}',
            '{"num": 400, "by": 1, "seconds": 0.01}',
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert program.stdout is not None
    program.stdout.readline()
    program.kill()
    assert program.stdout.read() == b""  # would block as long as any process holds it
    program.wait()
    with local(tmp_path, options={"detach": True}) as bench:
        assert cast("CanReattach", bench.executor).reattach({}) == {}
