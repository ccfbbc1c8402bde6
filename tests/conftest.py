"""What every test may ask for, and the rules that hold for all of them.

* A test that names no kind is a unit test. `system` tests may leave no process and no mount behind.
* `need("tmpfs")` skips a test whose component is missing; with WINDLASS_LAB=required it fails instead, and so does
  every other skip whose reason begins with "needs ".
* `home` is a fresh WINDLASS_HOME.
* A test that hangs fails (tests/lab/limits.py); which worker runs what, and when, is in tests/lab/order.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.lab import leaks, limits, order
from tests.lab.components import COMPONENTS, is_present, is_required
from tests.lab.fixtures import (  # noqa: F401  fixtures are found by their names
    _cloud,
    at_docker,
    at_slurm,
    cloud,
    docker,
    hosts,
    registry,
    slurm,
    slurm_accounting,
)

LAB_FIXTURES = {"cloud", "docker", "hosts", "slurm", "slurm_accounting"}
KINDS = ("unit", "sim", "system", "soak")

# The fake Beaker's grpc would have its say at every fork of this process, which is none of its business.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# The machine may be busy: a slow example is not a failure. CI replays the same examples on every run.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_configure() -> None:
    """Hear Ctrl-C, and so do the programs under test: a shell's background job inherits deaf ears."""
    limits.hear()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(kind) for kind in KINDS):
            item.add_marker("unit")
    items[:] = [items[place] for place in order.long_first(item.nodeid for item in items)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return order.make_scheduler(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with limited(item, "set-up"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with limited(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with limited(item, "take-down"):
        return (yield)


def limited(item: pytest.Item, phase: str) -> AbstractContextManager[None]:
    """The limit of one phase of a test; soak tests may take as long as they want."""
    return nullcontext() if item.get_closest_marker("soak") else limits.limited(f"the {phase} of {item.nodeid}")


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
    folder = request.getfixturevalue("tmp_path")
    with leaks.watch(folder, uses_labs=lambda: not LAB_FIXTURES.isdisjoint(request.fixturenames)):
        yield
