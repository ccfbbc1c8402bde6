"""`python -m windlass.tune.executors.slots.worker`: the task of a slot's run; takes trials until it is told to leave."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from windlass import report
from windlass.core.errors import PreconditionError, UsageError, WindlassError
from windlass.core.json_text import read_json
from windlass.tune.executors.protocol import Work
from windlass.tune.executors.slots.channel import FileChannel
from windlass.tune.executors.slots.files import SLOT_VARIABLE, SWEEP_VARIABLE, SlotFiles
from windlass.tune.executors.work_data import rebuild_work
from windlass.tune.executors.worker import Worker

__all__ = ["main"]


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Serve trials; returns the exit code. What goes wrong before the first trial is on standard error."""
    folder, slot = environ.get(SWEEP_VARIABLE), environ.get(SLOT_VARIABLE)
    if not folder or not slot:
        raise UsageError(
            "this is the worker of a sweep's slots, which `windlass sweep launch` starts",
            hint="write `trainable: MODULE:NAME` into `sweep:` and launch the file",
            code="not-a-slot",
        )
    places = SlotFiles(Path(folder))
    sys.path.insert(0, os.getcwd())
    work = _work(places)
    with closing(FileChannel(places, slot, incarnation(environ), on_first_end=_show_progress)) as channel:
        Worker(channel, work).run()
    return 0


def _show_progress() -> None:
    """To windlass a worker that has ended a trial has made progress: it may be started again as often as need be."""
    if report.is_active():
        with report.checkpoint_dir(step=int(time.time())) as folder:
            (folder / "trials").write_text("one or more")


def _work(places: SlotFiles) -> Work:
    try:
        data = read_json(places.work)
        assert isinstance(data, dict)
        for module in data["preload"]:
            importlib.import_module(module)
        return rebuild_work(data)
    except (OSError, ValueError, AssertionError) as error:
        raise PreconditionError(f"{places.work} cannot be read: {error}", code="sweep-damaged") from error
    except (ImportError, AttributeError) as error:
        raise PreconditionError(
            f"the trainable cannot be had in this slot: {error}",
            hint="its module must lie in the experiment's `code`, or be installed in its environment",
            code="trainable-not-found",
        ) from error


def incarnation(environ: Mapping[str, str]) -> str:
    """The name of this life of the worker: later attempts of its run sort after earlier ones."""
    number = environ.get("WINDLASS_ATTEMPT", "")
    return f"{int(number) if number.isdigit() else 0:05d}-{os.urandom(3).hex()}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WindlassError as problem:
        sys.stderr.write(problem.render() + "\n")
        sys.exit(problem.exit_code)
