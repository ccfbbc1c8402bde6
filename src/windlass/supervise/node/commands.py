"""Commands on the head of a cluster: each runs on its own, whatever becomes of the connection that started it.

    node-run FOLDER RUN             start a command that arrives as JSON on standard input; returns when it runs
    node-follow FOLDER RUN A B S    print what it wrote after A bytes of output and B of errors, and how it ended; waits S s
    node-log FOLDER NAME A S        print what a log of the node holds after A bytes, in the same form
    node-kill FOLDER RUN            end it
    node-shell FOLDER [PROGRAM...]  become an interactive shell, or a program, with the variables of commands

A command's output goes to two files and its exit code to a third, so that every reader sees the same bytes. It carries the
node's token, by which the end of the node ends it, and the name of its run, by which `node-kill` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, BinaryIO, Callable

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.files import is_locked, take_lock, write_atomic
from windlass.core.json_text import decode_json
from windlass.core.process import ProcessId, find_by_environment, is_alive, send_signal
from windlass.supervise.node.container import PIPE, NodeContainer, enter, inside_environment, read_container
from windlass.supervise.node.spec import NODE_VARIABLE, NodeFolder, NodeSpec, NodeStatus

__all__ = [
    "ERRORS",
    "OUTPUT",
    "PYTHON",
    "RUN_VARIABLE",
    "CommandFiles",
    "NodeCommand",
    "command_environment",
    "commands_main",
    "follow_run",
    "kill_run",
    "run_command",
    "start_run",
]

RUN_VARIABLE = "WINDLASS_NODE_RUN"
"""Variable of all processes of a command; its value is the name of the run."""

OUTPUT, ERRORS = "output.log", "errors.log"
PYTHON = "{python}"
"""First word of a command that the cluster's Python runs."""

_PIECE_BYTES = 4 << 20
_POLL_S = 0.02
_GATHER_S = 0.03
"""Wait for more output after the first byte, so that a chatty command needs few replies."""
_GRACE_S = 10.0
_READY_S = 30.0
_CANNOT_RUN = 127
_MAX_COMMAND_BYTES = 4 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


@dataclass(frozen=True)
class NodeCommand:
    """A command.

    Attributes:
        argv: program and arguments; `PYTHON` as the first stands for the Python of the cluster.
        environment: further variables.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the command as text."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> NodeCommand:
        """Read `to_json`; raises ValueError, TypeError or KeyError if it is something else."""
        data: dict[str, Any] = decode_json(content)
        return cls(
            tuple(map(str, data["argv"])), {str(key): str(data["environment"][key]) for key in data["environment"]}
        )


@dataclass(frozen=True)
class CommandFiles:
    """Folder of a run: `command.json`, `lock` (held while it runs), `process`, `output.log`, `errors.log`, `exit`."""

    path: Path

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None while the command runs, and if it ended without one."""
        try:
            return int((self.path / "exit").read_text())
        except (FileNotFoundError, ValueError):
            return None

    @property
    def is_running(self) -> bool:
        """Return whether somebody still waits for the command."""
        return is_locked(self.path / "lock")

    def piece(self, name: str, at: int) -> bytes:
        """Return what a log holds after some bytes, at most 4 MiB."""
        try:
            with open(str(self.path / name), "rb") as file:
                file.seek(at)
                return file.read(_PIECE_BYTES)
        except FileNotFoundError:
            return b""


def commands_main(command: str, rest: Sequence[str]) -> int:
    """Run one of this module's commands of the zipapp."""
    folder = NodeFolder(Path(rest[0]).absolute())
    if command == "node-shell":
        return enter_shell(folder, rest[1:])
    if not _NAME.match(rest[1]):
        sys.stderr.write(f"windlass: invalid name of a run `{rest[1]}`\n")
        return 2
    run = CommandFiles(folder.path / "runs" / rest[1])
    try:
        if command == "node-run":
            return start_run(folder, run, sys.stdin.buffer.read(_MAX_COMMAND_BYTES + 1))
        if command == "node-command":
            return run_command(folder, run, int(rest[2]))
        if command == "node-follow":
            follow_run(run, int(rest[2]), int(rest[3]), sys.stdout.buffer, wait_s=float(rest[4]))
            return 0
        if command == "node-log":
            follow_log(folder, rest[1], int(rest[2]), sys.stdout.buffer, wait_s=float(rest[3]))
            return 0
        return kill_run(run)
    except PreconditionError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1


def start_run(folder: NodeFolder, run: CommandFiles, content: bytes) -> int:
    """Start a command, unless a run of this name has begun; returns when it runs."""
    if len(content) > _MAX_COMMAND_BYTES:
        raise PreconditionError(f"the command is larger than {_MAX_COMMAND_BYTES >> 20} MiB", code="invalid-value")
    command = NodeCommand.from_json(content)
    spec, status = _ready_node(folder)
    try:
        os.makedirs(str(run.path), mode=0o700)
    except FileExistsError:
        return 0
    write_atomic(run.path / "command.json", content, mode=0o600, is_durable=False)
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    container = read_container(folder.path)
    python, ready = (sys.executable, writing) if container is None else (container.python, PIPE)
    words = [python, "-I", "-S", os.path.abspath(sys.argv[0]), "node-command", str(folder.path), run.path.name]
    environ = command_environment(_own_environment(container), spec, status, command, run.path.name)
    argv, environ = enter(container, [*words, str(ready)], environ, has_pipe=True)
    with open(str(run.path / "runner.log"), "ab") as log:
        subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log if container is None else writing,
            stderr=log,
            pass_fds=(writing,) if container is None else (),
            start_new_session=True,
        )
    os.close(writing)
    has_begun = bool(os.read(reading, 1))
    os.close(reading)
    if not has_begun:
        last = (run.path / "runner.log").read_text(errors="replace").strip().splitlines()[-1:]
        raise PreconditionError(f"the command was not started: {' '.join(last) or 'no output'}", code="node-failed")
    return 0


def _ready_node(folder: NodeFolder) -> tuple[NodeSpec, NodeStatus]:
    status = folder.read_status()
    if status is None or status.state != "ready" or folder.is_stop_requested:
        state = "stopping" if folder.is_stop_requested else "not started" if status is None else status.state
        raise PreconditionError(f"the node is not ready: {state}", code="node-failed")
    return folder.read_spec(), status


def enter_shell(folder: NodeFolder, program: Sequence[str]) -> int:
    """Become a login shell, or a program; does not return if that works."""
    spec, status = _ready_node(folder)
    container = read_container(folder.path)
    argv = list(program) or ([os.environ.get("SHELL") or "/bin/bash", "-l"] if container is None else ["bash"])
    environ = command_environment(_own_environment(container), spec, status, NodeCommand(tuple(argv)), "shell")
    environ.pop("PYTHONUNBUFFERED")
    os.umask(0o022)
    os.chdir(os.path.expanduser("~"))
    terminal = ("--interactive", *(("--tty",) if sys.stdin.isatty() else ()))
    argv, environ = enter(container, argv, environ, interaction=terminal)
    try:
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        sys.stderr.write(f"windlass: cannot run {argv[0]}: {error.strerror}\n")
    return _CANNOT_RUN


def command_environment(
    environ: Mapping[str, str], spec: NodeSpec, status: NodeStatus, command: NodeCommand, run: str
) -> dict[str, str]:
    """Return a command's variables: those of the node, Ray's address and token, and what the command sets."""
    ray = {"RAY_ADDRESS": status.head, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": spec.auth_token}
    ours = {NODE_VARIABLE: spec.token, RUN_VARIABLE: run, "PYTHONUNBUFFERED": "1"}
    return {**environ, **spec.environment, **ray, **ours, **command.environment}


def _own_environment(container: NodeContainer | None) -> Mapping[str, str]:
    """Return the variables of a command that are this process's own."""
    return os.environ if container is None else inside_environment(os.environ)


def follow_log(folder: NodeFolder, name: str, at: int, target: BinaryIO, *, wait_s: float) -> None:
    """Write one reply with new bytes of a log of the node: `agent`, `setup`, `ray` or `monitor`."""
    path = folder.log(name)
    end_s, piece = time.monotonic() + wait_s, b""
    while not piece:
        piece = CommandFiles(path.parent).piece(path.name, at)
        if piece or time.monotonic() >= end_s:
            break
        time.sleep(_POLL_S)
    target.write(json.dumps({"output": len(piece), "errors": 0, "exists": path.exists()}).encode() + b"\n")
    target.write(piece)
    target.flush()


def run_command(folder: NodeFolder, run: CommandFiles, ready: int) -> int:
    """Run a command to its end and write down its exit code; this process does nothing else."""
    command, spec = NodeCommand.from_json((run.path / "command.json").read_bytes()), folder.read_spec()
    lock = os.open(str(run.path / "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    take_lock(lock, run.path / "lock")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # what ends the command ends this process, with the code written down
    code = _run(command, spec, run, ready)
    write_atomic(run.path / "exit", b"%d" % code, mode=0o600)
    return 0


def _run(command: NodeCommand, spec: NodeSpec, run: CommandFiles, ready: int) -> int:
    argv = list(command.argv)
    if argv[0] == PYTHON:
        argv[0] = shutil.which(spec.python) or spec.python
    with open(str(run.path / OUTPUT), "ab") as output, open(str(run.path / ERRORS), "ab") as errors:
        try:
            child = subprocess.Popen(
                argv,
                cwd=os.path.expanduser("~"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            errors.write(f"windlass: cannot run {argv[0]}: {error.strerror}\n".encode())
            os.write(ready, b"r")
            os.close(ready)
            return _CANNOT_RUN
    write_atomic(run.path / "process", str(_identity(child.pid)).encode(), mode=0o600, is_durable=False)
    os.write(ready, b"r")
    os.close(ready)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _identity(pid: int) -> ProcessId:
    from windlass.core.process import identify, world_id  # lazy: here only

    return identify(pid) or ProcessId(pid, 0, world_id())


def follow_run(run: CommandFiles, output_at: int, errors_at: int, target: BinaryIO, *, wait_s: float) -> None:
    """Write one reply: a line of JSON, then new output, then new errors. Waits a while if there is nothing new.

    The line has the sizes of both, and `exit`: the code once everything was written, or `lost` if there is none.
    """
    if not (run.path / "command.json").exists():
        raise PreconditionError(f"no run `{run.path.name}`", code="not-found")
    end_s = time.monotonic() + wait_s
    while True:
        # Read whether it ended before its files: what it wrote before its end is then in the reply.
        code, is_running = run.exit_code, run.is_running
        pieces = [run.piece(OUTPUT, output_at), run.piece(ERRORS, errors_at)]
        is_over = code is not None or not (is_running or _is_young(run))
        if any(pieces) or is_over or time.monotonic() >= end_s:
            break
        time.sleep(_POLL_S)
    if any(pieces) and not is_over:
        time.sleep(_GATHER_S)
        pieces = [run.piece(OUTPUT, output_at), run.piece(ERRORS, errors_at)]
    is_whole = all(len(piece) < _PIECE_BYTES for piece in pieces)
    line: dict[str, object] = {"output": len(pieces[0]), "errors": len(pieces[1])}
    if is_over and is_whole:
        line["exit"] = run.exit_code if run.exit_code is not None else "lost"
    target.write(json.dumps(line).encode() + b"\n")
    target.writelines(pieces)
    target.flush()


def _is_young(run: CommandFiles) -> bool:
    """Return whether the process that waits for the command may not have begun."""
    with contextlib.suppress(FileNotFoundError):
        is_begun = (run.path / "lock").exists()
        return not is_begun and time.time() - (run.path / "command.json").stat().st_mtime < _READY_S
    return False


def kill_run(run: CommandFiles, *, grace_s: float = _GRACE_S) -> int:
    """End a command: SIGINT, as Ctrl-C does; then SIGTERM to all its processes; then SIGKILL. Idempotent."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        leader = ProcessId.parse((run.path / "process").read_text())
        if is_alive(leader):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader.pid, signal.SIGINT)
            _await(lambda: not is_alive(leader), grace_s)
    for number in (signal.SIGTERM, signal.SIGKILL):
        found = _members(run)
        for pid in found:
            send_signal(pid, number)
        if not found or _await(lambda: not _members(run), grace_s / 2):
            break
    _await(lambda: not run.is_running, grace_s)
    return 1 if run.is_running else 0


def _members(run: CommandFiles) -> list[int]:
    """Return a command's living processes, without the one that waits for it and writes down the exit code."""
    found = []
    for pid in find_by_environment(RUN_VARIABLE, run.path.name):
        with contextlib.suppress(OSError):
            if b"node-command" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _await(condition: Callable[[], bool], limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(_POLL_S)
    return True
