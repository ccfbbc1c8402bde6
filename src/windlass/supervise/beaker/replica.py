"""Replica started by Beaker: its rank, its start (incarnation), and its secrets.

Beaker starts all replicas of a task together, and restarts them after a preemption as new jobs of the same tasks. Each
start is an incarnation, named after the job of the first replica. Secrets in the supervisor's variables are moved to a
file in the container's memory, and the program restarts itself without them, so that they are not in `/proc/PID/environ`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.files import write_atomic, write_new
from windlass.core.json_text import read_json
from windlass.supervise.gang.incarnation import Incarnation, as_written, link_path
from windlass.supervise.job import JobDocument
from windlass.supervise.remote.delivery import pack_delivery

__all__ = [
    "SHOWN_PREFIX",
    "BeakerStart",
    "clean_environment",
    "enter_start",
    "hand_over_secrets",
    "read_start",
    "remove_delivery_folder",
    "restart_clean",
]

SHOWN_PREFIX = "WINDLASS_FROM_BEAKER_"
"""Prefix of the variable in which Beaker passes a secret to the supervisor; user code does not get it."""

_ONE_LINK = 1
_LEADER = "BEAKER_LEADER_REPLICA_JOB_ID"
_WORKLOAD = ("BEAKER_WORKLOAD_ID", "BEAKER_EXPERIMENT_ID")


@dataclass(frozen=True)
class BeakerStart:
    """Start of this replica: its rank, incarnation and task, and the folder for its logs."""

    rank: int
    incarnation: Incarnation
    task: str
    logs: Path


def read_start(folder: Path, environ: Mapping[str, str]) -> BeakerStart | None:
    """Return this replica's start; None if another Beaker experiment already runs the job. Idempotent.

    Raises:
        PreconditionError: Beaker's variables do not match the job (`beaker-start`); or job.json cannot be read.
    """
    job = JobDocument.read(folder / "job.json")
    rank, count = _number(environ, "BEAKER_REPLICA_RANK", 0), _number(environ, "BEAKER_REPLICA_COUNT", 1)
    if count != job.num_replicas or not 0 <= rank < count:
        raise _misfit(f"Beaker started replica {rank} of {count}, but the job has {job.num_replicas} replicas")
    if count > 1 and not environ.get(_LEADER):
        raise _misfit(f"{_LEADER} is not set, so replicas of different starts cannot be distinguished")
    incarnation = enter_start(folder, environ)
    return None if incarnation is None else BeakerStart(rank, incarnation, job.task, Path(job.paths.run_dir) / "logs")


def enter_start(job_folder: Path, environ: Mapping[str, str]) -> Incarnation | None:
    """Enter this start of the job; None if another experiment already runs the job. Idempotent.

    Every replica calls it, and the first caller writes the files, whatever its rank.

    Raises:
        PreconditionError: this is not a Beaker job (`beaker-start`).
    """
    workload = next((environ[name] for name in _WORKLOAD if environ.get(name)), "")
    leader = environ.get(_LEADER) or environ.get("BEAKER_JOB_ID", "")
    if not workload or not leader:
        raise _misfit(f"{_WORKLOAD[0]} or BEAKER_JOB_ID is not set: this was not started by Beaker")
    now = time.time()
    path = link_path(job_folder, _ONE_LINK)
    write_new(path, json.dumps({"id": workload, "host": os.uname().nodename, "at": now}).encode())
    if read_json(path)["id"] != workload:
        return None
    name = f"{leader}.{_number_of_start(job_folder, leader)}"
    found = Incarnation(name=name, link=_ONE_LINK, job_id=workload, began_at=now)
    found.folder(job_folder).mkdir(mode=0o700, exist_ok=True)
    return as_written(found, job_folder)


def _number_of_start(job_folder: Path, leader: str) -> int:
    """Return the number of this start, counted from 0; the first replica to call this records it."""
    for number in itertools.count():
        path = job_folder / f"start-{number}.json"
        write_new(path, json.dumps({"id": leader}).encode())
        if read_json(path)["id"] == leader:
            return number
    raise AssertionError  # there is always a next number


def hand_over_secrets(folder: Path, environ: Mapping[str, str]) -> bool:
    """Move secrets from Beaker's variables to a file for the supervisor; return whether there were any.

    Raises:
        PreconditionError: they cannot be written to memory (`beaker-start`).
    """
    shown = {name[len(SHOWN_PREFIX) :]: value for name, value in environ.items() if name.startswith(SHOWN_PREFIX)}
    job = JobDocument.read(folder / "job.json")
    if not shown or not job.paths.delivery:
        return bool(shown)
    path = Path(job.paths.delivery)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = pack_delivery({name: os.fsencode(value) for name, value in shown.items()})
        write_atomic(path, content, mode=0o600, is_durable=False)
    except OSError as error:
        raise PreconditionError(
            f"cannot write the secrets of the job to {path}: {error.strerror or error}",
            hint="the container needs a writable /dev/shm",
            code="beaker-start",
        ) from error
    return True


def remove_delivery_folder(folder: Path) -> None:
    """Remove the folder that held the secrets once it is empty; replicas on one machine may share it."""
    with contextlib.suppress(OSError, PreconditionError):
        delivery = JobDocument.read(folder / "job.json").paths.delivery
        if delivery:
            os.rmdir(os.path.dirname(delivery))


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that only the supervisor may see."""
    return {name: value for name, value in environ.items() if not name.startswith(SHOWN_PREFIX)}


def restart_clean(folder: Path, environ: Mapping[str, str]) -> None:
    """Restart the program in an environment without secrets; does not return."""
    argv = [sys.executable, "-I", "-S", sys.argv[0], "beaker", str(folder)]
    os.execve(sys.executable, argv, clean_environment(environ))


def _number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environ.get(name, "")
    try:
        return int(text) if text else otherwise
    except ValueError:
        raise _misfit(f"invalid number in {name}: `{text}`") from None


def _misfit(message: str) -> PreconditionError:
    hint = "launch it with windlass, whose experiments ask Beaker for replicas with a leader"
    return PreconditionError(message, hint=hint, code="beaker-start")
