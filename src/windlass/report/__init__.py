"""API for user code in a job: `from windlass import report`. Outside windlass, its calls do nothing.

    for step in range(start, num_steps):
        loss = train(step)
        report.metrics({"loss": loss}, step=step)
        if report.should_checkpoint() or report.should_stop():
            with report.checkpoint_dir(step=step) as folder:
                save(folder)
        if report.should_stop():
            sys.exit(75)

Standard library only; `metrics`, `progress`, `should_stop` and `should_checkpoint` cost microseconds and never block.
"""

from __future__ import annotations

from windlass.report.checkpoints import checkpoint, checkpoint_dir, held_checkpoints, latest_checkpoint
from windlass.report.place import Place
from windlass.report.reporter import finish, is_active, metrics, place, progress, should_checkpoint, should_stop

__all__ = [
    "Place",
    "checkpoint",
    "checkpoint_dir",
    "finish",
    "held_checkpoints",
    "is_active",
    "latest_checkpoint",
    "metrics",
    "place",
    "progress",
    "should_checkpoint",
    "should_stop",
]
