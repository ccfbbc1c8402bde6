"""Start of the user's process behind a gate: nothing is executed before the start is recorded on disk."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence

from windlass.core.dataclass import dataclass
from windlass.core.process import identify

__all__ = ["Child", "spawn"]

_RESET = ("SIGPIPE", "SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGCHLD")


@dataclass
class Child:
    """Forked process that waits until `open_gate` lets it execute."""

    pid: int
    process: str
    _gate: int
    _errors: int

    def open_gate(self) -> str:
        """Let the process execute its command.

        Returns:
            An empty string, or why the command could not be executed. Blocks until exec, some milliseconds.
        """
        os.write(self._gate, b"1")
        os.close(self._gate)
        with open(self._errors, "rb") as file:
            return file.read().decode(errors="replace")


def spawn(argv: Sequence[str], env: Mapping[str, str], cwd: str, output: int) -> Child:
    """Fork a child that becomes a session leader, takes `output` as stdout and stderr, and waits for its gate.

    If the gate closes unopened (the supervisor died), the child ends without executing anything.
    """
    gate_read, gate_write = os.pipe()
    errors_read, errors_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(argv, env, cwd, output, gate_read, [gate_write, errors_read])
        except OSError as error:
            os.write(errors_write, _reason(error, argv[0], cwd).encode())
        finally:
            os._exit(127)
    os.close(gate_read)
    os.close(errors_write)
    found = identify(pid)
    return Child(pid, str(found) if found else "", gate_write, errors_read)


def _become(argv: Sequence[str], env: Mapping[str, str], cwd: str, output: int, gate: int, unused: list[int]) -> None:
    for descriptor in unused:
        os.close(descriptor)
    os.setsid()
    signal.set_wakeup_fd(-1)
    for name in _RESET:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if os.read(gate, 1) != b"1":
        os.kill(os.getpid(), signal.SIGKILL)  # its supervisor was killed: an interruption, not an end of the code
    os.chdir(cwd)
    os.execvpe(argv[0], list(argv), dict(env))


def _reason(error: OSError, program: str, cwd: str) -> str:
    """Return why a command could not be executed."""
    if error.filename == cwd:
        return f"no such folder: {cwd}"
    if error.errno == errno.ENOENT and "/" not in program:
        return f"no program `{program}` on the PATH"
    if error.errno == errno.ENOENT:
        return f"`{program}`, or the interpreter in its first line, does not exist"
    return f"`{program}` cannot be executed: {error.strerror}"
