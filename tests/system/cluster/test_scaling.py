"""Ray's autoscaler over virtual machines: demand, idleness, faults of the cloud, killed nodes and monitors. Real Ray.

All tests share one head; each begins and ends without workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.lab.components import COMPONENTS, is_present
from tests.system.cluster.scaling_lab import FILE, ScalingLab, scaling_lab
from windlass.cluster.machine import Machine

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not is_present("ssh"), reason=f"needs ssh: {COMPONENTS['ssh'].remedy}"),
]

TWO_TASKS = """
@ray.remote(num_cpus=2, max_retries=5)
def where():
    return ray.util.get_node_ip_address()
done(ray.get([where.remote(), where.remote()]))
"""
ONE_TASK = """
@ray.remote(num_cpus=2, max_retries=5)
def where(seconds):
    open("/tmp/at-work", "w").close()
    time.sleep(seconds)
    return ray.util.get_node_ip_address()
done([ray.get(where.remote({seconds}))])
"""
REQUEST = """
from ray.autoscaler.sdk import request_resources
request_resources(bundles={bundles})
done(0)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScalingLab]:
    with scaling_lab(Path(tmp_path_factory.mktemp("scaling"))) as found:
        found.up()
        yield found


@pytest.fixture
def lab(cluster: ScalingLab) -> Iterator[ScalingLab]:
    gone(cluster)
    yield cluster
    faults(cluster)


def gone(lab: ScalingLab) -> float:
    return lab.until(lambda: not lab.workers(), "idle nodes to end", timeout_s=300)


def faults(lab: ScalingLab, *kinds: dict[str, Any]) -> None:
    lab.provider.call("lab.faults", faults=list(kinds))


def made(lab: ScalingLab) -> int:
    """Return the number of machines that the cloud ever made for workers; its ledger, not the head's journal."""
    return sum(each["group"] == "workers" for each in lab.provider.call("lab.ledger")["machines"])


def test_pending_tasks_bring_nodes_and_idle_ones_end(lab: ScalingLab) -> None:
    before = made(lab)
    addresses = lab.python(TWO_TASKS)
    assert all(each != lab.head.address for each in addresses)
    assert 1 <= made(lab) - before <= 2
    gone(lab)
    requests = [each["status"] for each in lab.records("tried")]
    assert requests
    assert set(requests) == {"made"}


def test_requested_resources_bring_nodes_that_stay_until_the_request_is_withdrawn(lab: ScalingLab) -> None:
    lab.python(REQUEST.format(bundles=[{"CPU": 2}]))
    lab.until(lambda: any(each.state == "running" for each in lab.workers()), "the requested node")
    (machine,) = lab.workers()
    lab.until(lambda: _is_ready(lab, machine.id), "its Ray")
    ready_for = next(each for each in lab.records("node") if each["instance"] == machine.id)["ready_at"]
    lab.until(
        lambda: any(each.get("seen_at", 0) > ready_for + 15 for each in lab.records("node")),
        "15 s beyond the idle time",
    )
    assert [each.id for each in lab.workers()] == [machine.id]
    lab.python(REQUEST.format(bundles=[]))
    gone(lab)


def _is_ready(lab: ScalingLab, machine: str) -> bool:
    return any(each["instance"] == machine and each["state"] == "ready" for each in lab.records("node"))


def test_refusals_are_in_the_table_and_demand_is_served_when_there_are_machines_again(lab: ScalingLab) -> None:
    faults(lab, {"kind": "no-capacity", "verb": "create", "count": 1})
    assert lab.python(ONE_TASK.format(seconds=0))
    assert "no-capacity" in [each["reason"] for each in lab.records("tried")]


def test_a_lost_reply_doubles_nothing(lab: ScalingLab) -> None:
    before = made(lab)
    faults(lab, {"kind": "lost-reply", "verb": "create", "count": 1})
    assert lab.python(ONE_TASK.format(seconds=0))
    assert made(lab) - before == 1


def test_a_machine_that_boots_slowly_is_not_taken_for_unhealthy(lab: ScalingLab) -> None:
    before = made(lab)
    faults(lab, {"kind": "slow-boot", "verb": "create", "seconds": 40.0})
    assert lab.python(ONE_TASK.format(seconds=0))
    assert made(lab) - before == 1


def test_a_monitor_that_is_killed_is_back_within_a_minute_and_doubles_nothing(tmp_path: Path) -> None:
    with scaling_lab(tmp_path, FILE) as lab, ThreadPoolExecutor(1) as pool:  # the new monitor ends with this test
        lab.up()
        before = made(lab)
        result = pool.submit(lab.python, ONE_TASK.format(seconds=5))
        lab.until(lab.workers, "a new machine")
        lab.until(lambda: len(lab.monitor()) == 1, "the monitor alone")
        (old,) = lab.monitor()
        lab.shell(["kill", "-9", str(old)])
        seconds = lab.until(lambda: lab.monitor() not in ([], [old]), "another monitor")
        assert result.result(300)
        assert made(lab) - before == 1
    assert seconds < 60  # half a second until it is started, and the start of a Python on a busy machine


def test_a_node_that_is_killed_soon_after_it_joined_is_replaced_within_120_seconds(lab: ScalingLab) -> None:
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(lab.python, ONE_TASK.format(seconds=20))
        lab.until(lambda: lab.workers() and _is_ready(lab, lab.workers()[0].id), "a node")
        first = lab.workers()[0].id
        lab.provider.call("lab.power-cut", ids=[first])
        seconds = lab.until(lambda: any(each.id != first for each in lab.workers()), "its replacement", timeout_s=200)
        assert result.result(300)
    assert seconds < 120


def test_after_a_notice_ray_places_nothing_on_the_node_and_running_work_may_finish(lab: ScalingLab) -> None:
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(lab.python, ONE_TASK.format(seconds=25))
        lab.until(lambda: lab.workers() and _is_ready(lab, lab.workers()[0].id), "a node")
        first = lab.workers()[0]
        lab.until(lambda: _is_at_work(lab, first), "the task to run there")
        lab.provider.call("lab.notice", id=first.id, kind="terminate", at=time.time() + 90.0)
        lab.until(
            lambda: any(each["instance"] == first.id and each["notice_at"] for each in lab.records("node")),
            "the notice",
        )
        lab.until(lambda: f"cloud_instance_id={first.id}" in _stopping(lab), "the drain")
        assert lab.python(ONE_TASK.format(seconds=0)) != [first.address]
        assert result.result(300) == [first.address]


def _is_at_work(lab: ScalingLab, machine: Machine) -> bool:
    """Return whether a task has begun on a machine, whose /tmp is its own."""
    return lab.place.host(machine).shell.run(["test", "-e", "/tmp/at-work"]).code == 0


def _stopping(lab: ScalingLab) -> str:
    """Return the lines of the autoscaler's log about nodes that Ray drains."""
    return "\n".join(line for line in lab.log("monitor").splitlines() if "RAY_RUNNING->RAY_STOPPING" in line)


@pytest.mark.soak
def test_a_boot_of_75_seconds(tmp_path: Path) -> None:
    with scaling_lab(tmp_path, FILE) as lab:
        lab.up()
        faults(lab, {"kind": "slow-boot", "verb": "create", "seconds": 75.0})
        assert lab.python(ONE_TASK.format(seconds=0))
        assert made(lab) == 1
