from __future__ import annotations

import pytest

from windlass.record.causes import Cause
from windlass.record.state import End
from windlass.supervise.replica.classify import Evidence, classify, find_traceback

TRACEBACK = (
    "epoch 3",
    "Traceback (most recent call last):",
    '  File "train.py", line 7, in <module>',
    "    main()",
    "ValueError: lr must be positive",
)


def end_of(code: int, *lines: str, **evidence: object) -> End:
    return classify(code, Evidence(lines=lines, **evidence), rank=1, host="node1", at=5.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "lines", "cause", "message"),
    [
        (0, (), Cause.OK, ""),
        (1, ("oops",), Cause.USER_ERROR, "exit code 1: oops"),
        (3, (), Cause.USER_ERROR, "exit code 3"),
        (
            2,
            ("Error: no such file: x.csv", "closing 3 workers", ""),
            Cause.USER_ERROR,
            "exit code 2: Error: no such file: x.csv",
        ),
        (1, ("train.py: error: unknown option", "bye"), Cause.USER_ERROR, "exit code 1: bye"),
        (1, (*TRACEBACK, "wandb: run finished"), Cause.USER_ERROR, "exit code 1: ValueError: lr must be positive"),
        (75, (), Cause.PREEMPTED, "stopped, and can resume (exit code 75)"),
        (93, (), Cause.DO_NOT_RETRY, "requested no retry (exit code 93)"),
        (-9, (), Cause.KILLED, "ended by SIGKILL"),
        (137, (), Cause.KILLED, "ended by SIGKILL"),
        (-15, (), Cause.KILLED, "ended by SIGTERM"),
        (-11, (), Cause.USER_ERROR, "ended by SIGSEGV"),
        (134, (), Cause.USER_ERROR, "ended by SIGABRT"),
        (
            1,
            ("OSError: [Errno 28] No space left on device",),
            Cause.DISK_FULL,
            "OSError: [Errno 28] No space left on device",
        ),
        (
            1,
            ("torch.OutOfMemoryError: CUDA out of memory.",),
            Cause.OUT_OF_MEMORY,
            "torch.OutOfMemoryError: CUDA out of memory.",
        ),
        (1, ("ncclRemoteError: peer gone",), Cause.NETWORK, "ncclRemoteError: peer gone"),
    ],
)
def test_causes_by_code_and_last_lines(code: int, lines: tuple[str, ...], cause: Cause, message: str) -> None:
    end = end_of(code, *lines)
    assert (end.cause, end.message, end.code) == (cause, message, code)


def test_success_says_nothing_of_the_log() -> None:
    assert end_of(0, "No space left on device") == End("ok", 0, 1, "node1", at=5.0)


def test_what_the_code_said_outranks_a_launchers_code() -> None:
    end = end_of(1, finish=(75, "", "saved at step 40"))
    assert (end.cause, end.code, end.message) == (Cause.PREEMPTED, 75, "saved at step 40")
    assert end_of(1, finish=(1, "data-failed", "shard 3 is empty")).cause == Cause.DATA_FAILED


def test_nothing_turns_a_failure_into_success() -> None:
    assert end_of(1, finish=(0, "ok", "")).cause != Cause.PREEMPTED
    assert end_of(2, finish=(0, "", "")).cause == Cause.USER_ERROR


def test_a_code_that_was_said_counts_although_the_process_left_with_0() -> None:
    end = end_of(0, finish=(75, "", "saved at step 40"))
    assert (end.cause, end.code, end.message) == (Cause.PREEMPTED, 75, "saved at step 40")
    assert end_of(0, finish=(93, "", "")).cause == Cause.DO_NOT_RETRY
    assert end_of(0, finish=(0, "", "")).cause == Cause.OK
    assert end_of(1, finish=(0, "", "")).cause == Cause.USER_ERROR
    assert end_of(-9, finish=(75, "", "")).cause == Cause.KILLED


def test_a_process_that_was_being_stopped_ends_by_the_cause_of_the_stop() -> None:
    assert end_of(-15, stop_cause="cancelled").cause == Cause.CANCELLED
    assert end_of(1, stop_cause="sibling-failed").cause == Cause.SIBLING_FAILED
    assert end_of(0, stop_cause="cancelled").cause == Cause.OK


def test_a_limit_of_ours_is_named_with_its_numbers() -> None:
    end = end_of(-9, was_out_of_memory=True, memory_note="used 2 GiB, the limit is 1 GiB")
    assert (end.cause, end.message) == (Cause.OUT_OF_MEMORY, "used 2 GiB, the limit is 1 GiB")


def test_a_full_disk_is_named_without_a_line_about_it() -> None:
    assert end_of(1, was_disk_full=True).message == "no space left on device"


def test_the_end_carries_the_traceback_and_the_last_lines() -> None:
    end = end_of(1, *TRACEBACK)
    assert end.traceback == "\n".join(TRACEBACK[1:])
    assert end.tail == TRACEBACK
    assert end.message == "exit code 1: ValueError: lr must be positive"


def test_the_last_of_several_tracebacks_is_found() -> None:
    first = ("Traceback (most recent call last):", "  File", "KeyError: 1", "During handling", *TRACEBACK[1:], "bye")
    assert find_traceback(first) == "\n".join(TRACEBACK[1:])
    assert find_traceback(("no", "such", "thing")) == ""


@pytest.mark.parametrize(
    ("code", "finish", "cause", "message"),
    [
        (1, (1, "on-the-moon", "dust"), "user-error", "on-the-moon: dust"),
        (1, (1, "on-the-moon", ""), "user-error", "on-the-moon"),
        (1, (1, "None", "dust"), "user-error", "None: dust"),
        (1, (1, "ok", "fine"), "user-error", "fine"),
        (3, (0, "ok", ""), "user-error", "exit code 3"),
        (-9, (0, "ok", ""), "killed", "ended by SIGKILL"),
        (1, ("1", "preempted", ""), "user-error", "exit code 1"),
        (1, (None, None, None), "user-error", "exit code 1"),
        (1, (75, None, None), "preempted", "stopped, and can resume (exit code 75)"),
    ],
)
def test_no_word_of_the_code_breaks_it_or_makes_a_success(
    code: int, finish: tuple[object, object, object], cause: str, message: str
) -> None:
    end = end_of(code, finish=finish)
    assert (end.cause, end.message) == (cause, message)


def test_a_stop_for_a_cause_of_a_later_version() -> None:
    assert end_of(-15, stop_cause="on-the-moon").cause == "unknown"
