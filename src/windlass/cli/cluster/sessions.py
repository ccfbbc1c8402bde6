"""Sessions of ssh on a cluster's head: a terminal, and forwarded ports."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from windlass.backends.site_shell import SshShell
from windlass.core.errors import PreconditionError, UsageError

if TYPE_CHECKING:
    from windlass.cluster.nodes.commands import ClusterNode

__all__ = ["forward_words", "forwarded", "terminal_session"]

_FORWARD_S = 30.0
_POLL_S = 0.05


def forward_words(ports: Sequence[int]) -> list[str]:
    """Return ssh's options that forward ports of this machine to the same ones of the head's."""
    words = [word for port in ports for word in ("-L", f"127.0.0.1:{port}:127.0.0.1:{port}")]
    return [*words, "-o", "ExitOnForwardFailure=yes"] if ports else []


@contextlib.contextmanager
def forwarded(head: ClusterNode, ports: Sequence[int]) -> Iterator[None]:
    """Forward ports of this machine to the head's while the context is open.

    Raises:
        PreconditionError: a port is in use here (`port-in-use`), or the head is not reached by ssh.
    """
    if not ports:
        yield
        return
    argv = _ssh_of(head).session("-N", *forward_words(ports))
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        _await_ports(process, ports)
        yield
    finally:
        process.terminate()
        process.communicate()


def _await_ports(process: subprocess.Popen[bytes], ports: Sequence[int]) -> None:
    end_s = time.monotonic() + _FORWARD_S
    for port in ports:
        while not _accepts(port) or process.poll() is not None:
            if process.poll() is not None or time.monotonic() > end_s:
                process.terminate()
                lines = process.communicate()[1].decode(errors="replace").strip().splitlines()
                message = f"cannot forward port {port}: {lines[-1] if lines else 'no response'}"
                raise PreconditionError(message, hint="choose a port that is free on this machine", code="port-in-use")
            time.sleep(_POLL_S)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def terminal_session(head: ClusterNode, program: Sequence[str], ports: Sequence[int] = ()) -> int:
    """Run a program, or the user's shell, on the head with this terminal; return its exit code.

    Raises:
        UsageError: there is no terminal.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        hint = f"`windlass cluster exec {head.home.name} COMMAND` needs none"
        raise UsageError("`attach` needs a terminal", hint=hint, code="no-terminal")
    ssh = _ssh_of(head)
    argv = ssh.session("-t", *forward_words(ports), command=head.words("node-shell", *program))
    return subprocess.run(argv, check=False, env=dict(os.environ)).returncode


def _ssh_of(head: ClusterNode) -> SshShell:
    if not isinstance(head.host.shell, SshShell):
        message = f"{head.home.name} is not reached by ssh, which terminals and forwarded ports need"
        raise PreconditionError(
            message, hint=f"windlass cluster exec {head.home.name} COMMAND", code="unsupported-setting"
        )
    return head.host.shell
