"""Runs a Python program that nobody has read, without access to files, network or other processes.

    outcome = run("print(6 * 7)", SandboxConfig(timeout_s=2))

The program is alone in namespaces of processes, mounts, network and IPC, under another uid, in a control group, with the
system's folders and the interpreter read-only, an empty /tmp in memory, no input, no environment and bounded output.
`missing()` says what this machine cannot give; a program is refused there unless the settings say `weak` (in recipes
`reward.sandbox: weak`).

Cost: two starts of a bare Python and the namespaces, about 80 ms of CPU time.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Literal

from windlass.core.errors import PreconditionError
from windlass.core.json_text import decode_object
from windlass.post.rewards import sandbox_launcher
from windlass.post.rewards.cgroup import ControlGroup

__all__ = ["ProgramResult", "SandboxConfig", "missing", "require_sandbox", "run"]

_SHOWN = (
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/sbin",
    "/usr",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/full",
    "/dev/null",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
)
_FIRST_USER, _NUM_USERS = 61184, 4096  # not used by any account; source: systemd's UIDS-GIDS.md
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """WorkerLimits of a sandboxed program.

    Attributes:
        timeout_s: wall time; it is killed then, with all its descendants.
        memory_bytes: memory of all its processes, files in /tmp included.
        num_processes: processes and threads at a time.
        disk_bytes: space in its /tmp.
        output_bytes: output and errors, each; it is killed when it writes more.
        weak: whether to run it on a machine that cannot give all of this, with what there is.
    """

    timeout_s: float = 5.0
    memory_bytes: int = 512 << 20
    num_processes: int = 32
    disk_bytes: int = 64 << 20
    output_bytes: int = 1 << 16
    weak: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """Output of a program, and how it ended.

    Attributes:
        end: `exit`; `timeout` or `output`, by which it was killed; `died`, if the sandbox was killed from inside, for
            example by the limit of memory.
        code: exit code, negative if a signal ended it; None unless it ended by itself.
        output: what it printed, at most `output_bytes`.
        errors: likewise, of standard error.
        seconds: wall time with the start of the sandbox.
    """

    end: Literal["exit", "timeout", "output", "died"]
    code: int | None
    output: bytes
    errors: bytes
    seconds: float


def run(program: str, config: SandboxConfig | None = None) -> ProgramResult:
    """Run a Python program and return how it ended; blocks, and leaves no process.

    Raises:
        PreconditionError: this machine cannot give what the sandbox needs, and the settings do not say `weak`.
    """
    config = config or SandboxConfig()
    if not config.weak:
        require_sandbox()
    outcome, refused = _launch(program, config, is_isolated=_namespaces_error() == "")
    if refused:
        raise PreconditionError(f"the sandbox did not start: {refused}", code="precondition")
    return outcome


def require_sandbox() -> None:
    """Check that this machine gives all of the sandbox.

    Raises:
        PreconditionError: it does not; the message lists what is missing.
    """
    if lacks := missing():
        raise PreconditionError(
            f"no sandbox on this machine: {'; '.join(lacks)}",
            hint="run where these exist, or accept the risk with `reward.sandbox: weak`",
            code="precondition",
        )


@cache
def missing() -> tuple[str, ...]:
    """Return what this machine cannot give, one sentence each, after trying it; empty if it gives all."""
    found = []
    if error := _namespaces_error():
        found.append(f"namespaces of processes, mounts and network are not available ({error})")
    if error or os.geteuid() != 0:
        found.append("programs run under your own uid")
    group = ControlGroup(num_processes=16, memory_bytes=1 << 30)
    if "memory" in group.missing:
        found.append("no control group limits the memory of all processes of a program, only that of each")
    group.close()
    return tuple(found)


@cache
def _namespaces_error() -> str:
    return _launch("", SandboxConfig(), is_isolated=True)[1]


def _launch(program: str, config: SandboxConfig, *, is_isolated: bool) -> tuple[ProgramResult, str]:
    """Run a program and return how it ended, and what the machine refused."""
    group = ControlGroup(num_processes=config.num_processes + 1, memory_bytes=config.memory_bytes)
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(prefix="windlass-program-") as folder, tempfile.TemporaryFile() as settings:
        file = Path(folder, "program.py")
        if not is_isolated:
            file.write_text(program)
        settings.write(json.dumps(_settings(program, config, group, file, is_isolated=is_isolated)).encode())
        settings.seek(0)
        with open(reader, "rb") as report, _start(settings.fileno(), writer) as launcher:
            os.close(writer)
            started_s = time.monotonic()
            end, texts = _listen(launcher, config)
            assert launcher.stdin is not None
            launcher.stdin.close()
            launcher.wait()
            reply = decode_object(report.read() or b"{}")
    group.close()
    code = reply.get("code") if end == "exit" else None
    outcome = ProgramResult(
        end="died" if end == "exit" and code is None else end,
        code=code,
        output=texts[0],
        errors=texts[1],
        seconds=time.monotonic() - started_s,
    )
    return outcome, str(reply.get("refused", ""))


def _start(settings: int, report: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", sandbox_launcher.__file__, str(settings), str(report)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[settings, report],
        env={},
    )


def _settings(
    program: str, config: SandboxConfig, group: ControlGroup, file: Path, *, is_isolated: bool
) -> dict[str, object]:
    number = _FIRST_USER + os.getpid() % _NUM_USERS
    base = os.path.realpath(sys.base_prefix)
    home = os.environ.get("WINDLASS_HOME") or str(Path.home() / ".windlass")
    return {
        "program": program,
        "file": str(file),
        "python": os.path.realpath(sys.executable),
        "isolated": is_isolated,
        "shown": [*_SHOWN, *([] if base.startswith("/usr") else [base])],
        "hidden": [home],
        "entries": group.entries,
        "disk_bytes": config.disk_bytes,
        "user": number,
        "group": number,
        "environment": {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"},  # noqa: S108 - its own
        "limits": {
            "RLIMIT_AS": config.memory_bytes,
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": config.disk_bytes,
            "RLIMIT_NOFILE": 256,
            "RLIMIT_NPROC": config.num_processes,
        },
    }


def _listen(
    launcher: subprocess.Popen[bytes], config: SandboxConfig
) -> tuple[Literal["exit", "timeout", "output"], list[bytes]]:
    """Read the output until it ends, has too many bytes, or the time is over."""
    end_s = time.monotonic() + config.timeout_s
    streams: list[IO[bytes]] = [stream for stream in (launcher.stdout, launcher.stderr) if stream is not None]
    texts = [bytearray() for _ in streams]
    with selectors.DefaultSelector() as selector:
        for number, stream in enumerate(streams):
            selector.register(stream, selectors.EVENT_READ, number)
        while selector.get_map():
            ready = selector.select(max(0.0, end_s - time.monotonic()))
            if time.monotonic() >= end_s:
                return "timeout", [bytes(text) for text in texts]
            for key, _ in ready:
                data = os.read(key.fd, _CHUNK_BYTES)
                texts[key.data] += data
                if not data:
                    selector.unregister(key.fileobj)
            if max(map(len, texts)) > config.output_bytes:
                return "output", [bytes(text[: config.output_bytes]) for text in texts]
    return "exit", [bytes(text) for text in texts]
