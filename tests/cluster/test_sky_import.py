"""SkyPilot's task files: a cluster and an experiment that load, or a key that is refused by name at its line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from windlass.cluster.config import ClusterConfig
from windlass.cluster.imports import Imported, import_file
from windlass.cluster.imports.sky import SkyImport, read_sky_file
from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.core.errors import Problem, SpecError
from windlass.spec import Experiment

TASK = """
name: Train-LM
workdir: .
num_nodes: 3
resources:
  infra: aws/us-west-2
  accelerators: A100:8
  use_spot: true
  disk_size: 512
  labels: {project: lm}
  max_hourly_cost: 120
  job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 2}
envs:
  MODEL: 13b
  DATA: /data
secrets:
  HF_TOKEN: null
file_mounts:
  ${DATA}/set: ./set
setup: |
  pip install -r requirements.txt
run: |
  MASTER=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=${SKYPILOT_NUM_NODES} --node_rank=$SKYPILOT_NODE_RANK --master_addr=$MASTER train.py
"""


def read(text: str) -> SkyImport:
    return read_sky_file(text, source="task.yaml")


def outcome(text: str) -> tuple[SkyImport | None, tuple[Problem, ...]]:
    """Return what is read, or what is refused."""
    try:
        return read(text), ()
    except SpecError as error:
        return None, tuple(error.problems)


def test_a_task_is_a_cluster_and_an_experiment() -> None:
    found = read(TASK)
    cluster, experiment = found.cluster, found.experiment
    assert cluster.place.aws is not None
    assert (cluster.name, cluster.place.aws.region, cluster.place.aws.tags) == (
        "train-lm",
        "us-west-2",
        {"project": "lm"},
    )
    for group in (cluster.head, cluster.groups["workers"]):
        assert (group.gpus, group.gpu_type, group.market, group.disk) == (8, "a100", "spot", 512 << 30)
    assert (cluster.groups["workers"].count, cluster.price.per_hour) == (2, 120.0)
    assert cluster.files == {"~/sky_workdir": ".", "/data/set": "./set"}
    (setup,) = cluster.setup
    assert setup == "export MODEL=13b\nexport DATA=/data\ncd ~/sky_workdir\npip install -r requirements.txt\n"
    task = experiment.tasks["main"]
    assert task.gpus is not None
    assert (task.nodes, task.gpus.count, task.gpus.type, experiment.retry.failed) == (3, 8, "a100", 2)
    assert task.run[:2] == ("bash", "-c")
    assert "--nnodes=$${SKYPILOT_NUM_NODES} --node_rank=$SKYPILOT_NODE_RANK" in task.run[2]
    assert dict(task.vars) == {
        "SKYPILOT_NODE_RANK": "${rank}",
        "SKYPILOT_NUM_NODES": "${nodes}",
        "SKYPILOT_NUM_GPUS_PER_NODE": "${gpus_per_node}",
        "SKYPILOT_NODE_IPS": "${leader.address}",
    }
    assert [secret.name for secret in experiment.env.secrets] == ["HF_TOKEN"]
    assert experiment.env.vars == {"MODEL": "13b", "DATA": "/data"}
    notes = "\n".join(found.notes)
    assert all(word in notes for word in ("`train-lm`", "windlass secret set HF_TOKEN", "SKYPILOT_NODE_IPS", "`where`"))


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ("{}", {"types": ("m5.2xlarge",)}),
        ("{cpus: 4+}", {"types": ("m5.xlarge",)}),
        ("{cpus: 16, memory: 100+}", {"types": ("m5.8xlarge",)}),
        ("{memory: 64GB}", {"types": ("m5.4xlarge",)}),
        ("{cloud: AWS, region: eu-west-1, instance_type: p3.8xlarge}", {"types": ("p3.8xlarge",)}),
        ("{accelerators: V100}", {"gpus": 1, "gpu_type": "v100"}),
        ("{accelerators: {V100: 4}}", {"gpus": 4, "gpu_type": "v100"}),
        ("{accelerators: [V100:4]}", {"gpus": 4, "gpu_type": "v100"}),
        ("{accelerators: H100:8, any_of: [{use_spot: true}, {use_spot: false}]}", {"market": "spot-first"}),
        ("{accelerators: L4, ordered: [{infra: gcp}, {infra: aws/us-east-2}]}", {"gpus": 1}),
        ("{any_of: [{instance_type: m5.large}, {instance_type: m6i.large}]}", {"types": ("m5.large", "m6i.large")}),
        ("{disk_size: 1TB, autostop: false, network_tier: standard, ports: [80]}", {"disk": 1 << 40}),
    ],
)
def test_resources(resources: str, expected: dict[str, Any]) -> None:
    found = read(f"resources: {resources}\nrun: echo\n")
    assert {key: getattr(found.cluster.head, key) for key in expected} == expected


def test_regions_and_zones_of_candidates_are_tried_in_order() -> None:
    text = "run: echo\nresources:\n  ordered: [{infra: aws/us-east-1/us-east-1b}, {zone: us-east-1a}, {region: us-west-2}]\n"
    found = read(text)
    assert found.cluster.place.aws is not None
    assert found.cluster.place.aws.all_regions == ("us-east-1", "us-west-2")
    assert found.cluster.place.aws.zones == ("us-east-1b", "us-east-1a")
    assert any("all nodes are in one region" in note for note in found.notes)
    assert not any("is not tried" in note for note in found.notes)
    assert load_config(ClusterConfig, to_yaml(found.cluster), source="cluster.yaml").value == found.cluster


def test_kinds_of_machines_that_not_every_region_was_named_with_are_a_note() -> None:
    text = "run: echo\nresources:\n  any_of: [{region: us-east-1, use_spot: true}, {region: us-west-2, use_spot: %s}]\n"
    note = "each kind of machine of the candidates is tried in each of their regions"
    assert note not in read(text % "true").notes
    assert note in read(text % "false").notes


def test_each_region_has_its_image() -> None:
    images = "{us-east-1: ami-1, us-west-2: ami-2}"
    text = f"run: echo\nresources:\n  image_id: {images}\n  any_of: [{{region: us-east-1}}, {{region: us-west-2}}]\n"
    place = read(text).cluster.place.aws
    assert place is not None
    assert (place.image, place.images) == ("", {"us-east-1": "ami-1", "us-west-2": "ami-2"})
    (problem,) = outcome(text.replace(", us-west-2: ami-2", ""))[1]
    assert problem.message == "`resources.any_of.1.image_id` names no image for us-west-2"
    text = text.replace(f"  image_id: {images}\n", "").replace(
        "{region: us-east-1}", "{region: us-east-1, image_id: ami-1}"
    )
    (problem,) = outcome(text)[1]
    assert problem.message == "`resources.any_of.1` names no image for us-west-2, and others do"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("infra: aws/us-west-2", "infra: gcp", 6, "resources.infra: `gcp` is not supported"),
        ("accelerators: A100:8", "accelerators: tpu-v5e-8", 7, "`tpu-v5e-8` is a TPU"),
        ("accelerators: A100:8", "accelerators: [A100:8, H100:8]", 7, "names 2 kinds: A100:8, H100:8"),
        ("accelerators: A100:8", "accelerators: A100:0.5", 7, "`A100:0.5` is not a kind and a whole number"),
        ("accelerators: A100:8", "accelerator: A100:8", 7, "unknown key `accelerator` in resources"),
        ("disk_size: 512", "disk_size: big", 9, "`resources.disk_size` cannot be `big`"),
        ("disk_size: 512", "autostop: 10", 9, "`resources.autostop` cannot be honoured"),
        ("disk_size: 512", "image_id: docker:ubuntu:22.04", 9, "`resources.image_id` cannot be `docker:ubuntu:22.04`"),
        ("disk_size: 512", "disk_tier: high", 9, "`resources.disk_tier` cannot be honoured"),
        ("MODEL: 13b", "MODEL: null", 14, "`envs.MODEL` has no value"),
        ("set: ./set", "set: s3://bucket/set", 19, "`s3://bucket/set` is not on this machine"),
        ("set: ./set", "set: {name: bucket, mode: MOUNT}", 19, "is a bucket or a volume"),
        ("${DATA}/set", "${DTA}/set", 19, "contains ${DTA}, which `envs` does not set"),
        ("| head -n1", "| wc -l", 22, "`run` reads `SKYPILOT_NODE_IPS`, which has no equivalent"),
        ("$SKYPILOT_NODE_RANK", "$SKYPILOT_JOB_RANK", 22, "`run` reads `SKYPILOT_JOB_RANK`"),
        ("-r requirements.txt", "--token $HF_TOKEN x", 20, "`setup` reads the secret `HF_TOKEN`"),
        ("num_nodes: 3", "num_nodes: three", 4, "`num_nodes` must be a"),
        ("num_nodes: 3", "service: {readiness_probe: /}", 4, "`service` cannot be honoured"),
        ("num_nodes: 3", "numnodes: 3", 4, "unknown key `numnodes`"),
        ("workdir: .", "workdir: {url: 'https://x/y.git'}", 3, "`workdir` from a git repository"),
    ],
)
def test_what_cannot_be_honoured_is_named_at_its_line(old: str, new: str, line: int, message: str) -> None:
    assert old in TASK
    with pytest.raises(SpecError) as caught:
        read(TASK.replace(old, new, 1))
    problem = next(each for each in caught.value.problems if message in each.message)
    assert problem.place is not None
    assert problem.place.line == line
    assert problem.hint or "must be" in problem.message


def test_both_texts_load_as_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(TASK)
    found = import_file(tmp_path / "task.yaml")
    assert isinstance(found, Imported)
    assert (found.kind, found.experiment_yaml is None) == ("skypilot", False)
    expected = read(TASK)
    assert load_config(ClusterConfig, found.cluster_yaml, source="cluster.yaml").value == expected.cluster
    assert load_config(Experiment, found.experiment_yaml or "", source="experiment.yaml").value == expected.experiment


def test_mutated_tasks_are_read_or_refused() -> None:
    rng = random.Random(0)
    values: list[Any] = [
        None,
        True,
        -1,
        3.5,
        "x",
        "",
        [],
        {},
        ["a", {"b": None}],
        {"a": {"b": [1]}},
        10**20,
        "nan",
        "8+",
    ]
    num_read = 0
    for _ in range(300):
        data = yaml.safe_load(TASK)
        for _ in range(rng.randint(1, 2)):
            node = data if rng.random() < 0.4 else data.get("resources")
            if not isinstance(node, dict) or not node:
                continue
            key = rng.choice(list(node))
            if rng.random() < 0.2:
                node[f"{key}x"] = node.pop(key)
            else:
                node[key] = rng.choice(values)
        found, problems = outcome(yaml.safe_dump(data))
        assert all(each.message and each.code and each.place for each in problems)
        if found is None:
            continue
        num_read += 1
        assert load_config(ClusterConfig, to_yaml(found.cluster), source="c.yaml").value == found.cluster
        assert load_config(Experiment, to_yaml(found.experiment), source="e.yaml").value == found.experiment
    assert num_read > 20
