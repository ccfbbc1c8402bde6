"""The local executor does what every executor must do, in processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.testing.executor_conformance import ExecutorConformance
from windlass.tune.executors.local import Local
from windlass.tune.executors.protocol import Executor

pytestmark = pytest.mark.system


class TestLocalExecutor(ExecutorConformance):
    def make_executor(self, folder: Path) -> Executor:
        return Local()
