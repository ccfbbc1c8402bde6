"""What every test may ask for, and the rules that hold for all of them.

* A test that names no kind is a unit test. `system` tests may leave no process and no mount behind.
* `need("tmpfs")` skips a test whose component is missing; with WINDLASS_LAB=required it fails instead, and so does
  every other skip whose reason begins with "needs ".
* `home` is a fresh WINDLASS_HOME.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.lab import leaks
from tests.lab.components import COMPONENTS, is_present, is_required

KINDS = ("unit", "sim", "system", "soak")

# The machine may be busy: a slow example is not a failure. CI replays the same examples on every run.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(kind) for kind in KINDS):
            item.add_marker("unit")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_needed(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_needed(report)
    return report


def fail_if_needed(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip for a missing component into a failure where every component must be there."""
    if not (is_required() and report.outcome == "skipped" and isinstance(report.longrepr, tuple)):
        return
    path, line, reason = report.longrepr
    reason = reason.removeprefix("Skipped: ")
    if reason.startswith("needs "):
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: {reason} (WINDLASS_LAB=required turns this skip into a failure)"


@pytest.fixture
def need() -> Callable[[str], None]:
    """A function that skips the test when a component of tests/lab/components.py is missing."""

    def require(name: str) -> None:
        if not is_present(name):
            pytest.skip(f"needs {name}: {COMPONENTS[name].remedy}")

    return require


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh WINDLASS_HOME with its own cache, and no other setting of windlass in the environment."""
    for name in list(os.environ):
        if name.startswith("WINDLASS_") and name not in {"WINDLASS_LAB", leaks.TOKEN}:
            monkeypatch.delenv(name)
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("WINDLASS_HOME", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if not (request.node.get_closest_marker("system") or request.node.get_closest_marker("soak")):
        yield
        return
    with leaks.watch(request.getfixturevalue("tmp_path")):
        yield
