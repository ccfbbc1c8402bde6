"""`cluster: ray` with a real Ray on the local backend; a cluster costs about ten seconds here, so there are few."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.ray import RAY
from tests.system.stage import PYTHON, Stage, living, until
from windlass import Run
from windlass.record.state import State

pytestmark = pytest.mark.system

_LONG_S = 300.0


@pytest.fixture(autouse=True)
def _gpus(monkeypatch: pytest.MonkeyPatch, need: Callable[[str], None]) -> None:
    need("ray")
    monkeypatch.setenv("WINDLASS_GPUS", "0,1,2,3,4,5")
    monkeypatch.setenv("PATH", os.path.dirname(PYTHON), prepend=os.pathsep)


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Ray of the same user that is none of our business."""
    options = ["--port=0", "--num-cpus=1", "--num-gpus=0", "--include-dashboard=false", f"--temp-dir={_short('f')}"]
    environ = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    process = subprocess.Popen(
        [*RAY, "start", "--head", "--block", *options],
        env=environ,
        start_new_session=True,
        stdout=(tmp_path / "foreign.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    until(lambda: "block forever" in (tmp_path / "foreign.log").read_text(), "the foreign Ray is up", 300.0)
    yield process
    process.terminate()
    process.wait()
    subprocess.run(["rm", "-rf", _short("f")], check=True)


def _short(name: str) -> str:
    return f"/tmp/wlt-{os.getpid()}-{name}"


DRIVER = """
import json, os, sys, ray
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In

ray.init(log_to_driver=False)
names = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
said = {"nodes": sorted((n["NodeName"], n["Resources"].get("GPU"), n["Resources"].get("CPU")) for n in ray.nodes())}

def place(bundles, strategy):
    group = placement_group(bundles, strategy=strategy)
    ray.get(group.ready(), timeout=300)
    nodes = placement_group_table(group)["bundles_to_node_id"]
    return group, [names[nodes[bundle]] for bundle in sorted(nodes)]

@ray.remote(num_cpus=1)
class Actor:
    def look(self):
        return os.environ["WINDLASS_RANK"], os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("GREETING"), "RAY_ADDRESS" in os.environ

spread, said["spread"] = place([{"GPU": 1, "CPU": 1}] * 3, "STRICT_SPREAD")
packed, said["packed"] = place([{"GPU": 1}] * 3, "PACK")
inside = In(placement_group=spread, placement_group_bundle_index=said["spread"].index("windlass-1"))
said["actor"] = ray.get(Actor.options(num_gpus=1, scheduling_strategy=inside).remote().look.remote())
json.dump(said, open("said.json", "w"))
print("the driver is done", flush=True)
sys.exit(3)
"""


def test_placement_groups_the_drivers_code_and_a_foreign_ray(stage: Stage, foreign: subprocess.Popen[bytes]) -> None:
    strangers = set(Path("/tmp").glob("ray/session_*/sockets"))
    spec = stage.python(DRIVER, nodes=3, gpus=2, cluster="ray", vars={"GREETING": "hello"})
    run = stage.launch(spec)
    assert stage.end(run, _LONG_S) is State.FAILED, stage.story(run)
    (end,) = stage.ends(run)
    assert (end.cause, end.code, end.rank) == ("user-error", 3, 0), stage.story(run)
    assert "3 nodes, 6 GPUs" in stage.log(run)
    said = json.loads((stage.code / "said.json").read_text())
    assert [(name, gpus) for name, gpus, _ in said["nodes"]] == [(f"windlass-{n}", 2.0) for n in range(3)]
    assert sorted(said["spread"]) == ["windlass-0", "windlass-1", "windlass-2"]
    assert len(said["packed"]) == 3
    rank, devices, greeting, has_address = said["actor"]
    assert (rank, greeting, has_address) == ("1", "hello", False)
    assert devices in ("2", "3")
    assert foreign.poll() is None
    assert living(_short("f"))
    assert not stage.survivors(run)
    assert {other.end.cause for other in stage.attempts(run)[0].replicas.values() if other.end} == {
        "user-error",
        "sibling-failed",
    }
    for rank in range(3):
        logs = run.folder.logs / "1" / "main" / f"ray-{rank}"
        assert (logs / "raylet.out").stat().st_size > 0
    assert set(Path("/tmp").glob("ray/session_*/sockets")) <= strangers


WAITS = """
import os, signal, sys, time, ray
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1, num_gpus=1)
class Keeper:
    def save(self):
        open("saved", "w").write(os.environ["WINDLASS_RANK"])

keepers = [Keeper.remote() for _ in range(2)]

def leave(*_):
    ray.get([keeper.save.remote() for keeper in keepers], timeout=300)
    print("saved", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
ray.get([keeper.__ray_ready__.remote() for keeper in keepers])
print("working", flush=True)
time.sleep(600)
"""


def test_a_driver_that_is_told_to_go_still_has_its_workers(stage: Stage) -> None:
    spec = stage.python(WAITS, nodes=2, gpus=1, cluster="ray")
    spec["tasks"]["main"]["grace"] = "30s"
    run = stage.launch(spec)
    _wait_for(stage, run, "working")
    run.stop()
    stage.end(run, _LONG_S)
    assert "saved" in stage.log(run)
    assert (stage.code / "saved").read_text() in ("0", "1")
    assert not stage.survivors(run)


def test_a_worker_that_dies_is_named(stage: Stage) -> None:
    spec = stage.python(WAITS, nodes=2, gpus=1, cluster="ray") | {"retry": {"interrupted": 0}}
    run = stage.launch(spec)
    _wait_for(stage, run, "working")
    _kill_raylet(run, 1)
    assert stage.end(run, _LONG_S) is State.FAILED
    (end,) = stage.ends(run)
    assert (end.cause, end.rank) == ("killed", 1), stage.story(run)
    assert end.message.startswith("the raylet of replica 1 (")
    assert end.message.endswith("ended while the head was running")
    assert not stage.survivors(run)


def test_a_worker_that_never_joins_is_named_and_user_code_does_not_start(stage: Stage) -> None:
    """Replica 1 has a Python that hangs; replica 2 is there."""
    program = stage.write("python", f'#!/bin/sh\n[ "$WINDLASS_RANK" = 1 ] && exec sleep 600\nexec {PYTHON} "$@"\n')
    program.chmod(0o755)
    path = f"{stage.code}:{os.path.dirname(PYTHON)}:/usr/bin:/bin"
    spec = stage.python("print('user code ran')", nodes=3, cluster="ray", ready_timeout="75s", vars={"PATH": path})
    run = stage.launch(spec | {"retry": {"interrupted": 0}})
    assert stage.end(run, _LONG_S) is State.FAILED
    (end,) = stage.ends(run)
    assert (end.cause, end.rank) == ("never-ready", 0), stage.story(run)
    host = end.host
    assert end.message == (
        f"2 of 3 nodes joined Ray within 75 s; missing: replica 1 ({host}); joined: replica 0 ({host}), replica 2 ({host})"
    )
    assert "user code ran" not in stage.log(run)


def test_an_environment_without_ray_is_named_at_once(stage: Stage) -> None:
    program = stage.write("python", f'#!/bin/sh\nexec {PYTHON} -S "$@"\n')
    program.chmod(0o755)
    spec = stage.python("print('user code ran')", nodes=2, cluster="ray", vars={"PATH": f"{stage.code}:/usr/bin:/bin"})
    run = stage.launch(spec)
    assert stage.end(run) is State.FAILED
    (end,) = stage.ends(run)
    assert end.cause == "setup-failed", stage.story(run)
    assert end.message.endswith("`ray` is not installed in the environment of the task; add `ray` to it")
    assert "user code ran" not in stage.log(run)


ALONE = """
import os, ray
assert os.environ["RAY_ADDRESS"].startswith("127.0.0.1:")
ray.init()
assert ray.cluster_resources()["GPU"] == 2
assert ray.cluster_resources()["node:127.0.0.1"] == 1
table = [line.split() for name in ("tcp", "tcp6") for line in open("/proc/net/" + name).readlines()[1:]]
port = int(os.environ["RAY_ADDRESS"].rpartition(":")[2])
(bound,) = [row[1].rpartition(":")[0] for row in table if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]
assert bound.endswith("0100007F"), bound
"""


def test_one_node_keeps_to_the_loopback(stage: Stage) -> None:
    run = stage.launch(stage.python(ALONE, gpus=2, cluster="ray"))
    assert stage.end(run, _LONG_S) is State.SUCCEEDED, stage.log(run)
    assert not stage.survivors(run)


def _wait_for(stage: Stage, run: Run, line: str) -> None:
    path = run.folder.logs / "1" / "main" / "0.log"
    until(
        lambda: (path.exists() and line in path.read_text()) or run.state.is_terminal, f"{line!r} is in {path}", _LONG_S
    )
    assert line in path.read_text(), stage.story(run)


def _kill_raylet(run: Run, rank: int) -> None:
    (job,) = run.facts.task("main").jobs.values()
    found = [
        pid
        for pid in living(job.token)
        if Path(f"/proc/{pid}/comm").read_text() == "raylet\n"
        and f"WINDLASS_RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    (pid,) = found
    os.kill(pid, signal.SIGKILL)
