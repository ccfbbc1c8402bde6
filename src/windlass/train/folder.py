"""The folder of checkpoints, looked at before any work can be lost for want of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass import report
from windlass.core.errors import PreconditionError
from windlass.core.phrases import size
from windlass.train.parallel.world import World

__all__ = ["checkpoint_folder", "ensure_folder", "removing_if_refused"]


def checkpoint_folder(folder: str, name: str) -> str:
    """Where checkpoints go: as the recipe says, else the task's own folder, else below the working directory."""
    if folder:
        return folder
    return str(report.place().checkpoints) if report.is_active() else str(Path("checkpoints") / name)


def ensure_folder(folder: str, world: World, *, need_bytes: int) -> None:
    """Make the folder and see that it takes a checkpoint; URLs are left to the store. Collective, idempotent.

    Args:
        need_bytes: of one checkpoint.

    Raises:
        PreconditionError: it cannot be written to, or has no room.
    """
    error: PreconditionError | None = None
    if world.is_main and "://" not in folder:
        error = _problem(Path(folder), need_bytes)
    if world.sum_on_host([float(error is not None)])[0] > 0:
        raise error or PreconditionError(f"rank 0 cannot write to {folder}", code="checkpoint-folder")


@contextmanager
def removing_if_refused(folder: str, world: World) -> Iterator[None]:
    """Remove the empty folders that a run which is refused made on its way to `folder`; only rank 0 does."""
    place = Path(folder).expanduser().absolute()
    is_local = world.is_main and bool(folder) and "://" not in folder
    new = [path for path in (place, *place.parents) if not path.exists()] if is_local else []
    try:
        yield
    except BaseException:
        for path in new:
            try:
                path.rmdir()
            except OSError:  # it was never made, or somebody has put something there
                break
        raise


def _problem(folder: Path, need_bytes: int) -> PreconditionError | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return PreconditionError(
            f"checkpoints cannot be written to {folder}: {error.strerror or error}",
            hint="set `checkpoint.folder`, or `no_checkpoints=true`",
            code="checkpoint-folder",
        )
    if free < need_bytes:
        return PreconditionError(
            f"{folder} has {size(free)} left, and one checkpoint takes {size(need_bytes)}",
            hint="make room, or set `checkpoint.folder` to a larger disk",
            code="checkpoint-no-space",
        )
    return None
