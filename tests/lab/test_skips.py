from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.tree import ROOT

TESTS = """
import pytest

def test_reason():
    pytest.skip("needs a unicorn: breed one")

@pytest.mark.skipif(True, reason="needs two unicorns: breed them")
def test_mark():
    pass

def test_other():
    pytest.skip("too slow today")

def test_passes():
    pass
"""


def run_pytest(folder: Path, lab: str) -> str:
    (folder / "test_it.py").write_text(TESTS)
    (folder / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", str(folder)],
        env={**os.environ, "WINDLASS_LAB": lab, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_a_missing_component_skips(tmp_path: Path) -> None:
    assert "1 passed, 3 skipped" in run_pytest(tmp_path, "")


def test_a_missing_component_fails_where_the_lab_is_required(tmp_path: Path) -> None:
    printed = run_pytest(tmp_path, "required")
    assert "1 failed, 1 passed, 1 skipped, 1 error" in printed  # a mark skips in set-up: an error
    assert "needs a unicorn: breed one (WINDLASS_LAB=required turns this skip into a failure)" in printed


def test_home_is_fresh(home: Path) -> None:
    assert os.environ["WINDLASS_HOME"] == str(home)
    assert list(home.iterdir()) == []
    assert not [
        name for name in os.environ if name.startswith("WINDLASS_") and name not in {"WINDLASS_HOME", "WINDLASS_LAB"}
    ]


def test_every_test_has_a_kind(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("unit") is not None
