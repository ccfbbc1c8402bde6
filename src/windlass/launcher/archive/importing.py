"""Atomic import of an archive as a run in this home; every byte is checked."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import fsync_directory
from windlass.core.json_text import read_json
from windlass.core.phrases import size
from windlass.core.tree import remove_tree
from windlass.launcher.archive.checks import check_arrived
from windlass.launcher.archive.exporting import FILES, FOLDERS, PACK
from windlass.launcher.client import PLACES
from windlass.runs.archive import contents as contents_of
from windlass.runs.archive.contents import ROCRATE, Contents
from windlass.runs.archive.origin import import_facts, write_import_facts
from windlass.runs.archive.stream import damaged, open_for_reading
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, run_ids

__all__ = ["import_run"]

_EMPTY = ("journal", "jobs", "logs", "checkpoints", "out")


def import_run(path: Path, home: Home) -> RunFolder:
    """Import an archived run under its original id, atomically. Blocking.

    The run can be shown, verified, compared and rerun, but not resumed: only its record is imported.

    Raises:
        NotFoundError: no such file.
        PreconditionError: the archive is damaged or was modified, or a run with that id exists.
        OSError: there is not enough space, or access is denied.
    """
    if not path.is_file():
        raise NotFoundError(f"no such file: {path}", hint="windlass archive import FILE", code="file-not-found")
    fresh = home.runs / f".import.{os.getpid()}.{os.urandom(4).hex()}"  # a name that `gc` recognizes
    fresh.mkdir(mode=0o700)
    try:
        with open_for_reading(path, fresh / "plain.tar") as archive:
            contents = contents_of.read_contents(path, archive)
            _check_names(path, contents)
            _check_room(contents, home)
            contents_of.take_out(path, archive, contents, fresh / "in")
        run = RunFolder(_shaped(fresh, contents))
        check_arrived(run, path, home, contents, pack=fresh / "in" / PACK)
        return _take_over(run, home)
    finally:
        remove_tree(fresh)


def _check_names(path: Path, contents: Contents) -> None:
    """Raise if the archive has files that an export never writes, since other commands might interpret them."""
    for item in contents.items:
        first, _, rest = item.path.partition("/")
        part, _, below = rest.partition("/")
        is_known = first in (ROCRATE, PACK) and not rest
        is_known |= first == "run" and (part in FOLDERS if below else part in FILES)
        is_known |= first == "data" and bool(below)
        if not is_known or (item.link and not below):
            raise damaged(path, f"unexpected file {item.path!r}")


def _check_room(contents: Contents, home: Home) -> None:
    if contents.run_id in run_ids(home):
        same = import_facts(RunFolder(home.runs / contents.run_id)).get("digest") == contents.digest
        message = f"run {contents.run_id} already exists" + (", imported from this archive" if same else "")
        hint = f"look at it with `windlass show {contents.run_id}`, or import into another WINDLASS_HOME"
        raise PreconditionError(message, hint=hint, code="already-exists")
    free = shutil.disk_usage(home.runs).free
    if contents.num_bytes > free:
        message = f"the archive needs {size(contents.num_bytes)}, and {home.runs} has {size(free)} free"
        raise PreconditionError(
            message, hint="free space with `windlass gc`, or use another WINDLASS_HOME", code="disk-full"
        )


def _shaped(fresh: Path, contents: Contents) -> Path:
    """Arrange the files as a run's folder, which still has a hidden name."""
    folder = fresh / contents.run_id
    try:
        os.rename(fresh / "in" / "run", folder)
    except FileNotFoundError as error:
        raise PreconditionError("the archive contains no run", code="archive-damaged") from error
    for name in _EMPTY:
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    data = fresh / "in" / "data"
    if data.is_dir():
        os.rename(data, folder / "data")
    crate = fresh / "in" / ROCRATE
    if crate.exists():
        os.rename(crate, folder / ROCRATE)
    places = folder / PLACES
    facts: dict[str, object] = {
        "at": time.time(),
        "digest": contents.digest,
        "left_out": dict(contents.left_out),
        "written_by": contents.facts.get("windlass", ""),
    }
    if places.exists():
        facts |= {"places": read_json(places), "places_at": int(places.stat().st_mtime)}
        places.unlink()
    write_import_facts(folder, facts)
    return folder


def _take_over(run: RunFolder, home: Home) -> RunFolder:
    final = home.runs / run.id
    for root, _, _ in os.walk(run.path):
        fsync_directory(Path(root))
    try:
        os.rename(run.path, final)
    except OSError as error:
        if not final.exists():
            raise
        raise PreconditionError(f"run {run.id} already exists", code="already-exists") from error
    fsync_directory(final.parent)
    return RunFolder(final)
