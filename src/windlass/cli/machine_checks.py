"""Checks made by `windlass doctor`: programs, folders, GPUs and kernel features that runs need."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.core.files import file_system, lock, write_atomic
from windlass.core.phrases import count, size
from windlass.core.process import boot_id, run
from windlass.core.version import VERSION
from windlass.runs.home import Home, cache_directory

__all__ = ["Check", "checks"]

_MIN_GIT = (2, 25)
_LOW_BYTES, _TOO_LOW_BYTES = 10 * 2**30, 2**30
_MIN_SHARED_MEMORY_BYTES = 256 * 2**20
_MIN_FILES = 4096
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "9p", "afs", "wekafs"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one check, with a hint unless it is `ok`."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    hint: str = ""


def checks() -> Iterator[Check]:
    """Yield every check in display order.

    Runs git, uv and nvidia-smi, and writes a few bytes to the windlass home.
    """
    for name, check in _CHECKS.items():
        try:
            yield from check()
        except (WindlassError, OSError) as error:
            hint = error.hint if isinstance(error, WindlassError) else ""
            yield Check(name=name, status="fail", message=str(error), hint=hint)


def _windlass() -> Iterator[Check]:
    yield Check(name="windlass", status="ok", message=f"{VERSION} at {Path(__file__).parents[1]}")


def _python() -> Iterator[Check]:
    yield Check(name="python", status="ok", message=f"{platform.python_version()} at {sys.executable}")


def _git() -> Iterator[Check]:
    done = run(["git", "--version"])
    words = done.stdout.split()
    version = words[2] if len(words) > 2 else ""
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if number < _MIN_GIT:
        wanted = ".".join(map(str, _MIN_GIT))
        yield Check(
            name="git", status="fail", message=f"{version or 'unknown version'}", hint=f"install git {wanted} or newer"
        )
        return
    yield Check(name="git", status="ok", message=f"{version} at {shutil.which('git')}")


def _uv() -> Iterator[Check]:
    from windlass.pin.environment.uv_tool import find_uv  # lazy: only for this check

    path = find_uv()
    done = run([path, "--version"])
    yield Check(name="uv", status="ok" if done.code == 0 else "fail", message=f"{done.stdout.strip()} at {path}")


def _home() -> Iterator[Check]:
    home = Home.default()
    folder = home.runs
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=home.path) as scratch:
        write_atomic(Path(scratch) / "probe", b"probe")
        with lock(Path(scratch) / "lock"):
            pass
    num_runs = sum(1 for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    kind = file_system(home.path)
    yield Check(name="home", status="ok", message=f"{home.path} ({kind}), {count(num_runs, 'run')}")
    if kind in _NETWORK_FILE_SYSTEMS and "WINDLASS_HOME" not in os.environ:
        hint = "a local disk is faster: export WINDLASS_HOME=/path/on/a/local/disk"
        yield Check(name="home", status="warn", message=f"{home.path} is on a network file system ({kind})", hint=hint)


def _cache() -> Iterator[Check]:
    folder = cache_directory()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(folder / ".doctor", b"probe", is_durable=False)
    (folder / ".doctor").unlink()
    yield Check(name="cache", status="ok", message=f"{folder} ({file_system(folder)})")


def _disk() -> Iterator[Check]:
    home = Home.default()
    home.runs  # noqa: B018 - creates the folder, so that the right disk is measured
    free = shutil.disk_usage(home.path).free
    if free >= _LOW_BYTES:
        yield Check(name="disk", status="ok", message=f"{size(free)} free for {home.path}")
        return
    status: Literal["warn", "fail"] = "fail" if free < _TOO_LOW_BYTES else "warn"
    hint = "free some space: `windlass gc --environments`, `windlass gc --runs --older-than 30d`"
    yield Check(name="disk", status=status, message=f"only {size(free)} free for {home.path}", hint=hint)


def _shared_memory() -> Iterator[Check]:
    folder = Path("/dev/shm")  # noqa: S108 - only read
    if not folder.is_dir():
        yield Check(name="shared memory", status="warn", message=f"no {folder}", hint="mount a tmpfs there")
        return
    total = shutil.disk_usage(folder).total
    if total < _MIN_SHARED_MEMORY_BYTES:
        hint = "data loaders with workers need more, such as `docker run --shm-size=8g`"
        yield Check(name="shared memory", status="warn", message=f"{folder} has {size(total)}", hint=hint)
        return
    yield Check(name="shared memory", status="ok", message=f"{folder} has {size(total)}")


def _files() -> Iterator[Check]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _MIN_FILES:
        hint = f"ulimit -n {hard}" if hard < 0 or hard > soft else "ask the administrator for a higher limit"
        yield Check(name="open files", status="warn", message=f"at most {soft}", hint=hint)
        return
    yield Check(name="open files", status="ok", message=f"at most {soft if soft >= 0 else 'any number'}")


def _gpus() -> Iterator[Check]:
    from windlass.pin.provenance import host_facts  # lazy: only for this check
    from windlass.supervise.leases import local_resources

    found, leased = host_facts()["gpus"], local_resources().gpus
    gpus = [gpu for gpu in found if isinstance(gpu, dict)] if isinstance(found, list) else []
    errors = [str(gpu["error"]) for gpu in gpus if "error" in gpu]
    if errors:
        yield Check(
            name="gpus", status="fail", message=f"nvidia-smi: {errors[0]}", hint="run `nvidia-smi` and check `dmesg`"
        )
        return
    names = sorted({str(gpu["name"]) for gpu in gpus})
    if len(gpus) != len(leased):
        message = f"nvidia-smi lists {len(gpus)} GPUs, but windlass would lease {len(leased)}"
        yield Check(
            name="gpus", status="warn", message=message, hint="export WINDLASS_GPUS=0,1,... with the ids to use"
        )
        return
    yield Check(name="gpus", status="ok", message=f"{len(gpus)} {', '.join(names)}".rstrip() if gpus else "none")


def _kernel() -> Iterator[Check]:
    yield Check(name="kernel", status="ok", message=f"{platform.system()} {platform.release()}, boot {boot_id()}")
    for name, has_it, without in (
        ("subreaper", _has_subreaper, "processes that leave their session may outlive an attempt"),
        ("splice", _has_splice, "logs cost more CPU"),
        ("pidfd", lambda: hasattr(os, "pidfd_open") and _has_pidfd(), "processes are watched by polling"),
    ):
        if has_it():
            yield Check(name=name, status="ok", message="there")
        else:
            yield Check(name=name, status="warn", message=f"missing: {without}", hint="use Linux 5.4 or newer")


def _has_subreaper() -> bool:
    """Return whether the kernel has subreapers, tested in a child process so that this one does not become one."""
    code = "from windlass.supervise.linux import become_subreaper as f; import sys; sys.exit(not f())"
    return run([sys.executable, "-c", code]).code == 0


def _has_splice() -> bool:
    from windlass.supervise.linux import splice_to_file  # lazy: only for this check

    reader, writer = os.pipe()
    try:
        with tempfile.TemporaryFile() as file:
            os.write(writer, b"probe")
            return splice_to_file(reader, file.fileno(), 5, 0) == 5
    except (NotImplementedError, OSError):
        return False
    finally:
        os.close(reader)
        os.close(writer)


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _engines() -> Iterator[Check]:
    """Yield the checks of the optional container engines for `--on docker` and `--on podman`."""
    from windlass.backends.docker.backend import check_engine  # lazy: only for this check

    for program in ("docker", "podman"):
        if shutil.which(program) is None:
            if program == "docker":
                yield Check(name=program, status="ok", message="not installed; needed only for `--on docker`")
            continue
        try:
            version = check_engine(program)
        except WindlassError as error:
            yield Check(name=program, status="warn", message=error.message, hint=error.hint)
        else:
            yield Check(name=program, status="ok", message=f"{version}; `--on {program}` works")


_CHECKS: dict[str, Callable[[], Iterator[Check]]] = {
    "windlass": _windlass,
    "python": _python,
    "git": _git,
    "uv": _uv,
    "home": _home,
    "cache": _cache,
    "disk": _disk,
    "shared memory": _shared_memory,
    "open files": _files,
    "gpus": _gpus,
    "docker": _engines,
    "kernel": _kernel,
}
