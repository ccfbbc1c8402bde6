"""One Ray for the tests of a file; what a test may not leave behind here is an actor, a placement group, a marker.

Ray keeps worker processes for later tasks as it likes, so the watch over processes begins and ends with the cluster.
It goes when its file is done: its processes and threads are in nobody else's way.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import leaks
from tests.lab.components import COMPONENTS, is_present
from tests.lab.ray import RAY_ENV, LocalRay


@pytest.fixture(scope="module")
def ray_lab() -> Iterator[LocalRay]:
    """A cluster with four CPUs and two GPUs that are only counted; this process is connected to it."""
    if not is_present("ray"):
        pytest.skip(f"needs ray: {COMPONENTS['ray'].remedy}")
    lab = LocalRay(Path(f"/tmp/wlr-{os.getpid()}"))
    before = {name: os.environ.get(name) for name in RAY_ENV}
    with leaks.watch(lab.folder, uses_labs=lambda: False):
        try:
            os.environ.update(RAY_ENV)
            lab.add("first", num_cpus=4, num_gpus=2, resources='{"licence": 1}')
            importlib.import_module("ray").init(lab.address, log_to_driver=False, logging_level="ERROR")
            yield lab
        finally:
            importlib.import_module("ray").shutdown()
            lab.down()
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def ray(ray_lab: LocalRay) -> Any:
    """The module, connected."""
    return importlib.import_module("ray")


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """In place of the watch over processes."""
    yield
    if "ray_lab" not in request.fixturenames:
        return
    module = importlib.import_module("ray")
    assert module.is_initialized(), "a user's own connection was ended"
    groups = importlib.import_module("ray.util.placement_group").placement_group_table().values()
    left = [entry["name"] for entry in module.util.list_named_actors(all_namespaces=True)]
    left += [entry["name"] for entry in groups if entry["state"] != "REMOVED"]
    assert not left, f"left on Ray by this test: {left}"
