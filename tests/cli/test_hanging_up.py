from __future__ import annotations

import errno
import os
import pty
import signal
import threading
from pathlib import Path

from windlass.cli.sweep.running import HangUp


def test_a_write_may_fail_before_the_signal_that_says_why(tmp_path: Path) -> None:
    """The child's terminal is gone; the parent's own output stays where it is."""
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        try:
            with HangUp(tmp_path / "log") as terminal:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGHUP)).start()
                code = 0 if terminal.explains(OSError(errno.EIO, "gone")) and terminal.came else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_terminal_that_closes_without_a_signal_is_noticed(tmp_path: Path) -> None:
    """`nohup` ignores the signal, and a shell sends none to jobs that it has disowned."""
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            master, terminal_of_child = pty.openpty()
            for own in (1, 2):
                os.dup2(terminal_of_child, own)
            os.close(terminal_of_child)
            with HangUp(tmp_path / "log") as terminal:
                os.close(master)
                try:
                    os.write(1, b"lost")
                except OSError as error:
                    code = 0 if terminal.explains(error) and terminal.came else 2
                os.write(1, b"kept")
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "log").read_bytes() == b"kept"


def test_another_failure_is_not_waited_for(tmp_path: Path) -> None:
    with HangUp(tmp_path / "log") as terminal:
        assert not terminal.explains(OSError(errno.ENOSPC, "full"))
        assert not terminal.came
