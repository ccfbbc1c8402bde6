"""Views of a running sweep: a live table, log lines, or a notebook cell."""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.views.head import HeadView
    from windlass.tune.views.live import LiveView
    from windlass.tune.views.progress import SweepProgress
    from windlass.tune.views.reporters import (
        CLIReporter,
        JupyterNotebookReporter,
        ProgressReporter,
        ViewSettings,
        settings_of,
    )
    from windlass.tune.views.watching import watch
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.tune.views.head": ("HeadView",),
            "windlass.tune.views.live": ("LiveView",),
            "windlass.tune.views.progress": ("SweepProgress",),
            "windlass.tune.views.reporters": (
                "CLIReporter",
                "JupyterNotebookReporter",
                "ProgressReporter",
                "ViewSettings",
                "settings_of",
            ),
            "windlass.tune.views.watching": ("watch",),
        },
    )

__all__ = [
    "CLIReporter",
    "HeadView",
    "JupyterNotebookReporter",
    "LiveView",
    "ProgressReporter",
    "SweepProgress",
    "ViewSettings",
    "settings_of",
    "watch",
]
