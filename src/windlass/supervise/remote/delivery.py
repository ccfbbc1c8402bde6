"""Delivery of a run's secrets to its job, in a 0600 file in a 0700 folder outside the run's folder.

`<folder>/<token>.json` has the values (in base64, so that grep does not find them); `<folder>/<token>.<NAME>` has one
value for code that needs a file. The client writes the first (windlass.secrets), the supervisor reads it and passes the
values to the user's processes; both are removed when the task has ended.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from windlass.core.errors import AccessError
from windlass.core.files import write_atomic
from windlass.core.json_text import read_json
from windlass.supervise.job import JobDocument

__all__ = [
    "check_private",
    "delivery_token",
    "pack_delivery",
    "read_delivery",
    "remove_delivery",
    "secret_values",
    "secret_variables",
]

_SCHEMA = 1


def secret_values(job: JobDocument) -> dict[str, bytes]:
    """Return the values of all of a job's secrets by name, for its redactor.

    Raises:
        AccessError: the delivery is gone, readable by others, damaged, or lacks a secret.
    """
    if not job.settings.secrets:
        return {}
    values = read_delivery(Path(job.paths.delivery))
    missing = sorted({use.name for use in job.settings.secrets} - set(values))
    if missing:
        raise AccessError(
            f"the job got no value for {', '.join(f'`{name}`' for name in missing)}",
            hint="launch again",
            code="secret-missing",
        )
    return {use.name: values[use.name] for use in job.settings.secrets}


def secret_variables(job: JobDocument) -> dict[str, str]:
    """Return the variables that pass the secrets to the user's processes: values, or paths of 0600 files.

    Idempotent.
    """
    variables = {}
    values = secret_values(job)
    for use in job.settings.secrets:
        if use.is_file:
            path = Path(job.paths.delivery).with_name(f"{delivery_token(Path(job.paths.delivery))}.{use.name}")
            write_atomic(path, values[use.name], mode=0o600, is_durable=False)
            variables[use.name] = str(path)
        else:
            variables[use.name] = os.fsdecode(values[use.name])
    return variables


def pack_delivery(values: Mapping[str, bytes]) -> bytes:
    """Return the content of a delivery file."""
    encoded = {name: base64.b64encode(value).decode() for name, value in values.items()}
    return json.dumps({"schema": _SCHEMA, "values": encoded}).encode()


def read_delivery(path: Path) -> dict[str, bytes]:
    """Return the values in a delivery file.

    Raises:
        AccessError: it is gone or damaged (`secret-missing`), or others can read it (`secret-exposed`).
    """
    try:
        check_private(path)
        content = read_json(path)
        return {str(name): base64.b64decode(value, validate=True) for name, value in content["values"].items()}
    except FileNotFoundError as error:
        raise AccessError(
            f"the secrets of this run are no longer at {path}",
            hint="secrets are removed when the run ends and when the machine restarts; launch again",
            code="secret-missing",
        ) from error
    except PermissionError as error:
        raise AccessError(
            f"no permission to read {path}", hint="run it as the user who launched", code="secret-exposed"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        # `from None`: a decoding error quotes what it could not decode
        raise AccessError(f"{path} is damaged", hint="launch again", code="secret-missing") from None


def remove_delivery(path: Path) -> None:
    """Overwrite and delete a delivery and the files made from it; idempotent."""
    token = delivery_token(path)
    for found in [path, *sorted(path.parent.glob(f"{token}.*")), *sorted(path.parent.glob(f".{token}.*.tmp"))]:
        _shred(found)


def delivery_token(path: Path) -> str:
    """Return the token of the run that a file in the delivery folder belongs to."""
    return path.name.lstrip(".").partition(".")[0]


def check_private(path: Path) -> None:
    """Raise AccessError if other users may read a file or folder, or if another user created it.

    Raises:
        AccessError: code `secret-exposed`, with the command that fixes it.
        FileNotFoundError: it does not exist.
    """
    found = os.stat(str(path))
    mode = "700" if stat.S_ISDIR(found.st_mode) else "600"
    if found.st_mode & 0o077:
        raise AccessError(
            f"{path} can be read by other users (mode {stat.S_IMODE(found.st_mode):03o})",
            hint=f"chmod {mode} {path}",
            code="secret-exposed",
        )
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise AccessError(
            f"{path} belongs to another user (uid {found.st_uid})", hint=f"remove {path}", code="secret-exposed"
        )


def _shred(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        with open(str(path), "r+b") as file:
            file.write(b"\0" * os.fstat(file.fileno()).st_size)
            file.flush()
            os.fsync(file.fileno())
        os.unlink(str(path))
