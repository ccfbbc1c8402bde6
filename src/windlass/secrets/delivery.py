"""Delivery of a run's secrets to its job, and removal of old deliveries.

The file is in a memory file system, if that outlives the user's login: a login manager (systemd-logind) empties the
runtime folder and /dev/shm when the user logs out, unless lingering is enabled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from windlass.core.errors import InternalError
from windlass.core.files import write_atomic
from windlass.supervise.remote.delivery import check_private, delivery_token, pack_delivery, remove_delivery

__all__ = ["deliver", "delivery_folders", "sweep_deliveries"]

_TOKEN = re.compile(r"[A-Za-z0-9_-]{8,}\Z")
_FIRST_LOGIN_UID = 1000  # logind keeps the files of system users
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder below is checked to be private
_LOGIND_USERS = Path("/run/systemd/users")
_LINGERING = Path("/var/lib/systemd/linger")


def deliver(values: Mapping[str, bytes], token: str, home: Path, *, folder: Path | None = None) -> Path:
    """Write a run's secrets to a private file and return its path.

    Record the run first: a sweep removes the files of runs that it does not find.

    Args:
        token: token of the run, used as the file name.
        home: WINDLASS_HOME, for machines without a memory file system.
        folder: folder to use for jobs on machines that share only this folder.

    Returns:
        The path of the file, for `job.json`.
    """
    if not _TOKEN.match(token):
        raise InternalError(f"invalid delivery token `{token}`")
    place = folder if folder is not None else _choose_folder(home)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(place)
    path = place / f"{token}.json"
    write_atomic(path, pack_delivery(values), mode=0o600)
    return path


def sweep_deliveries(is_live: Callable[[str], bool], home: Path) -> list[str]:
    """Remove the deliveries of runs that have ended; idempotent.

    Args:
        is_live: returns whether the run of a token may still need its secrets; True if unknown.

    Returns:
        The tokens whose files were removed.
    """
    removed = set()
    for folder in delivery_folders(home):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            for path in sorted(folder.iterdir()):
                token = delivery_token(path)
                if _TOKEN.match(token) and not is_live(token):
                    remove_delivery(path)
                    removed.add(token)
    return sorted(removed)


def delivery_folders(home: Path) -> list[Path]:
    """Return every folder that `deliver` may have used, in order of preference."""
    return [folder / _digest(home) for folder in _memory_folders()] + [home / "delivery"]


def _memory_folders() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime:
        yield Path(runtime) / "windlass"
    yield _SHARED_MEMORY / f"windlass-{os.geteuid()}"


def _digest(home: Path) -> str:
    """Return a key that identifies WINDLASS_HOME, so that a sweep ignores the runs of other homes."""
    return hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:8]


def _choose_folder(home: Path) -> Path:
    if _outlives_login():
        for folder in _memory_folders():
            if _is_usable(folder):
                return folder / _digest(home)
    return home / "delivery"


def _outlives_login() -> bool:
    uid = os.geteuid()
    if uid < _FIRST_LOGIN_UID or not (_LOGIND_USERS / str(uid)).exists():
        return True
    import getpass  # lazy: only needed with a login manager

    try:
        return (_LINGERING / getpass.getuser()).exists()
    except (KeyError, OSError):
        return False


def _is_usable(folder: Path) -> bool:
    """Return whether a folder is private and owned by this user; it is created if missing."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
