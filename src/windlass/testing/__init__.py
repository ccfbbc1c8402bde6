"""Test tools for windlass and for code that uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.testing.distributed import DistributedTestError, run_distributed_test
else:
    __getattr__ = lazy_names(
        __name__, {"windlass.testing.distributed": ("DistributedTestError", "run_distributed_test")}
    )

__all__ = ["DistributedTestError", "run_distributed_test"]
