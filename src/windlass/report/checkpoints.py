"""Checkpoints: committing them atomically, and finding the newest intact one."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import fsync_directory
from windlass.record import events
from windlass.record.frames import decode
from windlass.record.journal import SUFFIX
from windlass.record.manifest import FILE_SUFFIX, FOLDER_MANIFEST, commit_manifest, differences, read_manifest
from windlass.record.shapes import is_well_formed
from windlass.report.reporter import Reporter, current

__all__ = [
    "Saving",
    "begin_saving",
    "checkpoint",
    "checkpoint_dir",
    "held_checkpoints",
    "latest_checkpoint",
    "saving_ended",
    "sync_reports",
]

_HIDDEN = ".windlass-"


def checkpoint(path: str | os.PathLike[str], *, step: int) -> Path:
    """Commit a checkpoint that has been written to `path`, a folder or a file, and return the path. Blocking.

    Earlier reports are synced to disk first, then every file, then a manifest with sizes and sha256, then a record. So
    no report is lost that a run resumed from this checkpoint would not repeat. Only checkpoints with a manifest are
    resumed from, so a kill at any time loses at most this one. Call it on one rank, after all ranks have written their
    parts. Outside windlass it does nothing.

    Raises:
        NotFoundError: `path` does not exist.
        OSError: the disk is full, or the journal cannot be written.
    """
    reporter, where = current(), Path(os.path.abspath(os.fspath(path)))
    if reporter.is_active or reporter.has_checkpoints:
        request, started_at = reporter.requests.checkpoint, time.monotonic()
        reporter.sync()
        commit_manifest(where, step=int(step), at=time.time())
        reporter.saved(where, int(step), started_at)
        reporter.answered(request)
    return where


@dataclass(frozen=True)
class Saving:
    """Save in progress: the request that it answers, and the time when it began."""

    request: int
    started_at: float


def begin_saving() -> Saving:
    """Mark the beginning of a save, for code that writes the manifest of `windlass.record.manifest` itself."""
    return Saving(current().requests.checkpoint, time.monotonic())


def sync_reports() -> None:
    """Sync all reports to disk, for code that then writes a manifest itself; can be called from any thread.

    A run resumed from a checkpoint does not repeat the reports of earlier steps. Outside windlass it does nothing.

    Raises:
        OSError: the journal cannot be synced to disk.
    """
    current().sync()


def saving_ended(saving: Saving, path: str, *, step: int) -> None:
    """Record a checkpoint whose manifest the caller has written, without reading its files again.

    This can be called from any thread.

    Outside windlass it does nothing. A path may be a URL.

    Raises:
        OSError: the journal cannot be written.
    """
    reporter = current()
    if reporter.is_active or reporter.has_checkpoints:
        reporter.saved(path, step, saving.started_at)
        reporter.answered(saving.request)


@contextlib.contextmanager
def checkpoint_dir(*, step: int) -> Iterator[Path]:
    """Yield a new folder for a checkpoint, which is committed when the block ends without an error.

        with report.checkpoint_dir(step=step) as folder:
            torch.save(state, folder / "state.pt")

    It appears atomically in the checkpoints folder, as `step-<step>` or a name that matches the task's pattern.

    Raises:
        OSError: as for `checkpoint`; the unfinished folder is removed.
    """
    reporter, number = current(), int(step)
    request, started_at = reporter.requests.checkpoint, time.monotonic()
    place = reporter.place
    parent = Path(os.path.abspath(str(place.checkpoints)))
    final = parent / _folder_name(reporter.pattern, number)
    token = f"{_HIDDEN}{place.attempt}-{place.global_rank}-{os.getpid()}"
    fresh, aside = parent / f"{token}-new-{final.name}", parent / f"{token}-old-{final.name}"
    shutil.rmtree(str(fresh), ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        reporter.sync()
        commit_manifest(fresh, step=number, at=time.time())
        if final.exists():
            os.rename(str(final), str(aside))
        os.rename(str(fresh), str(final))
        fsync_directory(parent)
    except BaseException:
        shutil.rmtree(str(fresh), ignore_errors=True)
        raise
    reporter.saved(final, number, started_at)
    reporter.answered(request)
    shutil.rmtree(str(aside), ignore_errors=True)
    _remove_leftovers(parent, place.attempt)


def held_checkpoints() -> frozenset[str]:
    """Return the paths of this task's checkpoints that must stay, because their evaluation is not over. Blocking.

    Code that deletes its older checkpoints calls this on one rank before. It reads the journal. Without a task that has
    `evaluate: {of: THIS TASK}`, and outside windlass, it returns nothing at once.
    """
    reporter = current()
    if reporter.journal is None or not reporter.is_evaluated:
        return frozenset()
    from windlass.record.evaluation import held_paths, read_values  # lazy: few tasks are evaluated
    from windlass.record.journal import read_journal  # lazy: as above
    from windlass.record.state import fold  # lazy: as above

    facts = fold(read_journal(reporter.journal, skip=(events.METRICS, events.PROGRESS)))
    name = reporter.place.task
    tasks = [task for task in facts.tasks.values() if task.evaluates is not None and task.evaluates.of == name]
    named = {task.evaluates.best for task in tasks if task.evaluates is not None and task.evaluates.best}
    values = {metric: read_values(reporter.journal, name, metric) for metric in named}
    held = held_paths(tasks, facts.task(name), values)
    return frozenset(path if "://" in path else os.path.join(str(reporter.place.checkpoints), path) for path in held)


def _folder_name(pattern: str, step: int) -> str:
    """Return `step-<step>`, or a name made from the pattern if that is plain text with one `*`."""
    is_plain = pattern.count("*") == 1 and not set(pattern) & set("?[]/") and not pattern.startswith(".")
    return pattern.replace("*", str(step)) if is_plain else f"step-{step}"


def _remove_leftovers(parent: Path, attempt: int) -> None:
    """Remove unfinished checkpoints that earlier, killed attempts left behind."""
    for entry in parent.iterdir():
        number = entry.name[len(_HIDDEN) :].partition("-")[0]
        if entry.name.startswith(_HIDDEN) and number.isdigit() and int(number) < attempt:
            shutil.rmtree(str(entry), ignore_errors=True)


def latest_checkpoint() -> Path | None:
    """Return the path of the newest committed checkpoint that is intact, byte for byte, or None.

    Torn, changed and unfinished checkpoints are skipped. Reads the whole checkpoint once. Also None outside windlass, and
    for a task with `resume: none`.
    """
    reporter = current()
    if not reporter.is_resuming or not (reporter.is_active or reporter.has_checkpoints):
        return None
    for _, _, path in sorted(_candidates(reporter), reverse=True):
        if _is_whole(Path(path)):
            return Path(path)
    return None


def _is_whole(path: Path) -> bool:
    try:
        return not differences(path, read_manifest(path))
    except (OSError, NotFoundError, PreconditionError):
        return False


def _candidates(reporter: Reporter) -> list[tuple[int, float, str]]:
    """Return a (step, time, path) triple for each committed checkpoint, from the journal and from manifests on disk."""
    found: dict[str, tuple[int, float, str]] = {}
    for step, at, path in _journalled(reporter):
        found[path] = max(found.get(path, (step, at, path)), (step, at, path))
    for folder in _with_manifest(reporter.place.checkpoints):
        try:
            manifest = read_manifest(folder)
        except (OSError, NotFoundError, PreconditionError):
            continue
        found[str(folder)] = (manifest.step, manifest.at, str(folder))
    return list(found.values())


def _journalled(reporter: Reporter) -> Iterator[tuple[int, float, str]]:
    """Yield the checkpoints in the task's `checkpoint` records, without parsing millions of metrics."""
    if reporter.journal is None or not reporter.journal.is_dir():
        return
    needle = f'"kind":"{events.CHECKPOINT}"'.encode("ascii")
    for file in sorted(reporter.journal.glob(f"{reporter.place.task}.*{SUFFIX}")):
        with open(str(file), "rb") as lines:
            for line in lines:
                record = decode(line) if needle in line else None
                if record is None or record.kind != events.CHECKPOINT or not is_well_formed(record):
                    continue
                if record.data["task"] == reporter.place.task:
                    yield record.data["step"], record.at, record.data["path"]


def _with_manifest(folder: Path) -> Iterator[Path]:
    folder = Path(os.path.abspath(str(folder)))
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.endswith(FILE_SUFFIX):
            yield entry.with_name(entry.name[: -len(FILE_SUFFIX)])
        elif (entry / FOLDER_MANIFEST).is_file():
            yield entry
