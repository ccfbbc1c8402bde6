"""`windlass.pyz data-build`: runs a command that prepares data, and publishes its output; once per key.

    data-build --place=<state>/data/built/<key> --name=NAME --record=FILE --label=EXPERIMENT.NAME -- COMMAND ...

The command writes to `.<key>.<generation>/data`. When it succeeds, its files are synced to disk, their manifest is
written beside them, and the whole generation is renamed to `<key>`. Other processes, on this or another machine, wait
until then; a failed or killed build is never published under that name. See `build_once`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from windlass.core.errors import PreconditionError
from windlass.core.files import lock, write_json
from windlass.core.json_text import read_json
from windlass.record.causes import EXIT_DO_NOT_RETRY, EXIT_RESUMABLE, Cause
from windlass.record.manifest import commit_manifest
from windlass.supervise.builds.built_data import (
    CONTENT,
    GENERATION,
    GENERATION_NAME,
    LAST,
    content_digest,
    quick_difference,
)
from windlass.supervise.builds.once import READY, Ready, beside, build_once, find_ready
from windlass.supervise.launchers.wrapped import WrappedCommand
from windlass.supervise.replica.exit_report import log_line, report_end
from windlass.supervise.replica.termination import targets_of

__all__ = ["data_build_main"]

_CANNOT_RUN = 127
_SIGNALLED = 128
_INSIDE = "WINDLASS_INSIDE_"
_NO_ROOM_BYTES = 64 * 1024


def data_build_main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Build the data unless it exists; return 0, or the command's exit code. Blocking."""
    wrapped, environ = WrappedCommand.parse(arguments), _with_own_variables(environ)
    place, name = Path(wrapped.options["place"]), wrapped.options["name"]
    build = _Build(wrapped, place, environ)
    signal.signal(signal.SIGTERM, build.on_terminate)
    try:
        _drop_damaged(place)
        ready = build_once(place, build.make, log_line)
    except _CommandError as error:
        log_line(str(error))
        return error.code
    except PreconditionError as error:
        return report_end(environ, Cause.DATA_FAILED, f"data {name}: {error.message}")
    except OSError as error:
        log_line(f"data {name}: {error}")
        return 1
    _record(ready, wrapped, environ)
    return 0


def _with_own_variables(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables, adding those that windlass passes into a container under a prefix."""
    names = ("WINDLASS_RUN", "WINDLASS_JOURNAL", "WINDLASS_TASK", "WINDLASS_RANK", "WINDLASS_ATTEMPT")
    inside = {name: environ[_INSIDE + name] for name in names if _INSIDE + name in environ}
    return {**inside, **environ}


class _CommandError(Exception):
    """Failure of the build command; `code` is its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _Build:
    """Run of the command that builds the data."""

    def __init__(self, wrapped: WrappedCommand, place: Path, environ: Mapping[str, str]) -> None:
        self._wrapped, self._place, self._environ = wrapped, place, environ
        self._child: subprocess.Popen[bytes] | None = None
        self._is_starting = False
        self._received = 0
        self._refused_before = _read_refusal(place)

    def on_terminate(self, number: int, frame: FrameType | None) -> None:
        """Pass SIGTERM on to the command; exit if no command is running."""
        child = self._child
        if self._is_starting:  # the command may be running already, but its pid is not known yet
            self._received = number
            return
        if child is None or child.poll() is not None:
            _leave(number)
        for pid in targets_of(child.pid, is_shell=self._wrapped.command[:2] == ("/bin/sh", "-c")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def make(self, folder: Path) -> dict[str, object]:
        """Build the data in `folder`; return facts about the build."""
        self._check_refusal()
        name, content = self._wrapped.options["name"], folder / CONTENT
        content.mkdir()
        started = time.time()
        self._run(folder)
        _check_content(name, content)
        manifest = commit_manifest(content, is_beside=True)
        _refusal(self._place).unlink(missing_ok=True)
        return {
            "proof": f"{CONTENT}.manifest.json",
            "name": name,
            "digest": content_digest(content, manifest),
            "size_bytes": manifest.num_bytes,
            "num_files": len(manifest.entries),
            "run": self._environ.get("WINDLASS_RUN", ""),
            "host": os.uname().nodename,
            "command": list(self._wrapped.command),
            "started": started,
            "ended": time.time(),
        }

    def _run(self, folder: Path) -> None:
        old = f".{self._place.name}.{GENERATION}"
        command = [word.replace(old, folder.name) for word in self._wrapped.command]
        environ = {key: value.replace(old, folder.name) for key, value in self._environ.items()}
        environ[GENERATION_NAME] = folder.name
        self._is_starting = True
        try:
            self._child = subprocess.Popen(command, env=environ)
        except OSError as error:
            raise _CommandError(f"`{command[0]}` cannot be executed: {error.strerror}", _CANNOT_RUN) from error
        finally:
            self._is_starting = False
        if self._received:
            self.on_terminate(self._received, None)
        code = self._child.wait()
        if code:
            raise self._failure(code)

    def _failure(self, code: int) -> _CommandError:
        """Classify the command's failure, and notify waiting processes if the command itself is at fault."""
        message = f"data {self._wrapped.options['name']} could not be built: {_end_text(code)}"
        found = os.statvfs(str(self._place.parent))
        if found.f_bavail * found.f_frsize < _NO_ROOM_BYTES:
            message = f"{message}: no space left on device for {self._place.parent}"
            report_end(self._environ, Cause.DISK_FULL, message, code=code if code > 0 else _SIGNALLED - code)
        elif 0 < code < _SIGNALLED and code not in (EXIT_RESUMABLE, EXIT_DO_NOT_RETRY):
            refusal = {
                "message": message,
                "code": code,
                "run": self._environ.get("WINDLASS_RUN", ""),
                "at": time.time(),
            }
            with contextlib.suppress(OSError):  # waiting processes then try it themselves
                write_json(_refusal(self._place), refusal)
        return _CommandError(message, code if code > 0 else _SIGNALLED - code)

    def _check_refusal(self) -> None:
        """Raise if the command failed for another run while this one waited; a later run tries again."""
        refusal = _read_refusal(self._place)
        if refusal and refusal != self._refused_before:
            run = refusal.get("run")
            raise _CommandError(f"{refusal['message']} (in run {run}, which this one waited for)", int(refusal["code"]))


def _refusal(place: Path) -> Path:
    """Return the path of the file that tells waiting processes about the last failure."""
    return beside(place, ".refused")


def _read_refusal(place: Path) -> dict[str, Any]:
    try:
        refusal = read_json(_refusal(place))
    except (OSError, ValueError):
        return {}
    return refusal if isinstance(refusal, dict) else {}


def _leave(number: int) -> NoReturn:
    raise SystemExit(128 + number)


def _end_text(code: int) -> str:
    return f"its command exited with code {code}" if code > 0 else f"{signal.Signals(-code).name} killed its command"


def _check_content(name: str, content: Path) -> None:
    """Raise PreconditionError if a link points outside the folder, or if the folder is empty."""
    is_empty = True
    for root, folders, names in os.walk(str(content)):
        for each in (*folders, *names):
            full = os.path.join(root, each)
            if os.path.islink(full):
                target = os.path.realpath(full)
                is_inside = target.startswith(os.path.realpath(str(content)) + os.sep)
                if os.path.isabs(os.readlink(full)) or not is_inside:
                    raise PreconditionError(
                        f"its command created the link {os.path.relpath(full, str(content))}, which points outside of ${{out}}",
                        hint="copy the file instead",
                        code="special-file",
                    )
            is_empty = is_empty and each in folders
    if is_empty:
        raise PreconditionError(
            "its command exited with 0 but wrote no file to ${out}",
            hint=f"pass ${{out}} to the command of data.{name}.build",
            code="build-failed",
        )


def _drop_damaged(place: Path) -> None:
    """Remove the ready marker of a finished folder whose files changed, so that it is rebuilt."""
    if find_ready(place) is None or not quick_difference(place):
        return
    with lock(beside(place, ".lock")):
        problem = quick_difference(place) if find_ready(place) is not None else ""
        if problem:
            log_line(f"the existing build is damaged ({problem}); rebuilding it")
            os.chmod(str(place), stat.S_IRWXU)
            (place / READY).unlink()


def _record(ready: Ready, wrapped: WrappedCommand, environ: Mapping[str, str]) -> None:
    """Record the result for the run's other tasks, and the size of the data for the next plan."""
    notes = ready.notes
    verb = "exists" if ready.is_hit else "was built"
    digest, size = str(notes.get("digest", "")), notes.get("size_bytes", 0)
    files = "1 file" if notes.get("num_files") == 1 else f"{notes.get('num_files')} files"
    log_line(f"data {notes.get('name')} {verb}: {files}, {size} bytes, sha256:{digest[:12]}")
    record = Path(wrapped.options["record"])
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, {**notes, "key": ready.folder.name, "is_hit": ready.is_hit})
    if ready.is_hit or not wrapped.options.get("label"):
        return
    last = ready.folder.parent / LAST
    with contextlib.suppress(OSError):  # only the size in the next plan
        last.mkdir(exist_ok=True)
        write_json(last / f"{wrapped.options['label']}.json", {"size_bytes": size, "num_files": notes.get("num_files")})
