"""Control file and variables for user code: requests from the replica, and values that only the job knows."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

from windlass.core.files import write_atomic
from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.gang.messages import WriteControl
from windlass.supervise.job import JobDocument
from windlass.supervise.replica.environment import TOKEN_NAME

__all__ = ["ControlFile"]

_NUM_NAMES = 8


class ControlFile:
    """File with a replica's requests to its code, in a private folder on this machine; `report` reads it."""

    def __init__(self, job: JobDocument, rank: int, incarnation: Incarnation) -> None:
        self._job, self._rank, self._incarnation = job, rank, incarnation
        self._path = _folder(job, rank) / "control.json"

    def write(self, command: WriteControl) -> str:
        """Write a request; return why that failed, or ""."""
        content = {
            "stop": command.is_stop_wanted,
            "checkpoint": command.checkpoint,
            "deadline": command.deadline or None,
            "reason": command.reason,
        }
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(self._path.parent):
                raise PermissionError(errno.EPERM, "the folder belongs to another user")
            write_atomic(self._path, json.dumps(content).encode(), is_durable=False)
        except OSError as error:
            return f"cannot pass stop and save requests to the code through {self._path}: {error.strerror or error}"
        return ""

    def remove(self) -> None:
        """Remove the control file's folder."""
        import shutil  # lazy: 4 ms

        shutil.rmtree(str(self._path.parent), ignore_errors=True)

    def variables(self, gpus: str) -> dict[str, str]:
        """Return the variables that describe the job; `gpus` are the ids leased for the gang, comma separated."""
        ours = {
            "WINDLASS_JOURNAL": str(Path(self._job.paths.run_dir) / "journal"),
            "WINDLASS_CONTROL": str(self._path),
            "WINDLASS_CHECKPOINT_PATTERN": self._job.settings.checkpoint_pattern,
            "WINDLASS_RESUME": "1" if self._job.settings.is_resuming else "0",
            TOKEN_NAME: f"{self._job.token}.{self._rank}",
        }
        for variable, is_file in (("WINDLASS_SECRET_NAMES", False), ("WINDLASS_SECRET_FILES", True)):
            names = [use.name for use in self._job.settings.secrets if use.is_file is is_file]
            if names:
                ours[variable] = ",".join(names)
        if self._job.settings.checkpoint_every_s:
            ours["WINDLASS_CHECKPOINT_EVERY"] = f"{self._job.settings.checkpoint_every_s:g}"
        if self._job.lease.folder:
            ids = [gpu for gpu in gpus.split(",") if gpu]
            share = len(ids) // self._job.num_replicas
            ours["CUDA_VISIBLE_DEVICES"] = ",".join(ids[self._rank * share : (self._rank + 1) * share])
        if self._incarnation.name:
            ours["WINDLASS_LINK"] = str(self._incarnation.link)
        return ours


def _folder(job: JobDocument, rank: int) -> Path:
    """Return the path of the control file's folder, which is fixed for a replica and cannot be guessed by other users.

    All users of the machine can see the name, so one replica's name must not reveal other names. After the folder was
    removed, another user may create it before the next attempt begins; then another name is used.
    """
    root = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - the folder below is random and ours alone
    for number in range(_NUM_NAMES):
        path = Path(root, f"windlass-{os.getuid()}-{_name(job, rank, number)}")
        if not os.path.lexists(path) or _is_ours(path):
            break
    return path


def _name(job: JobDocument, rank: int, number: int) -> str:
    if job.num_replicas == 1 and number == 0:  # such a task has no connections, and a part of the token reveals nothing
        return f"{job.token[:12]}-{rank}"
    import hashlib  # lazy: OpenSSL takes 4 ms to import, but the connections of several replicas need it anyway

    return hashlib.sha256(f"windlass control {job.token}.{rank}.{number}".encode()).hexdigest()[:20]


def _is_ours(path: Path) -> bool:
    """Return whether a path is a folder that belongs to this user and that no other user may enter."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
