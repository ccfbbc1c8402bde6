"""Head of a sweep on a cluster, `python -m windlass.tune.sweep.cluster FOLDER`, on the cluster's head; trials are actors.

Exits with 0 if the sweep is over and a trial succeeded, 1 if none did, 75 if it can resume, or the error's code.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from windlass.core.errors import WindlassError
from windlass.record.causes import EXIT_RESUMABLE
from windlass.tune.controller.controller import Controller, HeadOutcome
from windlass.tune.executors.ray import RayExecutor
from windlass.tune.folder import SweepFolder
from windlass.tune.storage import delete
from windlass.tune.sweep.cluster.record import TrialPlan
from windlass.tune.sweep.declared import declared_run, declared_space, declared_tuning
from windlass.tune.sweep.head import find_trainable
from windlass.tune.sweep.record import read_record
from windlass.tune.trial import Resources, TrialStatus
from windlass.tune.tuner.setup import make_setup
from windlass.tune.views.head import HeadView
from windlass.tune.views.live import LiveView

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweep in a folder, new or restored, to its end; return the exit code. Blocks."""
    folder = Path((sys.argv[1:] if argv is None else argv)[0]).absolute()
    try:
        outcome, has_success = _run(folder)
    except WindlassError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    sys.stdout.write(f"{folder.name}: {outcome.why}\n")
    sys.stdout.flush()
    return EXIT_RESUMABLE if not outcome.is_over else 0 if has_success else 1


def _run(folder: Path) -> tuple[HeadOutcome, bool]:
    view = HeadView(LiveView())
    controller = make_controller(folder, view)
    try:
        outcome = controller.run()
        return outcome, bool(controller.core.state.table.counts[TrialStatus.TERMINATED])
    finally:
        view.close(controller if hasattr(controller, "core") else None)


def make_controller(folder: Path, view: HeadView) -> Controller:
    """Create the controller of a sweep on this cluster; its code is below the sweep's folder.

    Raises:
        WindlassError: the trainable cannot be imported, or a setting is invalid.
    """
    record, plan = read_record(folder), TrialPlan.read(folder)
    code = folder / plan.code
    sys.path.insert(0, str(code))
    trainable = find_trainable(record.sweep.trainable)
    run = declared_run(record.sweep, record.name, folder.parent)
    setup = make_setup(trainable, declared_space(record.sweep), declared_tuning(record.sweep), run)
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # the code is what git has tracked: nothing is to be left out
    resources = Resources(bundles=(dict(plan.resources),))
    described = {"space": dict(record.sweep.space), "trainable": {"type": record.sweep.trainable}}
    make = Controller.restore if SweepFolder(folder).head_journal.exists() else Controller
    return make(
        settings=dataclasses.replace(setup.settings, resources=resources),
        space=setup.space,
        searcher=setup.searcher,
        scheduler=setup.scheduler,
        stopper=setup.stopper,
        executor=RayExecutor(runtime_env={"working_dir": str(code)}, num_slots=record.sweep.num_slots),
        work=dataclasses.replace(setup.work, folder=str(folder), options={}),
        folder=folder,
        described={**setup.described, **described},
        drop=delete,
        on_turn=view.look,
    )


if __name__ == "__main__":
    sys.exit(main())
