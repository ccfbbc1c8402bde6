"""Head of a detached sweep, `python -m windlass.tune.sweep FOLDER`, as a process or a one-core job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from windlass import report
from windlass.core.errors import WindlassError
from windlass.record.causes import EXIT_RESUMABLE
from windlass.report.place import is_inside
from windlass.tune.folder import SweepFolder

__all__ = ["main"]

_SETTINGS = ("WINDLASS_HOME", "WINDLASS_STORE", "WINDLASS_SSH_CONFIG", "WINDLASS_GPUS")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweep in a folder and return the exit code.

    It is 0 if the sweep is over, 75 if it was interrupted and can resume, or the error's code.
    """
    folder = Path((sys.argv[1:] if argv is None else argv)[0])
    _show_progress(folder)
    _leave_the_job()
    os.environ["WINDLASS_HOME"] = str(folder.parent.parent)
    from windlass.tune.sweep.head import run_head  # lazy: after the environment was set up
    from windlass.tune.sweep.pending_requests import delete_pending_requests, read_pending_requests  # lazy: as above

    wishes = read_pending_requests(folder)

    def heard(controller: object) -> None:
        """Delete the requests once they are in the journal; until then they are kept for the next head."""
        if wishes:
            delete_pending_requests(folder)
            wishes.clear()

    try:
        ending = run_head(folder, log=_say, on_turn=heard, **wishes)
    except WindlassError as error:
        delete_pending_requests(folder)  # the next head would fail in the same way
        _say(error.render())
        return error.exit_code
    if ending.is_over:
        delete_pending_requests(folder)
    _say(ending.why)
    return 0 if ending.is_over else EXIT_RESUMABLE


def _show_progress(folder: Path) -> None:
    """Report progress if the journal has grown since the last start."""
    journal = SweepFolder(folder).head_journal
    if not report.is_active() or not journal.exists():
        return
    with report.checkpoint_dir(step=journal.stat().st_size) as place:
        (place / "sweep").write_text(str(folder))


def _leave_the_job() -> None:
    """Remove the variables of the head's own job, so that launched runs are not part of it.

    Users' settings are kept.
    """
    if not is_inside(os.environ):
        return
    for name in list(os.environ):
        if name.startswith("WINDLASS_") and not name.startswith(_SETTINGS):
            del os.environ[name]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
