"""What the end of a worker process means for its trial.

Killed from outside (SIGKILL, SIGTERM, SIGHUP, SIGINT and the like): the trial is LOST, and goes on elsewhere. Ended by
its own doing (`os._exit`, a segmentation fault, an abort): it has FAILED, for it would do the same again.
"""

from __future__ import annotations

import os
import signal

from windlass.tune.executors.protocol import AttemptOutcome

__all__ = ["explain"]

_OWN_DOING = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGABRT: "an abort",
    signal.SIGBUS: "a bus error",
    signal.SIGFPE: "an arithmetic fault",
    signal.SIGILL: "an illegal instruction",
    signal.SIGSYS: "a forbidden system call",
}


def explain(status: int, *, is_oom: bool = False) -> tuple[AttemptOutcome, str, str]:
    """(how the attempt ended, in words, the kind of error where it is its own).

    Args:
        status: as wait(2) gives it.
        is_oom: the kernel has killed for want of memory just then.
    """
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        return AttemptOutcome.FAILED, f"the trial ended its process by itself, with exit code {code}", "ProcessExit"
    number = os.WTERMSIG(status)
    try:
        known = signal.Signals(number)
    except ValueError:
        return AttemptOutcome.LOST, f"the worker was killed by signal {number}", ""
    if known in _OWN_DOING:
        return AttemptOutcome.FAILED, f"the trial crashed with {_OWN_DOING[known]} ({known.name})", known.name
    if known is signal.SIGKILL and is_oom:
        return AttemptOutcome.LOST, "the worker was killed by the kernel: out of memory (SIGKILL)", ""
    return AttemptOutcome.LOST, f"the worker was killed by {known.name}", ""
