"""A replica that Beaker started: who it is, which start of its gang it belongs to, and its secrets out of plain sight.

Beaker starts all replicas of a task together, and after a preemption once more, as new jobs of the same tasks; each
such start is an incarnation, named after the job of the first replica. What stood in variables for the supervisor
alone goes into a file in the container's memory, and the program starts itself anew without them: nothing of them is
left where `/proc/PID/environ` shows it.
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
"""Before the name of a secret: the variable in which Beaker shows it to the supervisor, and to nothing of the user's."""

_ONE_LINK = 1
_LEADER = "BEAKER_LEADER_REPLICA_JOB_ID"
_WORKLOAD = ("BEAKER_WORKLOAD_ID", "BEAKER_EXPERIMENT_ID")


@dataclass(frozen=True)
class BeakerStart:
    """This replica of this start, and where its logs are."""

    rank: int
    incarnation: Incarnation
    task: str
    logs: Path


def read_start(folder: Path, environ: Mapping[str, str]) -> BeakerStart | None:
    """Who this replica is; None where its experiment has nothing to do with the job. Idempotent.

    Raises:
        PreconditionError: Beaker's variables do not fit the job (`beaker-start`); or job.json cannot be read.
    """
    job = JobDocument.read(folder / "job.json")
    rank, count = _number(environ, "BEAKER_REPLICA_RANK", 0), _number(environ, "BEAKER_REPLICA_COUNT", 1)
    if count != job.num_replicas or not 0 <= rank < count:
        raise _misfit(f"Beaker says that this is replica {rank} of {count}, and the job has {job.num_replicas}")
    if count > 1 and not environ.get(_LEADER):
        raise _misfit(f"{_LEADER} is not set, so the replicas of one start cannot be told from those of another")
    incarnation = enter_start(folder, environ)
    return None if incarnation is None else BeakerStart(rank, incarnation, job.task, Path(job.run_dir) / "logs")


def enter_start(job_folder: Path, environ: Mapping[str, str]) -> Incarnation | None:
    """This start of the job; None when another experiment is that job already. Idempotent.

    Every replica calls it, and the first to come writes the files; no rank is special.

    Raises:
        PreconditionError: this is no job of Beaker's (`beaker-start`).
    """
    workload = next((environ[name] for name in _WORKLOAD if environ.get(name)), "")
    leader = environ.get(_LEADER) or environ.get("BEAKER_JOB_ID", "")
    if not workload or not leader:
        raise _misfit(f"{_WORKLOAD[0]} or BEAKER_JOB_ID is not set: Beaker did not start this")
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
    """How many starts there were before; the first replica of each takes the next number."""
    for number in itertools.count():
        path = job_folder / f"start-{number}.json"
        write_new(path, json.dumps({"id": leader}).encode())
        if read_json(path)["id"] == leader:
            return number
    raise AssertionError  # numbers do not end


def hand_over_secrets(folder: Path, environ: Mapping[str, str]) -> bool:
    """Put secrets that Beaker shows in variables where the supervisor reads them; returns whether there were any.

    Raises:
        PreconditionError: they cannot be written where no disk keeps them (`beaker-start`).
    """
    shown = {name[len(SHOWN_PREFIX) :]: value for name, value in environ.items() if name.startswith(SHOWN_PREFIX)}
    job = JobDocument.read(folder / "job.json")
    if not shown or not job.delivery:
        return bool(shown)
    path = Path(job.delivery)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = pack_delivery({name: os.fsencode(value) for name, value in shown.items()})
        write_atomic(path, content, mode=0o600, is_durable=False)
    except OSError as error:
        raise PreconditionError(
            f"the secrets of the job cannot be kept at {path}: {error.strerror or error}",
            hint="the container needs a /dev/shm that it may write to",
            code="beaker-start",
        ) from error
    return True


def remove_delivery_folder(folder: Path) -> None:
    """Remove the folder of the secrets once they are gone from it; replicas of one machine may share its memory."""
    with contextlib.suppress(OSError, PreconditionError):
        delivery = JobDocument.read(folder / "job.json").delivery
        if delivery:
            os.rmdir(os.path.dirname(delivery))


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The same without what was meant for the supervisor alone."""
    return {name: value for name, value in environ.items() if not name.startswith(SHOWN_PREFIX)}


def restart_clean(folder: Path, environ: Mapping[str, str]) -> None:
    """Become the same program in an environment without secrets; does not return."""
    argv = [sys.executable, "-I", "-S", sys.argv[0], "beaker", str(folder)]
    os.execve(sys.executable, argv, clean_environment(environ))


def _number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environ.get(name, "")
    try:
        return int(text) if text else otherwise
    except ValueError:
        raise _misfit(f"{name} is `{text}`, and no number") from None


def _misfit(message: str) -> PreconditionError:
    hint = "launch it with windlass: its experiments ask Beaker for replicas with a leader"
    return PreconditionError(message, hint=hint, code="beaker-start")
