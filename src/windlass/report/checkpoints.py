"""Checkpoints: committed as a whole, found again, never a torn one."""

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
    "latest_checkpoint",
    "saving_ended",
    "sync_reports",
]

_HIDDEN = ".windlass-"


def checkpoint(path: str | os.PathLike[str], *, step: int) -> Path:
    """Commit a checkpoint that has been written to `path`, a folder or a file. Blocking; returns the path.

    What was reported before is brought to the disk, then every file, then a manifest with sizes and sha256, then a record.
    So no report is lost that what goes on from here would not make again. Only a checkpoint with its
    manifest is ever resumed from, so a kill at any moment costs at most this one. Call it on one rank, after all have
    written their parts. Outside windlass it does nothing.

    Raises:
        NotFoundError: there is nothing at `path`.
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
    """A save that began: the request it answers, and when that was."""

    request: int
    started_at: float


def begin_saving() -> Saving:
    """Note that a save begins, for code that writes the manifest of `windlass.record.manifest` itself."""
    return Saving(current().requests.checkpoint, time.monotonic())


def sync_reports() -> None:
    """Bring what was reported so far to the disk: before a manifest that code writes itself, from any thread.

    What goes on from a checkpoint does not make the reports of the steps before it again. Outside windlass it does nothing.

    Raises:
        OSError: the journal cannot be brought to the disk.
    """
    current().sync()


def saving_ended(saving: Saving, path: str, *, step: int) -> None:
    """Record a checkpoint whose manifest was written by its maker, so that nothing is read again. From any thread.

    Outside windlass it does nothing. A path may be an URL.

    Raises:
        OSError: the journal cannot be written.
    """
    reporter = current()
    if reporter.is_active or reporter.has_checkpoints:
        reporter.saved(path, step, saving.started_at)
        reporter.answered(saving.request)


@contextlib.contextmanager
def checkpoint_dir(*, step: int) -> Iterator[Path]:
    """A fresh folder to write a checkpoint to, committed when the block ends without an error.

        with report.checkpoint_dir(step=step) as folder:
            torch.save(state, folder / "state.pt")

    It appears in the checkpoints folder as `step-<step>` (or after the task's pattern) with all its content at once.

    Raises:
        OSError: as `checkpoint`; the unfinished folder is removed.
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


def _folder_name(pattern: str, step: int) -> str:
    """`step-<step>`, or what the pattern says where it is plain text around one `*`."""
    is_plain = pattern.count("*") == 1 and not set(pattern) & set("?[]/") and not pattern.startswith(".")
    return pattern.replace("*", str(step)) if is_plain else f"step-{step}"


def _remove_leftovers(parent: Path, attempt: int) -> None:
    """Remove what killed attempts before this one left half written."""
    for entry in parent.iterdir():
        number = entry.name[len(_HIDDEN) :].partition("-")[0]
        if entry.name.startswith(_HIDDEN) and number.isdigit() and int(number) < attempt:
            shutil.rmtree(str(entry), ignore_errors=True)


def latest_checkpoint() -> Path | None:
    """The newest committed checkpoint whose every byte is as it was committed, or None.

    A torn, changed or unfinished one is passed over for the one before it. Reads the whole checkpoint once. None too
    outside windlass and where the task says `resume: none`.
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
    """(step, time, path) of everything that was ever committed, by the journal or by a manifest on the disk."""
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
    """From the task's `checkpoint` records; other lines, metrics by the million, are not even parsed."""
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
