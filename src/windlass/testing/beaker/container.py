"""Processes of one job, started with Beaker's variables and mounts, read line by line, and always ended."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.process import find_by_environment, send_signal
from windlass.testing.beaker import enclose
from windlass.testing.beaker.records import StoredJob, StoredLogLine

__all__ = ["Container", "Mount", "can_enclose", "end", "read_output", "stamp", "start", "why_not_started"]

_LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """File or folder on this machine, and its path in the job."""

    source: Path
    target: str
    is_readonly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Parameters for starting a job.

    Attributes:
        folder: the job's folder, with its home, its working folder and the container's files.
        hosts: host names and their addresses.
        hidden: folders of this machine that are empty for the job.
    """

    folder: Path
    argv: Sequence[str]
    environ: Mapping[str, str]
    hostname: str
    hosts: Mapping[str, str]
    mounts: Sequence[Mount] = ()
    hidden: Sequence[Path] = ()


@functools.lru_cache(maxsize=1)
def can_enclose() -> bool:
    """Return whether this machine allows mount, host name and process namespaces.

    The first call tests it in about 50 ms.
    """
    with tempfile.TemporaryDirectory() as folder:
        probe = Container(folder=Path(folder), argv=("true",), environ={"PATH": os.defpath}, hostname="probe", hosts={})
        process = _spawn_enclosed(probe)
        process.communicate()
        return process.returncode == 0


def start(container: Container) -> subprocess.Popen[bytes]:
    """Start a job's command; the caller's thread must outlive it.

    Raises:
        OSError: the command cannot be started (if jobs are not enclosed).
    """
    for name in ("home", "work"):
        (container.folder / "box" / name).mkdir(parents=True, exist_ok=True)
    if can_enclose():
        return _spawn_enclosed(container)
    return subprocess.Popen(
        list(container.argv),
        env=dict(container.environ),
        cwd=container.folder / "box" / "work",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _spawn_enclosed(container: Container) -> subprocess.Popen[bytes]:
    folder = container.folder
    for name in ("root", "box/home", "box/work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "hosts").write_text(_hosts_file(container.hosts))
    plan = {
        "argv": list(container.argv),
        "environ": dict(container.environ),
        "hostname": container.hostname,
        "hosts_file": str(folder / "hosts"),
        "is_root": os.geteuid() == 0,
        "root": str(folder / "root"),
        "box": str(folder / "box"),
        "mounts": [(str(mount.source), mount.target, mount.is_readonly) for mount in container.mounts],
        "hidden": [str(path) for path in container.hidden],
        "failure": str(folder / "failure"),
    }
    plan_file = folder / "plan.json"
    plan_file.touch(mode=0o600)
    plan_file.write_text(json.dumps(plan))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", enclose.__file__, str(plan_file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _hosts_file(hosts: Mapping[str, str]) -> str:
    try:
        known = Path("/etc/hosts").read_text()
    except OSError:
        known = "127.0.0.1 localhost\n"
    return known.rstrip("\n") + "\n" + "".join(f"{address} {name}\n" for name, address in hosts.items())


def why_not_started(folder: Path, code: int) -> str:
    """Return why a command did not start, as reported by the container, or an empty string if it started."""
    failure = folder / "failure"
    if code in (enclose.FAILED_CODE, 127) and failure.exists():
        return failure.read_text()
    return ""


def read_output(
    job: StoredJob,
    process: subprocess.Popen[bytes],
    on_line: Callable[[StoredJob, bytes], None],
    on_end: Callable[[StoredJob], None],
) -> threading.Thread:
    """Read a job's output in a separate thread until its last process closes the stream."""

    def follow() -> None:
        stream = process.stdout
        assert stream is not None
        with stream:
            for line in iter(functools.partial(stream.readline, _LONGEST_LINE), b""):
                on_line(job, line.rstrip(b"\n"))
        process.wait()
        on_end(job)

    thread = threading.Thread(target=follow, name=f"fake-beaker-output-{job.id}", daemon=True)
    thread.start()
    return thread


def stamp(job: StoredJob, message: bytes) -> StoredLogLine:
    """Return a log line with a timestamp: the current time, but always after the previous line."""
    last_ns = job.log[-1].at_ns if job.log else 0
    return StoredLogLine(at_ns=max(time.time_ns(), last_ns + 1), message=message)


def end(job: StoredJob, number: int = signal.SIGKILL) -> None:
    """Kill all processes of a job, or send another signal to its command.

    Processes that have ended are ignored. Idempotent.
    """
    assert job.process is not None
    if not can_enclose():
        for pid in (job.process.pid, *find_by_environment("BEAKER_JOB_ID", job.id)):
            send_signal(pid, number)
    elif job.process.returncode is None:
        send_signal(job.process.pid, number)  # processes in the container die with it, or get the signal from it
