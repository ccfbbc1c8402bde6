"""What the fake refuses in a spec."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.testing.beaker.acceptance import check_spec
from windlass.testing.beaker.world import BeakerState, Refused

Change = Callable[[dict[str, Any]], Any]

GOOD: dict[str, Any] = {
    "version": "v2",
    "budget": "lab/budget",
    "retry": {"allowedTaskRetries": 10},
    "tasks": [
        {
            "name": "main",
            "image": {"docker": "anything"},
            "command": ["true"],
            "context": {"priority": "normal", "minRuntime": 5, "autoResume": True},
            "constraints": {"cluster": ["lab/alpha"]},
            "envVars": [{"name": "A", "value": "1"}, {"name": "B", "secret": "NONE"}, {"name": "C"}],
            "datasets": [{"mountPath": "/weka", "source": {"weka": "bucket"}, "mode": "readwrite"}],
            "result": {"path": "/results"},
            "resources": {"gpuCount": 8, "memory": "2.5GiB", "sharedMemory": "10.24gb"},
            "replicas": 2,
            "leaderSelection": True,
            "synchronizedStartTimeout": 48 * 3600 * 10**9,
            "timeout": 1,
        }
    ],
}

BAD: list[tuple[Change, str]] = [
    (lambda task: task.update(imagee={}), "unknown field 'imagee'"),
    (lambda task: task["context"].update(prio=1), "unknown field 'prio'"),
    (lambda task: task.update(image={}), "exactly one of beaker and docker"),
    (lambda task: task.update(image={"beaker": "me/none"}), "image 'me/none' not found"),
    (lambda task: task.pop("context"), "context is required"),
    (lambda task: task["context"].update(priority="top"), "'top'"),
    (lambda task: task["context"].update(preemptible=True), "preemptible excludes"),
    (lambda task: task["constraints"].update(cluster=["lab/none"]), "cluster 'lab/none' not found"),
    (lambda task: task.update(timeout="1h"), "whole nanoseconds, is '1h'"),
    (lambda task: task.update(synchronizedStartTimeout=0), "at most 48h"),
    (lambda task: task.update(synchronizedStartTimeout=48 * 3600 * 10**9 + 1), "at most 48h"),
    (lambda task: task.update(command=["a", 1]), "list of strings"),
    (lambda task: task.update(command="a"), "list of strings"),
    (lambda task: task["envVars"].append({"name": "A"}), "'A' is given twice"),
    (lambda task: task["envVars"].append({"name": "D", "value": 1}), "must be a string"),
    (lambda task: task["envVars"].append({"name": "D", "value": "", "secret": "E"}), "both a value and a secret"),
    (lambda task: task["envVars"].append({"value": "x"}), "has no name"),
    (lambda task: task["datasets"].append({"mountPath": "/weka/x", "source": {"weka": "b"}}), "overlap"),
    (lambda task: task["datasets"].append({"mountPath": "/WEKA", "source": {"weka": "b"}}), "overlap"),
    (lambda task: task["datasets"].append({"mountPath": "x", "source": {"weka": "b"}}), "must be absolute"),
    (lambda task: task["datasets"].append({"mountPath": "/", "source": {"weka": "b"}}), "not the root"),
    (lambda task: task["datasets"].append({"mountPath": "/x", "source": {}}), "exactly one source"),
    (lambda task: task["datasets"].append({"mountPath": "/x", "source": {"beaker": "me/x"}}), "dataset 'me/x'"),
    (lambda task: task["datasets"].append({"mountPath": "/x", "source": {"result": "x"}}), "no task 'x'"),
    (lambda task: task["datasets"][0].update(mode="readonly"), "not possible for a weka mount"),
    (lambda task: task.update(result={"path": "results"}), "must be absolute"),
    (lambda task: task["resources"].update(gpuCount=1.5), "whole number"),
    (lambda task: task["resources"].update(memory="much"), "not a size"),
    (lambda task: task.update(replicas=0), "1 to 1000"),
]


@pytest.fixture
def world(tmp_path: Path) -> BeakerState:
    world = BeakerState(tmp_path, user="me", organization="lab", workspace="lab/main")
    world.add_cluster("lab/alpha", num_nodes=1, gpus_per_node=8)
    return world


def test_a_good_spec_is_accepted(world: BeakerState) -> None:
    check_spec(GOOD, world, world.workspaces[0])


@pytest.mark.parametrize(("change", "message"), BAD)
def test_what_is_wrong_is_named(change: Change, message: str, world: BeakerState) -> None:
    spec = copy.deepcopy(GOOD)
    change(spec["tasks"][0])
    with pytest.raises(Refused) as refused:
        check_spec(spec, world, world.workspaces[0])
    assert refused.value.status == 400
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"version": "v3"}, "unsupported version 'v3'"),
        ({"tasks": []}, "at least one task"),
        ({"tasks": GOOD["tasks"] * 2}, "'main' is given twice"),
        ({"retry": {"allowedTaskRetries": 11}}, "0 to 10"),
        ({"budget": "lab/none"}, "budget 'lab/none' not found"),
        ({"groups": ["me/none"]}, "group 'me/none' not found"),
        ({"owner": "me"}, "unknown field 'owner'"),
    ],
)
def test_what_is_wrong_around_tasks(keys: dict[str, Any], message: str, world: BeakerState) -> None:
    with pytest.raises(Refused, match=message):
        check_spec({**GOOD, **keys}, world, world.workspaces[0])


def test_an_uncommitted_dataset_cannot_be_mounted(world: BeakerState) -> None:
    dataset = world.add_dataset("data", world.workspaces[0])
    spec = copy.deepcopy(GOOD)
    spec["tasks"][0]["datasets"].append({"mountPath": "/x", "source": {"beaker": "me/data"}})
    with pytest.raises(Refused, match="not committed"):
        check_spec(spec, world, world.workspaces[0])
    world.commit(dataset)
    check_spec(spec, world, world.workspaces[0])
