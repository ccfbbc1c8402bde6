"""Classification of how a process ended, based on its exit code, its own report, and the state of its node."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from windlass.core.dataclass import dataclass
from windlass.record.causes import EXIT_DO_NOT_RETRY, EXIT_RESUMABLE, Cause, cause_of
from windlass.record.state import End

__all__ = ["Evidence", "classify", "find_traceback"]

# Patterns as text: compiled only after a process has failed, not at each start.
_MEMORY_SIGNS = r"MemoryError|OutOfMemoryError|CUDA out of memory|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator: not enough memory"
_KILL_SIGNS = r"SIGKILL|[Ss]ignal 9\b|exitcode\s*:\s*-9|\bKilled\b"
_DISK_SIGNS = r"No space left on device|Disk quota exceeded|\[Errno 28\]|\[Errno 122\]"
_NETWORK_SIGNS = r"ncclRemoteError|ncclSystemError|Connection reset by peer|Connection closed by peer|EHOSTUNREACH"
_TORCHRUN_ROOT = re.compile(r"Root Cause.*?exitcode\s*: (-?\d+)", re.DOTALL)
_OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_NUM_TAIL_LINES = 20


_ERROR_LINE = r"\s*(?:\[[^\]]*\]:?\s*)?(?:[\w.]*(?:Error|Exception)|(?i:error|fatal))\s*:\s*\S"
"""`ValueError: ...`, `error: ...`, also after a prefix in brackets, as torchrun writes it."""


@dataclass(frozen=True)
class Evidence:
    """Facts about the end of a process that its exit code does not show.

    Attributes:
        stop_cause: why windlass was stopping the process; empty if it was not.
        finish: what the code reported with `report.finish`: (code, cause, message).
        was_out_of_memory: whether the kernel killed a process of this control group for lack of memory meanwhile.
        memory_note: message if windlass's memory limit ended it; empty otherwise.
        was_disk_full: whether the log or the journal hit a full disk, or the code's folder has no space.
        lines: the last lines it printed, redacted.
    """

    stop_cause: str = ""
    fenced: str = ""
    finish: tuple[int, str, str] | None = None
    was_out_of_memory: bool = False
    memory_note: str = ""
    was_disk_full: bool = False
    lines: tuple[str, ...] = ()


def classify(code: int, evidence: Evidence, *, rank: int, host: str, at: float) -> End:
    """Classify how a process ended; `code` is negative for a signal.

    The code's report outranks the exit code, since launchers turn every code into 1. But a code other than 0 is never a
    success, and a process that windlass was stopping ends with the cause of the stop.
    """
    tail = evidence.lines[-_NUM_TAIL_LINES:]
    if evidence.fenced and code == -signal.SIGKILL and not evidence.stop_cause:
        return End(str(Cause.NODE_LOST), code, rank, host, evidence.fenced, tail, at=at)
    report = _read_report(evidence.finish)
    if report is not None and report[0] != 0 and code in (0, 1):
        code = report[0]
    elif code == 1:
        code = _code_in_report(evidence.lines)
    cause, message = _cause(code, evidence)
    if report is not None and cause is not Cause.OK:
        message = report[2] or message
        if report[1] not in ("", Cause.OK):
            cause = Cause(report[1])
    if evidence.stop_cause and cause is not Cause.OK:
        cause = cause_of(evidence.stop_cause)
    if cause is Cause.OK:
        return End(str(cause), code, rank, host, at=at)
    return End(str(cause), code, rank, host, message, tail, find_traceback(evidence.lines), at)


def _read_report(report: tuple[int, str, str] | None) -> tuple[int, str, str] | None:
    """Parse the report by the user's code.

    An unknown cause becomes an ordinary failure with its text in the message.
    """
    if report is None or not isinstance(report[0], int):
        return None
    code, cause, message = report[0], str(report[1] or ""), str(report[2] or "")
    if not cause or cause in Cause._value2member_map_:
        return code, cause, message
    return code, str(Cause.USER_ERROR), f"{cause}: {message}" if message else cause


def _cause(code: int, evidence: Evidence) -> tuple[Cause, str]:
    text = "\n".join(evidence.lines[-_NUM_TAIL_LINES * 2 :])
    if code == 0:
        return Cause.OK, ""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if evidence.memory_note:
        return Cause.OUT_OF_MEMORY, evidence.memory_note
    if evidence.was_out_of_memory and (number == signal.SIGKILL or re.search(_KILL_SIGNS, text)):
        return Cause.OUT_OF_MEMORY, "the kernel killed one of its processes for lack of memory"
    if code == EXIT_RESUMABLE:
        return Cause.PREEMPTED, "stopped, and can resume (exit code 75)"
    if code == EXIT_DO_NOT_RETRY:
        return Cause.DO_NOT_RETRY, "requested no retry (exit code 93)"
    if evidence.was_disk_full or re.search(_DISK_SIGNS, text):
        return Cause.DISK_FULL, _line_with(_DISK_SIGNS, text) or "no space left on device"
    if re.search(_MEMORY_SIGNS, text):
        return Cause.OUT_OF_MEMORY, _line_with(_MEMORY_SIGNS, text)
    if number in signal.Signals.__members__.values():
        name = signal.Signals(number).name
        outside = number in _OUTSIDE_SIGNALS
        return (Cause.KILLED if outside else Cause.USER_ERROR), f"ended by {name}"
    if re.search(_NETWORK_SIGNS, text):
        return Cause.NETWORK, _line_with(_NETWORK_SIGNS, text)
    line = _error_line(evidence.lines)
    return Cause.USER_ERROR, f"exit code {code}" + (f": {line.strip()[:200]}" if line else "")


def _error_line(lines: Sequence[str]) -> str:
    """Return the line that names the error: from the last traceback, else `SomeError: ...`, else the last line."""
    traceback = find_traceback(lines)
    if traceback:
        return traceback.rpartition("\n")[2]
    errors = [line for line in lines if re.match(_ERROR_LINE, line)]
    return errors[-1] if errors else next((line for line in reversed(lines) if line.strip()), "")


def _code_in_report(lines: Sequence[str]) -> int:
    """Return the exit code of the rank that failed first, from torchrun's table; torchrun itself exits with code 1.

    Source: torch.distributed.elastic.multiprocessing.errors, ChildFailedError.
    """
    found = _TORCHRUN_ROOT.search("\n".join(lines))
    return int(found.group(1)) or 1 if found else 1


def _line_with(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        return ""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return text[start : end if end >= 0 else len(text)].strip()[:200]


def find_traceback(lines: Sequence[str]) -> str:
    """Return the last Python traceback, from its header to the line that names the exception."""
    start = next((n for n in range(len(lines) - 1, -1, -1) if "Traceback (most recent call last)" in lines[n]), None)
    if start is None:
        return ""
    found: list[str] = [lines[start]]
    indent = len(lines[start]) - len(lines[start].lstrip())
    for line in lines[start + 1 :]:
        found.append(line)
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
    return "\n".join(found)
