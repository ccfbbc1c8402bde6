"""Folders of runs: creating them, finding them, and the paths in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.core.files import fsync_directory, write_atomic
from windlass.core.json_text import read_json
from windlass.core.names import is_run_id, nearest
from windlass.record import events
from windlass.record.journal import JournalReader
from windlass.record.state import RunFacts, fold
from windlass.runs.home import Home
from windlass.runs.recovery import complete

__all__ = ["RunFolder", "create", "experiment_of", "find", "run_ids"]

_NUM_LETTERS = 8
_FEWEST_LETTERS = 4
"""Minimum length of a partial id; a shorter one may accidentally match the wrong run."""
_NUM_LISTED = 8
_PARTS = ("journal", "jobs", "logs", "checkpoints", "out")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Folder of a run, with the paths in it and readers for its small files."""

    path: Path

    @property
    def id(self) -> str:
        """Return the run's id, which is the folder's name."""
        return self.path.name

    @property
    def journal(self) -> Path:
        """Return the path of the journal folder, which has one file per writer."""
        return self.path / "journal"

    @property
    def logs(self) -> Path:
        """Return the path of the folder with the logs, `<attempt>/<task>/<rank>.log`."""
        return self.path / "logs"

    @property
    def jobs(self) -> Path:
        """Return the path of the folder with `<task>-<k>/job.json` for each submission."""
        return self.path / "jobs"

    def job_folder(self, task: str, number: int) -> Path:
        """Return the path of one submission's folder."""
        return self.jobs / f"{task}-{number}"

    @property
    def code(self) -> Path:
        """Return the path of the run's checkout of the pinned code."""
        return self.path / "code"

    @property
    def mirror_file(self) -> Path:
        """Return the path of the list of pulled journal files; it exists if this folder mirrors a run at a site."""
        return self.path / "mirror.json"

    @property
    def heard_file(self) -> Path:
        """Return the path of the file whose modification time is that of the last contact with the run's site."""
        return self.path / "mirror.heard"

    def heard_at(self) -> float:
        """Return the wall time of the last contact with the run's site; 0 if there was none."""
        try:
            return self.heard_file.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    @property
    def is_mirrored(self) -> bool:
        """Return whether the run is at a site that shares no files with this machine."""
        return self.mirror_file.exists()

    def out(self, task: str) -> Path:
        """Return the path of a task's output folder."""
        return self.path / "out" / task

    def checkpoints(self, task: str) -> Path:
        """Return the path of a task's checkpoint folder."""
        return self.path / "checkpoints" / task

    def plan(self) -> dict[str, object]:
        """Return the content of plan.json.

        Raises:
            NotFoundError: there is no plan.
            PreconditionError: it is damaged.
        """
        return self._read("plan.json")

    def provenance(self) -> dict[str, object]:
        """Return the provenance record. Raises the same errors as `plan`."""
        return self._read("provenance.json")

    def facts(self) -> RunFacts:
        """Return the facts in the journal, except metrics; an empty journal gives empty facts.

        An end that is missing in the journal is restored from other files and noted in `facts.damage`.
        """
        reader = JournalReader(self.journal, skip=(events.METRICS,))
        facts = fold(reader.poll())
        complete(self.path, facts, reader)
        facts.num_damaged += reader.num_damaged
        return facts

    def _read(self, name: str) -> dict[str, object]:
        try:
            content = read_json(self.path / name)
        except FileNotFoundError as error:
            raise NotFoundError(f"run {self.id} has no {name}", code="run-damaged") from error
        except ValueError as error:
            raise PreconditionError(f"{self.path / name} is damaged: {error}", code="run-damaged") from error
        if not isinstance(content, dict):
            raise PreconditionError(f"{self.path / name} is damaged: not an object", code="run-damaged")
        return content


def create(home: Home, run_id: str, files: Mapping[str, bytes] | None = None) -> RunFolder:
    """Create a run's folder with its first files, atomically.

    Raises:
        PreconditionError: a run with this id exists, or the home is not writable.
    """
    final = home.runs / run_id
    fresh = home.runs / f".{run_id}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        fresh.mkdir(mode=0o700)
        for part in _PARTS:
            (fresh / part).mkdir(mode=0o700)
        for name, content in (files or {}).items():
            write_atomic(fresh / name, content, syncs_folder=False)  # synced below
        fsync_directory(fresh)
        os.rename(fresh, final)  # fails if the target exists, because a run's folder is never empty
        fsync_directory(final.parent)
    except OSError as error:
        if final.exists():
            raise PreconditionError(f"run {run_id} already exists", code="already-exists") from error
        raise PreconditionError(
            f"cannot create {final}: {error.strerror or error}",
            hint="free some space, or set WINDLASS_HOME to another folder",
            code="not-writable",
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return RunFolder(final)


def run_ids(home: Home) -> list[str]:
    """Return the ids of all runs, sorted."""
    with os.scandir(home.runs) as entries:
        return sorted(entry.name for entry in entries if is_run_id(entry.name) and entry.is_dir())


def experiment_of(run_id: str) -> str:
    """Return the experiment's name, which is part of a run's id."""
    return run_id[: -_NUM_LETTERS - 1]


def find(home: Home, ref: str) -> RunFolder:
    """Find the run that `ref` names.

    The reference is matched in this order: a full id, `last` (the newest run), an experiment's name (its newest run),
    the start of exactly one id, or at least four of the first or last letters of exactly one id's suffix.

    Raises:
        UsageError: several runs match; the message lists them.
        NotFoundError: no run matches; the hint names the closest id.
    """
    ids = run_ids(home)
    if ref in ids:
        return RunFolder(home.runs / ref)
    named = ids if ref == "last" else [run for run in ids if experiment_of(run) == ref]
    if named:
        return RunFolder(home.runs / _newest(home, named))
    for fits in (_begins, _letters_fit):
        found = [run for run in ids if ref and fits(run, ref)]
        if len(found) == 1:
            return RunFolder(home.runs / found[0])
        if found:
            raise _ambiguous(ref, found)
    raise _unknown(home, ref, ids)


def _begins(run_id: str, ref: str) -> bool:
    return run_id.startswith(ref)


def _letters_fit(run_id: str, ref: str) -> bool:
    if len(ref) < _FEWEST_LETTERS:
        return False
    return run_id.endswith(ref) or run_id[-_NUM_LETTERS:].startswith(ref)


def _newest(home: Home, ids: list[str]) -> str:
    return max(ids, key=lambda run: (_made_at(home.runs / run), run))


def _made_at(folder: Path) -> float:
    """Return when a run was created, from its plan, which is never rewritten."""
    for path in (folder / "plan.json", folder):
        try:
            return os.stat(path).st_mtime
        except FileNotFoundError:
            continue
    return 0.0


def _ambiguous(ref: str, found: list[str]) -> UsageError:
    rest = f" and {len(found) - _NUM_LISTED} more" if len(found) > _NUM_LISTED else ""
    message = f"{ref!r} matches {len(found)} runs: {', '.join(found[:_NUM_LISTED])}{rest}"
    return UsageError(message, hint="give more letters", code="ambiguous-name")


def _unknown(home: Home, ref: str, ids: list[str]) -> NotFoundError:
    if ref and "/" not in ref and (home.sweeps / ref / "journal").is_dir():
        hint = f"windlass sweep show {ref}; `windlass sweep` has the verbs stop, resume, why and best for it"
        return NotFoundError(f"{ref!r} is a sweep, not a run", hint=hint, code="run-not-found")
    if not ids:
        return NotFoundError(
            f"no run {ref!r}: there are no runs yet", hint="windlass launch FILE starts one", code="run-not-found"
        )
    if any(run.endswith(ref) or run[-_NUM_LETTERS:].startswith(ref) for run in ids if ref):
        hint = f"give at least {_FEWEST_LETTERS} of its last letters, or the beginning of its id"
        return NotFoundError(f"no run {ref!r}", hint=hint, code="run-not-found")
    closest = nearest(ref, [*{experiment_of(run) for run in ids}, *ids])
    hint = f"did you mean `{closest}`?" if closest else "`windlass ps` lists them"
    return NotFoundError(f"no run {ref!r}", hint=hint, code="run-not-found")
