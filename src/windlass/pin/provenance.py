"""Provenance record: everything that determined a run, as one JSON value."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from windlass.core.clock import Clock, SystemClock, format_time
from windlass.core.errors import InternalError, PreconditionError, WaitTimeoutError
from windlass.core.process import run
from windlass.core.version import VERSION
from windlass.pin.code.pinned import CodePin
from windlass.pin.data.pinned import DataPin
from windlass.pin.environment.pinned import EnvironmentPin

__all__ = ["SCHEMA_VERSION", "ReplicaRecord", "collect", "find_seeds", "host_facts"]

SCHEMA_VERSION = 1
SECRET_MARK = "<secret>"  # noqa: S105 - what stands where a value would
_NVIDIA_QUERY = "index,name,uuid,memory.total,driver_version"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """Command line and variables of one replica."""

    task: str
    rank: int
    command: Sequence[str]
    variables: Mapping[str, str]


def collect(
    *,
    run_id: str,
    spec: Mapping[str, object],
    overrides: Sequence[str],
    params: Mapping[str, object],
    code: CodePin,
    environment: EnvironmentPin,
    packages: Sequence[str],
    data: Sequence[DataPin],
    replicas: Sequence[ReplicaRecord],
    secrets: Iterable[str],
    host: Mapping[str, object],
) -> dict[str, object]:
    """Return the provenance of a run as JSON values; pure.

    Args:
        spec: the resolved experiment as plain data.
        packages: packages of the built environment, `name==version`.
        secrets: names of variables whose values are never written.
        host: from `host_facts`.

    Raises:
        InternalError: a part is not plain data.
    """
    hidden = frozenset(secrets)
    record: dict[str, object] = {
        "schema": SCHEMA_VERSION,
        "run": run_id,
        "spec": spec,
        "overrides": list(overrides),
        "seeds": find_seeds(params),
        "code": dataclasses.asdict(code),
        "environment": {**dataclasses.asdict(environment), "packages": list(packages or environment.packages)},
        "data": [dataclasses.asdict(pin) for pin in data],
        "secrets": sorted(hidden),
        "replicas": [_describe_replica(replica, hidden) for replica in replicas],
        "host": host,
    }
    plain = _plain(record, "provenance")
    assert isinstance(plain, dict)  # a mapping stays one
    return plain


def find_seeds(params: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters that are named like seeds (`seed`, `data.seed`, `numpy_seeds`), by dotted path."""
    found: dict[str, object] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{below}": seed for below, seed in find_seeds(value).items()}
        elif re.search(r"(?:\A|[_.-])seeds?(?:\Z|[_.-])", str(name), re.IGNORECASE):
            found[str(name)] = value
    return found


def host_facts(clock: Clock | None = None) -> dict[str, object]:
    """Return facts about this machine: name, kernel, CPU, memory, GPUs, Python, windlass.

    Runs nvidia-smi if it is installed.
    """
    uname = os.uname()
    return {
        "collected_at": format_time((clock or SystemClock()).now()),
        "hostname": uname.nodename,
        "kernel": f"{uname.sysname} {uname.release}",
        "os": _os_name(),
        "machine": uname.machine,
        "libc": "".join(platform.libc_ver()),
        "cpu_model": _cpu_model(),
        "num_cpus": os.cpu_count() or 0,
        "num_usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
        "python_version": platform.python_version(),
        "python": sys.executable,
        "windlass_version": VERSION,
    }


def _describe_replica(replica: ReplicaRecord, hidden: frozenset[str]) -> dict[str, object]:
    variables = {name: SECRET_MARK if name in hidden else value for name, value in sorted(replica.variables.items())}
    return {"task": replica.task, "rank": replica.rank, "command": list(replica.command), "variables": variables}


def _plain(value: object, where: str) -> object:
    """Convert a value to JSON types, including dataclasses, paths, tuples and enums."""
    if isinstance(value, Mapping):
        return {str(key): _plain(below, f"{where}.{key}") for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(below, f"{where}[{number}]") for number, below in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value), where)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)  # noqa: PLR0124 - NaN is no JSON
    raise InternalError(
        f"{where} is a {type(value).__name__}, which cannot be recorded in the provenance", code="internal"
    )


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _cpu_model() -> str:
    """Return the CPU model; source: proc(5), /proc/cpuinfo, in which the key differs by CPU family."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^(?:model name|Model|cpu model|Processor)\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor()


def _gpus() -> list[dict[str, object]]:
    """Return the GPUs that nvidia-smi reports; empty without nvidia-smi, one `error` entry if it fails."""
    try:
        done = run(["nvidia-smi", f"--query-gpu={_NVIDIA_QUERY}", "--format=csv,noheader,nounits"], timeout_s=20)
    except PreconditionError:
        return []
    except WaitTimeoutError:
        return [{"error": "nvidia-smi did not respond within 20 s"}]
    if done.code != 0:
        return [{"error": (done.stderr or done.stdout).strip()[-200:]}]
    found: list[dict[str, object]] = []
    for line in done.stdout.strip().split("\n"):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == len(_NVIDIA_QUERY.split(",")) and fields[0].isdigit():
            index, name, uuid, memory_mib, driver = fields
            memory = int(memory_mib) * 2**20 if memory_mib.isdigit() else 0
            found.append({"index": int(index), "name": name, "uuid": uuid, "memory_bytes": memory, "driver": driver})
    return found
