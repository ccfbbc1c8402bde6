"""Hand the secrets of one run to its job, and clear away what no run needs any more.

The file is made in memory where one can be had that outlives the user's login; a login manager (systemd-logind)
empties both the runtime folder and /dev/shm of a user who logs out, unless lingering is on for them.
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
_FIRST_LOGIN_UID = 1000  # logind leaves the files of system users alone
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder below is checked to be ours alone
_LOGIND_USERS = Path("/run/systemd/users")
_LINGERING = Path("/var/lib/systemd/linger")


def deliver(values: Mapping[str, bytes], token: str, home: Path, *, folder: Path | None = None) -> Path:
    """Write the values for one run; record the run's intent before, or a sweep may take them away.

    Args:
        token: the run's; names the file.
        home: WINDLASS_HOME, for places that have no memory folder.
        folder: where to write instead, for a job on machines that share only this folder.

    Returns:
        The file, for `job.json`.
    """
    if not _TOKEN.match(token):
        raise InternalError(f"`{token}` cannot name a delivery")
    place = folder if folder is not None else _choose_folder(home)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(place)
    path = place / f"{token}.json"
    write_atomic(path, pack_delivery(values), mode=0o600)
    return path


def sweep_deliveries(is_live: Callable[[str], bool], home: Path) -> list[str]:
    """Remove deliveries of runs that have ended; idempotent.

    Args:
        is_live: whether the run with this token may still need its secrets; unknown means yes.

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
    """Every place where `deliver` may have put a file, the most wanted first."""
    return [folder / _digest(home) for folder in _memory_folders()] + [home / "delivery"]


def _memory_folders() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime:
        yield Path(runtime) / "windlass"
    yield _SHARED_MEMORY / f"windlass-{os.geteuid()}"


def _digest(home: Path) -> str:
    """Keeps the runs of one WINDLASS_HOME from being swept as the dead runs of another."""
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
    import getpass  # lazy: only where a login manager is

    try:
        return (_LINGERING / getpass.getuser()).exists()
    except (KeyError, OSError):
        return False


def _is_usable(folder: Path) -> bool:
    """Whether the folder is, or could be made, a folder of ours that nobody else can look into."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
