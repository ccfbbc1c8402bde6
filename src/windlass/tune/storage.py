"""Storage for checkpoints: a local folder or a URL (fsspec). An incomplete checkpoint is never loaded.

`<root>/<trial>/<iteration>-<attempt>/` appears as a whole: on a file system by a rename after its manifest was
committed, in a bucket by its manifest, which is sent last and deleted first. A clone uses the path of another trial's
checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.extras import require
from windlass.core.files import fsync_directory
from windlass.record.manifest import FOLDER_MANIFEST, Manifest, commit_manifest, differences, read_manifest
from windlass.tune.folder import checkpoint_name

__all__ = ["TrialCheckpointStore", "copy_folder", "delete", "fetch", "is_url", "local_folder"]


def is_url(path: str) -> bool:
    """Return whether a path is a URL, which needs fsspec."""
    return "://" in path and not path.startswith("file://")


def _local(path: str) -> str:
    return path.removeprefix("file://")


class TrialCheckpointStore:
    """Storage for the checkpoints of a sweep.

    Args:
        root: a folder or a URL; made if missing.
    """

    def __init__(self, root: str) -> None:
        self._root = _local(root).rstrip("/")

    def keep(self, trial: str, iteration: int, attempt: int, write: Callable[[str], None]) -> str:
        """Commit the files that `write` puts into a new folder; return the path or URL. Blocking.

        Idempotent per (trial, iteration, attempt): a second call writes again and replaces the first one.

        Raises:
            OSError: no space is left, or the storage cannot be reached; nothing was committed.
        """
        name = f"{trial}/{checkpoint_name(iteration, attempt)}"
        if is_url(self._root):
            return self._upload(f"{self._root}/{name}", iteration, write)
        final = Path(self._root, name)
        final.parent.mkdir(parents=True, exist_ok=True)
        with _fresh_folder(str(final.parent)) as fresh:
            write(fresh)
            commit_manifest(Path(fresh), step=iteration)
            if final.exists():
                delete(str(final))
            os.rename(fresh, final)
        fsync_directory(final.parent)
        return str(final)

    def _upload(self, url: str, iteration: int, write: Callable[[str], None]) -> str:
        with _fresh_folder(None) as fresh:
            write(fresh)
            manifest = commit_manifest(Path(fresh), step=iteration)
            system, root = _file_system(url)
            delete(url)
            system.makedirs(root, exist_ok=True)
            for entry in manifest.entries:
                target = f"{root}/{entry.path}"
                system.makedirs(target.rpartition("/")[0], exist_ok=True)
                system.put_file(os.path.join(fresh, entry.path), target)
            system.put_file(os.path.join(fresh, FOLDER_MANIFEST), f"{root}/{FOLDER_MANIFEST}")
        return url


@contextlib.contextmanager
def _fresh_folder(parent: str | None) -> Iterator[str]:
    """Create a folder that is removed after the block unless it is renamed.

    Its name starts with a dot, so that readers skip it.
    """
    folder = tempfile.mkdtemp(prefix=".new-", dir=parent)
    os.chmod(folder, 0o777 & ~_umask())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def copy_folder(source: str, target: str) -> None:
    """Copy the contents of a folder to another one, creating it if missing.

    Windlass's own manifests are not copied.
    """
    ignore = shutil.ignore_patterns(FOLDER_MANIFEST) if _has_manifest(source) else None
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignore)


def _has_manifest(folder: str) -> bool:
    try:
        read_manifest(Path(folder))
    except (NotFoundError, PreconditionError):
        return False
    return True


@contextlib.contextmanager
def local_folder(path: str) -> Iterator[str]:
    """Yield a local folder with a committed checkpoint: the original if it is local, otherwise a temporary copy.

    Raises:
        NotFoundError: it does not exist (`no-checkpoint`).
        PreconditionError: it is incomplete or was changed (`checkpoint-damaged`).
    """
    if not is_url(path):
        _check(Path(_local(path)), path)
        yield _local(path)
        return
    folder = tempfile.mkdtemp(prefix="checkpoint-")
    try:
        _download(path, Path(folder))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fetch(path: str, target: Path) -> None:
    """Copy a checkpoint to a local folder, creating that if missing.

    A local checkpoint need not be committed.

    Raises:
        NotFoundError: it does not exist.
        PreconditionError: it is incomplete.
    """
    if is_url(path):
        target.mkdir(parents=True, exist_ok=True)
        _download(path, target)
        return
    source = Path(_local(path))
    if not source.is_dir():
        raise _missing(path)
    if (source / FOLDER_MANIFEST).exists():
        _check(source, path)
    copy_folder(str(source), str(target))


def _download(url: str, target: Path) -> None:
    system, root = _file_system(url)
    try:
        system.get_file(f"{root}/{FOLDER_MANIFEST}", str(target / FOLDER_MANIFEST))
    except FileNotFoundError as error:
        raise _missing(url) from error
    for entry in read_manifest(target).entries:
        (target / entry.path).parent.mkdir(parents=True, exist_ok=True)
        try:
            system.get_file(f"{root}/{entry.path}", str(target / entry.path))
        except FileNotFoundError as error:
            raise _torn(url, f"{entry.path} missing") from error
    _check(target, url)


def _check(folder: Path, path: str) -> Manifest:
    if not folder.is_dir():
        raise _missing(path)
    try:
        manifest = read_manifest(folder)
    except NotFoundError as error:
        raise _torn(path, "it was never committed") from error
    wrong = differences(folder, manifest)
    if wrong:
        raise _torn(path, "; ".join(f"{name} {what}" for name, what in wrong[:3]))
    return manifest


def _missing(path: str) -> NotFoundError:
    return NotFoundError(
        f"no checkpoint at {path}",
        hint="it may have been dropped by `num_to_keep`, or deleted manually; restart the trial",
        code="no-checkpoint",
    )


def _torn(path: str, what: str) -> PreconditionError:
    return PreconditionError(
        f"the checkpoint {path} is incomplete: {what}",
        hint="use an earlier checkpoint of this trial, or restart it",
        code="checkpoint-damaged",
    )


def delete(path: str) -> None:
    """Remove a checkpoint, beginning with its manifest. Idempotent.

    An interrupted removal therefore leaves no valid checkpoint.
    """
    if is_url(path):
        system, root = _file_system(path)
        with contextlib.suppress(FileNotFoundError):
            system.rm_file(f"{root}/{FOLDER_MANIFEST}")
        with contextlib.suppress(FileNotFoundError):
            system.rm(root, recursive=True)
        return
    folder = _local(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, FOLDER_MANIFEST))
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _file_system(url: str) -> tuple[Any, str]:
    # lazy: only checkpoints elsewhere need it
    fsspec = require("fsspec", f"cannot access {url}: fsspec is not installed", hint="pip install 'windlass[data]'")
    system, root = fsspec.core.url_to_fs(url)
    return system, str(root).rstrip("/")
