"""Atomic export of a run's folder to one file."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import fsync_directory, lock, sha256_file, write_json
from windlass.core.json_text import read_json
from windlass.core.phrases import count, size
from windlass.core.process import identify
from windlass.core.version import VERSION
from windlass.launcher.client import BILL, PLACES, PROVENANCE
from windlass.pin.code.packing import author_of, pack_commit
from windlass.pin.code.pinned import CodePin
from windlass.plan.plan import Plan
from windlass.record.state import RunFacts, State
from windlass.runs.archive import contents as contents_of
from windlass.runs.archive.contents import LIST, ROCRATE, Contents, Item
from windlass.runs.archive.origin import archived_data, import_facts, is_imported
from windlass.runs.archive.rocrate import metadata
from windlass.runs.archive.stream import check_name, member, open_for_writing
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

__all__ = ["FILES", "FOLDERS", "PACK", "Exported", "export_run"]

PACK = "code.pack"
FILES = ("plan.json", PROVENANCE, PLACES, "retention.json", BILL)
FOLDERS = ("journal", "jobs", "logs", "out", "code", "checkpoints")
"""Parts of a run's folder that are exported."""
_STAYS = (".lock", "submitted.json")
_LOCK_S = 30.0
_NUM_LISTED = 8
_PAUSES_S = (0.2, 1.0, 3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Archive that an export wrote.

    Attributes:
        sha256: digest of the file, for checking copies.
        left_out: parts of the run that are not in the archive, with the reason.
    """

    path: Path
    num_files: int
    num_bytes: int
    sha256: str
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Choice of optional parts for an archive, and the parts that are left out because they are at a site."""

    checkpoints: bool
    data: bool
    away: Mapping[str, str]
    secrets: bool


def export_run(
    run: RunFolder,
    home: Home,
    target: Path,
    *,
    checkpoints: bool = False,
    data: bool = False,
    with_secrets: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Write a finished run to an archive, atomically. Blocking; every file is read twice.

    Args:
        target: a file that does not exist yet; its name ends in `.tar.gz`, `.tar.zst` or `.tar`.
        checkpoints, data: include them.
        with_secrets: write the archive even if files contain values of secrets.
        log: called with a line about each step.

    Raises:
        PreconditionError: the run has not ended, the file exists, something changed during the export, or a file
            contains the value of a secret of this home (`archive-secrets`).
        AccessError: the vault cannot be opened, so the files cannot be searched for its values.
        NotFoundError: an output was removed at its site.
        OSError: there is not enough space, or access is denied.
    """
    check_name(target)
    target = target.absolute()
    if target.exists():
        hint = "choose another name with -o, or remove the file"
        raise PreconditionError(f"{target} already exists", hint=hint, code="already-exists")
    facts = run.facts()
    if not facts.state.is_terminal:
        hint = f"wait until it ends (windlass logs {run.id} --follow), or stop it: windlass stop {run.id}"
        raise PreconditionError(f"run {run.id} is {facts.state} and has not ended", hint=hint, code="run-active")
    away = _bring_outputs(run, home, facts)
    fresh = _fresh_beside(target)
    try:
        with lock(run.path / "reconcile.lock", timeout_s=_LOCK_S):
            wanted = _Wanted(checkpoints=checkpoints, data=data, away=away, secrets=with_secrets)
            contents = _packed(run, home, fresh / "archive", target.name, log, wanted)
        _place(fresh / "archive", target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Exported(
        path=target,
        num_files=len(contents.items),
        num_bytes=target.stat().st_size,
        sha256=sha256_file(target),
        left_out=contents.left_out,
    )


def _packed(run: RunFolder, home: Home, path: Path, name: str, log: Callable[[str], None], wanted: _Wanted) -> Contents:
    """Collect and write the files; repeat if an exiting supervisor wrote to the journal meanwhile."""
    for pause_s in (*_PAUSES_S, 0.0):
        try:
            contents = _gather(run, home, path.parent, wanted)
            log(f"{count(len(contents.items), 'file')}, {size(contents.num_bytes)}")
            if not wanted.secrets:
                _refuse_secrets(contents, home)
            _write(contents, path, name)
        except PreconditionError as error:
            if error.code != "archive-changed" or not pause_s:
                raise
            time.sleep(pause_s)
        else:
            break
    return contents


def _refuse_secrets(contents: Contents, home: Home) -> None:
    """Raise if a file contains a secret: a task can write its secrets to any file."""
    from windlass.launcher.archive.secret_search import find_secrets  # lazy: only an export needs these
    from windlass.secrets.lookup import open_secrets

    store = open_secrets(home.path)
    secrets = store.require(store.sources())
    found = find_secrets(contents.items, secrets) if secrets else {}
    if not found:
        return
    listed = [f"{path} contains {', '.join(names)}" for path, names in sorted(found.items())]
    more = f", and {len(listed) - _NUM_LISTED} more files contain secrets" if len(listed) > _NUM_LISTED else ""
    raise PreconditionError(
        f"the archive would contain secrets: {'; '.join(listed[:_NUM_LISTED])}{more}",
        hint=f"anyone with the archive could read them; to include them: windlass archive export {contents.run_id} --with-secrets",
        code="archive-secrets",
    )


def _bring_outputs(run: RunFolder, home: Home, facts: RunFacts) -> dict[str, str]:
    """Fetch a run's outputs from its site; return what is left out, by path in the archive."""
    if not run.is_mirrored:
        return {}
    from windlass.launcher.remote.mirror import mirror_of_run  # lazy: most runs are on this machine

    mirror, away = mirror_of_run(run, home), {"run/checkpoints": "at the site"}
    for name, task in facts.tasks.items():
        if task.state is not State.SUCCEEDED:
            away[f"run/out/{name}"] = "at the site; the task did not succeed"
        elif mirror is not None:
            with suppress(NotFoundError):  # it wrote nothing
                mirror.fetch_outputs(name)
    return away


def _fresh_beside(target: Path) -> Path:
    """Create a temporary folder beside the target, and remove those that killed exports left behind."""
    prefix = f".{target.name}.export-"
    for left in target.parent.glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdigit() and identify(int(pid)) is None:
            shutil.rmtree(left, ignore_errors=True)
    fresh = target.with_name(f"{prefix}{os.getpid()}-{os.urandom(4).hex()}")
    try:
        fresh.mkdir(mode=0o700)
    except FileNotFoundError as error:
        raise NotFoundError(f"no such folder: {target.parent}", hint=f"mkdir -p {target.parent}") from error
    return fresh


def _gather(run: RunFolder, home: Home, fresh: Path, wanted: _Wanted) -> Contents:
    """Compute the digests of everything to export; files created for the export are in `fresh`."""
    plan, left_out = Plan.from_data(run.plan()), dict(wanted.away)
    provenance = _provenance(run)
    items = list(_own_items(run, fresh, left_out, has_checkpoints=wanted.checkpoints))
    items += _code_item(run, plan.pins.code, _code_folder(plan, provenance), home, fresh, left_out)
    items += _data_items(run, plan, left_out, is_wanted=wanted.data)
    items = sorted(items, key=lambda item: item.path)
    author = author_of(plan.pins.code, _code_folder(plan, provenance), store=home.cache / "code.git")
    crate = fresh / ROCRATE
    crate.write_bytes(metadata(run.facts(), run.plan(), provenance, items, author))
    items = [*_items_of(crate, ROCRATE), *items]
    facts = {"plan_hash": plan.plan_hash, "commit": plan.pins.code.commit, "windlass": VERSION}
    return Contents(run_id=run.id, items=tuple(items), facts=facts, left_out=left_out)


def _provenance(run: RunFolder) -> dict[str, Any]:
    try:
        return run.provenance()
    except NotFoundError:
        return {}


def _code_folder(plan: Plan, provenance: Mapping[str, Any]) -> Path:
    return Path(str(provenance.get("base", "/nonexistent"))) / str(plan.experiment.get("code", "."))


def _items_of(path: Path, name: str) -> Iterator[Item]:
    """Yield one file under another name, without its modification time."""
    yield Item(path=name, size=path.stat().st_size, sha256=sha256_file(path), source=path)


def _own_items(run: RunFolder, fresh: Path, left_out: dict[str, str], *, has_checkpoints: bool) -> Iterator[Item]:
    for name in FILES:
        path = run.path / name
        if name == PLACES and is_imported(run):
            path = fresh / name
            places = import_facts(run).get("places")
            write_json(path, places)
            os.utime(path, (float(str(import_facts(run).get("places_at", 0))),) * 2)
        if path.exists():
            yield from (replace(item, mtime=int(path.stat().st_mtime)) for item in _items_of(path, f"run/{name}"))
    folders = [name for name in FOLDERS if has_checkpoints or name != "checkpoints"]
    if not has_checkpoints and any(run.path.glob("checkpoints/*/*")):
        left_out["run/checkpoints"] = "not requested (--checkpoints)"
    for name in folders:
        folder = run.path / name
        for item in contents_of.items_below(folder, f"run/{name}", left_out) if folder.is_dir() else ():
            if name in ("out", "code", "checkpoints") or not _is_ours_alone(item):
                yield item


def _is_ours_alone(item: Item) -> bool:
    """Return whether a file in journal, jobs or logs is of use only on this machine."""
    name = item.path.rpartition("/")[2]
    return name.startswith(".") or name.endswith(_STAYS)


def _code_item(
    run: RunFolder, pin: CodePin, folder: Path, home: Home, fresh: Path, left_out: dict[str, str]
) -> list[Item]:
    if pin.kind in ("in-place", "none"):
        if pin.kind == "in-place":
            left_out[PACK] = "the code ran in place and was not pinned"
        return []
    try:
        pack_commit(pin, folder, fresh / PACK, store=home.cache / "code.git")
    except NotFoundError as error:
        left_out[PACK] = error.message
        return []
    return list(_items_of(fresh / PACK, PACK))


def _data_items(run: RunFolder, plan: Plan, left_out: dict[str, str], *, is_wanted: bool) -> Iterator[Item]:
    known = archived_data(run) if is_imported(run) else _places(run).get("data")
    for name, pin in plan.pins.data.items():
        path = Path(str(known.get(name, ""))) if isinstance(known, Mapping) else Path()
        below = f"data/{name}"
        if not is_wanted:
            left_out[below] = f"not requested (--data): sha256:{pin.digest}"
        elif not path.is_absolute() or not path.exists():
            left_out[below] = f"not on this machine: sha256:{pin.digest}"
        elif path.is_file():
            stamp = int(path.stat().st_mtime)
            is_executable = bool(path.stat().st_mode & 0o100)
            for item in _items_of(path.resolve(), f"{below}/{path.name}"):
                yield replace(item, mtime=stamp, is_executable=is_executable)
        else:
            yield from contents_of.items_below(path.resolve(), f"{below}/{path.name}", left_out)
    for name, build in plan.pins.builds.items():
        left_out[f"data/{name}"] = f"prepared data; a rerun builds it again: key {build.key[:12]}"


def _places(run: RunFolder) -> Mapping[str, Any]:
    try:
        content = read_json(run.path / PLACES)
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}


def _write(contents: Contents, path: Path, name: str) -> None:
    listing = contents.to_bytes()
    with open_for_writing(path, name) as archive:
        archive.addfile(member(f"{contents.run_id}/{LIST}", len(listing)), io.BytesIO(listing))
        contents_of.write_items(archive, contents.run_id, contents.items)


def _place(made: Path, target: Path) -> None:
    """Rename the finished file to the target, unless the target was created in the meantime."""
    try:
        os.link(made, target)
    except FileExistsError as error:
        hint = "choose another name with -o"
        raise PreconditionError(f"{target} already exists", hint=hint, code="already-exists") from error
    except OSError:  # a file system without hard links
        os.rename(made, target)
    fsync_directory(target.parent)
