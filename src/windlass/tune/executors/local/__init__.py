"""Executor on this machine, with workers forked from a process that has already imported everything."""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.executors.local.executor import Local
else:
    # The template and its workers import parts of this package without the head.
    __getattr__ = lazy_names(__name__, {"windlass.tune.executors.local.executor": ("Local",)})

__all__ = ["Local"]
