"""job.json: the one thing that goes into a job. Written by the client when it renders, read by every supervisor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError

__all__ = ["SCHEMA", "JobDocument", "Lease", "ReplicaCommand", "SecretUse"]

SCHEMA = 1


@dataclass(frozen=True)
class ReplicaCommand:
    """What one replica executes.

    `argv` and the values of `env` may hold `${leader.address}`, `${leader.port}`, `${rank}` and `${attempt}`; nothing
    else is replaced in the job, and a shell line sees them already replaced.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SecretUse:
    """A secret the user's processes get: as a variable, or as the path of a 0600 file in that variable."""

    name: str
    is_file: bool = False


@dataclass(frozen=True)
class Lease:
    """What the task takes of a machine that several runs share; empty folder: nothing is leased."""

    folder: str = ""
    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True)
class JobDocument:
    """Everything a supervisor needs to know; absolute paths, no secret values.

    Attributes:
        job: number of this submission of the task; an older one leaves before user code.
        token: in the environment of every process of this run on this machine (`WINDLASS_TOKEN`).
        is_shell: argv is a shell we wrapped around the user's line, so signals go to its children.
        env: variables for the user's processes; `path` and `python_path` are put in front of the inherited ones.
        after: tasks that must have succeeded before this one starts.
        per_job_s: walltime; an attempt ends itself before it has run so long, and the next one has as much; None for
            no limit.
        time_s: running time of the task, all attempts together, without the time between them; None for no limit.
        memory_bytes: limit per replica, enforced by the supervisor; 0 for none.
        delivery: file with the secret values, outside the run's folder; empty when there are none.
    """

    run: str
    task: str
    job: int
    token: str
    run_dir: str
    replicas: tuple[ReplicaCommand, ...]
    cwd: str
    is_shell: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    python_path: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    interrupted: int = 50
    failed: int = 0
    ready_timeout_s: float = 600.0
    grace_s: float = 30.0
    per_job_s: float | None = None
    time_s: float | None = None
    checkpoint_every_s: float | None = None
    checkpoint_pattern: str = ""
    is_resuming: bool = True
    stall_floor_s: float = 60.0
    is_stall_watched: bool = True
    memory_bytes: int = 0
    out: str = ""
    checkpoints: str = ""
    lease: Lease = field(default_factory=Lease)
    secrets: tuple[SecretUse, ...] = ()
    delivery: str = ""
    host_address: str = "127.0.0.1"
    schema: int = SCHEMA

    @property
    def num_replicas(self) -> int:
        """Size of the gang."""
        return len(self.replicas)

    def to_data(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> JobDocument:
        """Read job.json; raises PreconditionError when it is of a later version or broken."""
        try:
            data = json.loads(path.read_bytes())
            if data["schema"] != SCHEMA:
                raise PreconditionError(
                    f"{path} has schema {data['schema']}, this supervisor reads {SCHEMA}", code="job-schema"
                )
            data["replicas"] = tuple(ReplicaCommand(tuple(r["argv"]), r["env"]) for r in data["replicas"])
            data["secrets"] = tuple(SecretUse(**use) for use in data["secrets"])
            data["lease"] = Lease(**data["lease"])
            for key in ("path", "python_path", "after"):
                data[key] = tuple(data[key])
            return cls(**data)
        except (ValueError, KeyError, TypeError) as error:
            raise PreconditionError(f"{path} is not a job description: {error}", code="job-broken") from error
