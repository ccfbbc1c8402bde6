"""Who connects to Ray, and what is refused; with a stand-in for the module, so that nothing is started."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.core.errors import PreconditionError, UnreachableError, UsageError
from windlass.tune.executors.protocol import Work
from windlass.tune.executors.ray import RayExecutor
from windlass.tune.executors.ray.connection import RayConnection


class FakeRay:
    """As much of `ray` as a connection needs."""

    def __init__(self, connected_to: str = "") -> None:
        self.connected_to = connected_to
        self.calls: list[Any] = []
        self.exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
        self.error: Exception | None = None

    def is_initialized(self) -> bool:
        return bool(self.connected_to)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.connected_to)

    def init(self, **settings: Any) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(settings)
        self.connected_to = settings["address"]

    def shutdown(self) -> None:
        self.calls.append("shutdown")
        self.connected_to = ""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    found = FakeRay()
    monkeypatch.setattr(importlib, "import_module", lambda name: found)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    return found


def test_without_an_address_a_ray_of_this_machine_begins_and_ends(fake: FakeRay) -> None:
    connection = RayConnection(init={"logging_level": "INFO"}, runtime_env={"env_vars": {"A": "1"}})
    connection.open({"CPU": 2})
    assert connection.is_own_cluster
    assert fake.calls[0] == {
        "log_to_driver": False,
        "logging_level": "INFO",
        "runtime_env": {"env_vars": {"A": "1"}},
        "include_dashboard": False,
        "num_cpus": 2,
        "address": "local",
    }
    assert connection.actor_env == {}
    connection.close()
    connection.close()
    assert fake.calls[1:] == ["shutdown"]


def test_ray_address_counts_where_nothing_is_said(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    connection = RayConnection()
    connection.open()
    assert fake.calls[0]["address"] == "10.0.0.1:6379"
    assert not connection.is_own_cluster
    assert RayConnection("10.0.0.2:1").address == "10.0.0.2:1"


def test_a_connection_of_the_user_is_used_and_stays(fake: FakeRay) -> None:
    fake.connected_to = "10.0.0.1:6379"
    connection = RayConnection("10.0.0.1:6379")
    connection.open()
    connection.close()
    assert fake.calls == []


def test_another_address_than_that_of_the_connection_is_refused(fake: FakeRay) -> None:
    fake.connected_to = "10.0.0.1:6379"
    with pytest.raises(UsageError) as caught:
        RayConnection("10.0.0.2:6379").open()
    assert caught.value.code == "ray-options"
    assert "10.0.0.2:6379" in caught.value.message


def test_limits_of_this_machine_say_nothing_of_a_cluster(fake: FakeRay) -> None:
    with pytest.raises(UsageError) as caught:
        RayConnection("10.0.0.1:6379").open({"CPU": 2})
    assert caught.value.code == "ray-options"
    assert "CPU 2" in caught.value.message


def test_a_cluster_that_does_not_answer(fake: FakeRay) -> None:
    fake.error = ConnectionError("ray client connection timeout\nmore")
    with pytest.raises(UnreachableError) as caught:
        RayConnection("10.0.0.1:6379").open()
    assert caught.value.code == "ray-unreachable"
    assert caught.value.message == "cannot connect to Ray at `10.0.0.1:6379`: ray client connection timeout"


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PreconditionError) as caught:
        RayConnection().open()
    assert caught.value.code == "extra-missing"
    assert "pip install 'windlass[ray,tune]'" in caught.value.hint


def test_a_setting_that_would_be_ignored_is_refused(tmp_path: Any) -> None:
    work = Work(trainable=print, name="t", folder=str(tmp_path), storage=str(tmp_path), options={"detached": True})
    with pytest.raises(UsageError) as caught:
        RayExecutor().open(work)
    assert caught.value.code == "unknown-option"
    with pytest.raises(UsageError) as caught:
        RayExecutor(linger_s=0)
    assert caught.value.code == "ray-options"


def test_a_ray_that_ends_with_this_process_cannot_be_left(fake: FakeRay) -> None:
    executor = RayExecutor()
    executor._connection.open()
    with pytest.raises(UsageError) as caught:
        executor.detach()
    assert caught.value.code == "ray-options"
