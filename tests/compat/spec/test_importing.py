from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass.compat.spec.importing import experiment_name, to_experiment
from windlass.compat.spec.reading import read_spec
from windlass.compat.spec.writing import from_experiment
from windlass.config.value import with_overrides
from windlass.spec import Command, Gpus, SecretUse

FILES = Path(__file__).parent / "files"


def spec(**task: Any) -> dict[str, Any]:
    return {"version": "v2", "tasks": [{"name": "main", "image": {"docker": "x"}, **task}]}


def test_everything_that_has_a_place_goes_there() -> None:
    experiment = to_experiment(read_spec(FILES / "multi-node.yaml").data, name="x")
    task = experiment.tasks["finetune"]
    assert (experiment.why, experiment.env.image.name) == ("Fine-tune on four nodes", "beaker:me/train-image")
    assert (experiment.context.priority, experiment.context.preemptible, experiment.retry.failed) == ("high", True, 2)
    assert (experiment.limit.time, task.ready_timeout, task.nodes, task.gpus) == (86400, 5400, 4, Gpus(count=8))
    assert (task.memory, task.shared_memory, task.compat) == (5 << 29, 10_240_000_000, ("beaker",))
    assert experiment.env.vars["OMP_NUM_THREADS"] == "8"
    assert experiment.env.vars["HF_HUB_ENABLE_HF_TRANSFER"] == "true"
    assert experiment.env.vars["EMPTY"] == ""
    assert experiment.env.secrets == (
        SecretUse(name="HF_TOKEN", from_="me_HF_TOKEN"),
        SecretUse(name="WANDB_API_KEY"),
    )
    assert isinstance(task.run, tuple)
    assert "--nnodes $${BEAKER_REPLICA_COUNT} --rdzv" in task.run[2]
    assert (task.beaker["arguments"], task.beaker["resources"]) == (1, {"sharedMemory": "10.24gb"})
    assert (task.beaker["context"], task.beaker["synchronizedStartTimeout"]) == ({"minRuntime": "8h"}, "90m")
    kept = {"arguments", "constraints", "context", "datasets", "envVars", "resources", "result"}
    assert set(task.beaker) == {*kept, "synchronizedStartTimeout"}
    assert experiment.beaker == {"budget": "lab/money"}


def test_a_spec_that_says_what_we_say_keeps_nothing() -> None:
    written = spec(
        command=["/bin/sh", "-c", "a && b"],
        envVars=[{"name": "A", "value": "1"}, {"name": "T", "secret": "T"}],
        resources={"cpuCount": 4, "gpuCount": 2, "memory": "2.5GiB", "sharedMemory": "10.24GB"},
        context={"priority": "normal", "autoResume": True},
        constraints={"hostname": ["n1", "n2"]},
        replicas=2,
        hostNetworking=True,
        leaderSelection=True,
        propagateFailure=True,
        propagatePreemption=True,
        synchronizedStartTimeout="1h30m",
        timeout="24h",
    )
    experiment = to_experiment({**written, "description": "why", "groups": ["g"], "retry": {"allowedTaskRetries": 3}})
    assert (experiment.beaker, experiment.tasks["main"].beaker) == ({}, {})
    assert experiment.tasks["main"].run == "a && b"
    assert from_experiment(experiment)["tasks"] == written["tasks"]


@pytest.mark.parametrize(("replicas", "hosts"), [(None, ["a", "b"]), (2, ["a"]), (2, ["a", "b", "c"])])
def test_hosts_of_which_any_will_do_are_kept_for_beaker(replicas: int | None, hosts: list[str]) -> None:
    task = to_experiment(spec(constraints={"hostname": hosts}, replicas=replicas)).tasks["main"]
    assert (task.hosts, task.beaker["constraints"]) == ((), {"hostname": hosts})


def test_tasks_that_differ_keep_what_is_their_own() -> None:
    experiment = to_experiment(read_spec(FILES / "pipeline.yaml").data, name="x")
    assert list(experiment.tasks) == ["prepare-data", "train", "task-3"]
    assert experiment.tasks["train"].after == ("prepare-data",)
    assert experiment.env.vars == {}
    assert experiment.tasks["prepare-data"].vars == {"SHARED": "1"}
    assert experiment.env.secrets == ()
    assert experiment.limit.time is None
    assert experiment.tasks["train"].beaker["image"] == {"docker": None, "beaker": "01HXYZ"}
    assert experiment.tasks["train"].beaker["timeout"] == 36000000000000
    assert experiment.tasks["prepare-data"].beaker["name"] == "Prepare Data"


@pytest.mark.parametrize(
    ("task", "run"),
    [
        ({"command": ["/bin/bash", "-c", "a && b"]}, ("/bin/bash", "-c", "a && b")),
        ({"command": ["/bin/sh", "-c", "a"]}, "a"),
        ({"command": ["python"], "arguments": ["a.py", 3, 0.5, True]}, ("python", "a.py", "3", "0.5", "True")),
        ({"command": ["echo", "${X} $${Y} $Z"]}, ("echo", "$${X} $$${Y} $Z")),
    ],
)
def test_commands(task: dict[str, Any], run: Command) -> None:
    experiment = to_experiment(spec(**task))
    assert experiment.tasks["main"].run == run
    assert from_experiment(experiment) == spec(**task)


def test_an_entry_point_runs_nowhere_else() -> None:
    run = to_experiment(spec(arguments=["--fast"])).tasks["main"].run
    assert isinstance(run, str)
    assert run.endswith("exit 78")


def test_what_is_edited_is_exported_with_what_is_kept() -> None:
    experiment = to_experiment(read_spec(FILES / "multi-node.yaml").data, name="x")
    edited = with_overrides(
        experiment,
        ["tasks.finetune.nodes=2", "env.vars.NEW=1", "limit.time=2h"],
        source="x",
    ).value
    task = from_experiment(edited)["tasks"][0]
    assert (task["replicas"], task["timeout"]) == (2, "2h")
    values = {each["name"]: each.get("value") for each in task["envVars"]}
    assert (values["NEW"], values["NCCL_DEBUG"]) == ("1", "INFO")
    assert task["arguments"] == from_experiment(experiment)["tasks"][0]["arguments"]


@pytest.mark.parametrize(
    ("text", "name"), [("My Run!", "my-run"), ("ok.a", "ok.a"), ("\u00e9", "experiment"), ("", "experiment")]
)
def test_names(text: str, name: str) -> None:
    assert experiment_name(text) == name
