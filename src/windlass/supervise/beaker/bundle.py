"""Job submitted as a Beaker dataset: unpacks the dataset, and copies the job's records to the results.

A bundle consists of `windlass.pyz`, `bundle.json` and the messages that a client would send over ssh, in order
(`windlass.supervise.remote.server`). The first replica executes them; repeating one changes nothing. If the job's folder
is on storage that outlives the job, the first replica also copies new content of the run's folder to the results, which
Beaker uploads as they grow; otherwise the job's folder is in the results.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from windlass.core.errors import PreconditionError
from windlass.core.files import write_atomic
from windlass.core.json_text import read_json
from windlass.record.journal import SUFFIX
from windlass.supervise.beaker.replica import clean_environment, hand_over_secrets
from windlass.supervise.logs.tee import run_watched
from windlass.supervise.remote.framing import unpack
from windlass.supervise.remote.server import serve

__all__ = ["CONTENT", "RESULTS", "bundle_main", "copy_growth", "show_main"]

CONTENT = "bundle.json"
"""Contents of a bundle: `archive`, where the zipapp belongs, and `messages`, [command, file] in order."""

RESULTS = "windlass/runs"
"""Folder in the results that contains a folder for each run."""

_UNPACKED = "bundle.done"
_LOGS = ("logs/*/*/*.log", "logs/*/*/*.log.idx", "jobs/*/link-*.json")
_COPY_EVERY_S = 1.0
_PIECE_BYTES = 1 << 20
_POLL_S = 0.2
_LONGEST_UNPACK_S = 1800.0


def bundle_main(bundle: Path, folder: Path, results: Path, environ: Mapping[str, str]) -> int:
    """Become the supervisor of this replica once the job's folder exists; returns only on failure.

    Raises:
        PreconditionError: the bundle is damaged, there is no space for it, or it was not unpacked in half an hour.
    """
    os.umask(0o077)
    is_first = environ.get("BEAKER_REPLICA_RANK", "") in ("", "0")
    if is_first and not (folder / _UNPACKED).exists():
        unpack_bundle(bundle)
        (folder / _UNPACKED).touch()
    _wait_until_there(folder)
    hand_over_secrets(folder, environ)
    words = ["beaker", str(folder)]
    if is_first and results.resolve() not in folder.resolve().parents:
        words = ["beaker-show", str(folder), str(results)]
    os.execve(sys.executable, [sys.executable, "-I", "-S", sys.argv[0], *words], clean_environment(environ))


def unpack_bundle(bundle: Path) -> None:
    """Execute the messages in a bundle. Idempotent; raises PreconditionError for the first one that fails."""
    content = read_json(bundle / CONTENT)
    archive = Path(content["archive"])
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(archive, (bundle / "windlass.pyz").read_bytes())
    for command, name in content["messages"]:
        answer = io.BytesIO()
        with open(str(bundle / name), "rb") as message:
            serve(command, message, answer)
        reply: dict[str, Any] = unpack(answer.getvalue())[0]
        if "error" in reply:
            error = reply["error"]
            raise PreconditionError(error["message"], hint=error["hint"], code=error["code"])


def _wait_until_there(folder: Path) -> None:
    deadline = time.monotonic() + _LONGEST_UNPACK_S
    while not (folder / _UNPACKED).exists():
        if time.monotonic() > deadline:
            hint = "every replica needs the same storage: check `fs.shared` and `beaker.mounts` in the site profile"
            raise PreconditionError(
                f"the first replica did not create {folder} in time", hint=hint, code="beaker-start"
            )
        time.sleep(_POLL_S)


def show_main(folder: Path, results: Path, supervise: Callable[[], int]) -> int:
    """Run the supervisor in a child process and copy its files to the results; return its exit code."""
    copies = _Copies(folder.parent.parent, results / RESULTS / folder.parent.parent.name)
    code = run_watched(copies, supervise)
    with contextlib.suppress(OSError):  # if the results folder is full, the copy is lost, but never the run
        copy_growth(copies.run, copies.target)
        copy_outputs(copies.run, copies.target)
    return code


class _Copies:
    """Copies of a run's files, refreshed while the supervisor runs."""

    def __init__(self, run: Path, target: Path) -> None:
        self.run, self.target = run, target
        self._again_at = 0.0

    def look(self) -> None:
        """Copy new content, at most once a second."""
        if time.monotonic() < self._again_at:
            return
        with contextlib.suppress(OSError):  # as above
            copy_growth(self.run, self.target)
        self._again_at = time.monotonic() + _COPY_EVERY_S


def copy_growth(run: Path, target: Path) -> int:
    """Append new content of a run's logs and journal to their copies; return the number of bytes.

    The size of the journal is read before the logs are copied, so that a reader of an end finds the output before it.
    """
    journal = [(path, path.stat().st_size) for path in sorted((run / "journal").glob(f"[!.]*{SUFFIX}"))]
    logs = [(path, path.stat().st_size) for pattern in _LOGS for path in sorted(run.glob(pattern))]
    return sum(_grow(path, target / path.relative_to(run), size) for path, size in (*logs, *journal))


def _grow(path: Path, copy: Path, size: int) -> int:
    copy.parent.mkdir(parents=True, exist_ok=True)
    with open(str(path), "rb") as source, open(str(copy), "ab") as sink:
        begin = sink.tell()
        source.seek(begin)
        sink.writelines(source.read(min(_PIECE_BYTES, size - start)) for start in range(begin, size, _PIECE_BYTES))
        return max(0, size - begin)


def copy_outputs(run: Path, target: Path) -> None:
    """Copy outputs and their manifests, skipping unchanged files."""
    for path in sorted((run / "out").rglob("*")):
        copy = target / path.relative_to(run)
        if not path.is_file() or (copy.exists() and copy.stat().st_mtime_ns == path.stat().st_mtime_ns):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(str(path), str(copy))
