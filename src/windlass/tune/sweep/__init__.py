"""Sweeps declared in experiment files: controller, head, and ways to find and control them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.sweep.finding import SweepRow, find_sweep, list_sweeps
    from windlass.tune.sweep.handle import SweepHandle
    from windlass.tune.sweep.head import run_head
    from windlass.tune.sweep.launching import launch_sweep
    from windlass.tune.sweep.preparing import PreparedSweep, prepare_sweep
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.tune.sweep.finding": ("SweepRow", "find_sweep", "list_sweeps"),
            "windlass.tune.sweep.handle": ("SweepHandle",),
            "windlass.tune.sweep.head": ("run_head",),
            "windlass.tune.sweep.launching": ("launch_sweep",),
            "windlass.tune.sweep.preparing": ("PreparedSweep", "prepare_sweep"),
        },
    )

__all__ = [
    "PreparedSweep",
    "SweepHandle",
    "SweepRow",
    "find_sweep",
    "launch_sweep",
    "list_sweeps",
    "prepare_sweep",
    "run_head",
]
