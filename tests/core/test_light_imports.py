"""What a launch and a job's start leave alone until it is needed; the lazy imports stay lazy."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "stranger"),
    [
        ("windlass.pin", "windlass.pin.environment.building"),
        ("windlass.secrets", "windlass.secrets.vault"),
        ("windlass.config", "windlass.config.emit"),
        ("windlass.launcher", "windlass.launcher.reconcile.reconciler"),
        ("windlass.supervise.main", "subprocess"),
        ("windlass.supervise.replica.loop", "hashlib"),
        ("windlass.supervise.replica.loop", "windlass.supervise.gang.leader"),
        ("windlass.launcher.stage.stage", "windlass.store"),
        ("windlass.pin.provenance", "windlass.pin.data.pinning"),
    ],
)
def test_what_a_start_does_not_need_is_not_imported(module: str, stranger: str) -> None:
    program = f"import sys, {module}; sys.exit({stranger!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", program]).returncode == 0
