"""Ray's cluster files: read as they are, or refused by a named key; never a traceback."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from windlass.cluster.config import ClusterConfig
from windlass.cluster.imports.ray import read_ray_file
from windlass.config.loading import load_config
from windlass.core.errors import Problem, SpecError

LOCAL = """
cluster_name: lab
provider:
    type: local
    head_ip: 10.0.0.1
    worker_ips: [10.0.0.2, 10.0.0.3]
auth:
    ssh_user: ray
    ssh_private_key: ~/.ssh/lab.pem
min_workers: 1
max_workers: 2
upscaling_speed: 2.0
idle_timeout_minutes: 10
file_mounts: {"/data/code": "./code"}
rsync_exclude: ["**/.git"]
rsync_filter: [.gitignore]
initialization_commands: [uname -a]
setup_commands: [pip install torch]
head_setup_commands: [echo head]
worker_setup_commands: [echo worker]
head_start_ray_commands:
    - ray stop
    - ulimit -c unlimited && ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
    - ray stop
    - ray start --address=$RAY_HEAD_IP:6379
"""

AWS = """
cluster_name: Trainers
max_workers: 6
provider:
    type: aws
    region: us-west-2
    availability_zone: us-west-2a,us-west-2b
    cache_stopped_nodes: true
    key_pair: {key_name: lab}
auth: {ssh_user: ec2-user, ssh_private_key: lab.pem}
docker:
    image: ""
    container_name: ray_container
    run_options: []
    pull_before_run: True
head_node_type: head
available_node_types:
    head:
        resources: {CPU: 0}
        node_config: {InstanceType: m5.large, EbsOptimized: false}
    gpu_spot:
        min_workers: 1
        max_workers: 4
        priority: 2
        idle_timeout_s: 90
        labels: {market: spot}
        resources: {CPU: 4, GPU: 1, licence: 2}
        worker_setup_commands: [nvidia-smi]
        node_config:
            InstanceType: g5.xlarge
            ImageId: ami-12345678
            InstanceMarketOptions: {MarketType: spot, SpotOptions: {MaxPrice: "0.4"}}
    cpu:
        node_config: {InstanceType: m5.xlarge}
worker_setup_commands: [echo all]
metadata: {owner: someone}
"""

OF_2019 = """
cluster_name: tune-default
min_workers: 2
initial_workers: 3
max_workers: 4
autoscaling_mode: default
target_utilization_fraction: 0.8
idle_timeout_minutes: 5
provider: {type: aws, region: us-west-2, availability_zone: "us-west-2a"}
auth: {ssh_user: ubuntu}
head_node: {InstanceType: c5.xlarge, ImageId: ami-0b294f219d14e6a82}
worker_nodes: {InstanceType: c5.xlarge, ImageId: ami-0b294f219d14e6a82, InstanceMarketOptions: {MarketType: spot}}
setup_commands: [pip install ray torch]
"""


def read(text: str) -> ClusterConfig:
    return read_ray_file(text, source="cluster.yaml").config


def test_hosts_that_exist() -> None:
    config = read(LOCAL)
    assert config.place.ssh is not None
    assert config.place.ssh.hosts == ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert (config.place.ssh.user, config.place.ssh.key) == ("ray", "~/.ssh/lab.pem")
    workers = config.groups["workers"]
    assert (workers.count, workers.setup) == (2, ("echo worker",))
    assert config.head.setup == ("echo head",)
    assert config.host_setup == ("uname -a",)
    assert config.files == {"/data/code": "./code"}
    assert (config.exclude, config.exclude_from) == (("**/.git",), (".gitignore",))


def test_node_types() -> None:
    imported = read_ray_file(AWS, source="cluster.yaml")
    config = imported.config
    assert config.name == "trainers"
    assert config.place.aws is not None
    assert config.place.aws.zones == ("us-west-2a", "us-west-2b")
    assert (config.place.aws.key_name, config.place.aws.user) == ("lab", "ec2-user")
    assert config.head.types == ("m5.large",)
    assert config.head.options == {"EbsOptimized": False}
    spot = config.groups["gpu_spot"]
    assert (spot.min, spot.max, spot.priority, spot.idle, spot.market) == (1, 4, 2, 90.0, "spot")
    assert spot.setup == ("nvidia-smi",)
    assert spot.resources == {"CPU": 4, "GPU": 1, "licence": 2}
    assert spot.options["ImageId"] == "ami-12345678"
    assert spot.options["InstanceMarketOptions"] == {"SpotOptions": {"MaxPrice": "0.4"}}
    cpu = config.groups["cpu"]
    assert (cpu.min, cpu.max, cpu.setup, config.max_nodes) == (0, 6, ("echo all",), 6)
    notes = "\n".join(imported.notes)
    assert all(name in notes for name in ("metadata", "container_name", "cache_stopped_nodes", "`trainers`"))


def test_the_form_of_2019() -> None:
    imported = read_ray_file(OF_2019, source="cluster.yaml")
    workers = imported.config.groups["workers"]
    assert (workers.min, workers.max, workers.initial, workers.market) == (2, 4, 3, "spot")
    assert workers.types == imported.config.head.types == ("c5.xlarge",)
    assert any("target_utilization_fraction" in note for note in imported.notes)


@pytest.mark.parametrize("text", [LOCAL, AWS, OF_2019])
def test_the_printed_file_is_the_same_cluster(text: str) -> None:
    imported = read_ray_file(text, source="cluster.yaml")
    assert load_config(ClusterConfig, imported.to_yaml(), source="ours.yaml").value == imported.config


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("type: local", "type: gcp", "provider.type"),
        ("min_workers: 1", "min_wrkers: 1", "min_wrkers"),
        ("min_workers: 1", "min_workers: one", "min_workers"),
        ("upscaling_speed: 2.0", "file_mounts_sync_continuously: true", "file_mounts_sync_continuously"),
        ("upscaling_speed: 2.0", "cluster_synced_files: [a]", "cluster_synced_files"),
        (
            "upscaling_speed: 2.0",
            "docker: {disable_automatic_runtime_detection: true}",
            "docker.disable_automatic_runtime_detection",
        ),
        ("upscaling_speed: 2.0", "head_node_type: a", "head_node_type"),
        ("--port=6379", "--port=6379 --num-cpus=0", "--num-cpus"),
        ("- ray start --address", "- export A=1; ray start --address", "export A=1"),
        ("head_ip: 10.0.0.1", "region: us-west-2", "provider.head_ip"),
        ("    ssh_user: ray", "    ssh_proxy_use_node_id: true", "auth.ssh_proxy_use_node_id"),
    ],
)
def test_what_cannot_be_honoured_is_named(old: str, new: str, key: str) -> None:
    assert old in LOCAL
    with pytest.raises(SpecError) as caught:
        read(LOCAL.replace(old, new, 1))
    problem = next(each for each in caught.value.problems if key in each.message)
    assert problem.place is not None


START = """
head_start_ray_commands:
    - ray stop
    - ulimit -n 65536; ray start --head --port=6379 --object-manager-port=8076
      --autoscaling-config=~/ray_bootstrap_config.yaml --dashboard-host=0.0.0.0
worker_start_ray_commands: ["ray stop || true", "ulimit -n 65536; ray start --redis-address=$RAY_HEAD_IP:6379"]
"""

MINIMAL = "{cluster_name: a, provider: {type: aws, region: us-west-2}}"
TYPES = """
cluster_name: types
provider: {type: aws, region: us-west-2, cache_stopped_nodes: False}
docker: {image: "", container_name: ""}
file_mounts: {
}
head_node_type: ray.head.default
available_node_types:
    ray.head.default:
        resources: {}
        node_config: &request
            InstanceType: m5.large
            IamInstanceProfile: {Arn: "arn:aws:iam::1:instance-profile/ray"}
            SecurityGroupIds: [sg-1]
            SubnetIds: [subnet-1, subnet-2]
            BlockDeviceMappings: [{DeviceName: /dev/sda1, Ebs: {VolumeSize: 256}}]
    ray.worker.default:
        min_workers: 1
        node_config: {<<: *request, ImageId: ami-1, InstanceMarketOptions: {MarketType: spot}}
"""


def test_machines_that_are_not_named_are_rays_default_ones() -> None:
    imported = read_ray_file(MINIMAL, source="cluster.yaml")
    config = imported.config
    workers = config.groups["workers"]
    assert (config.head.types, workers.types, workers.market) == (("m5.large",), ("m5.large",), "spot")
    assert (workers.min, workers.max, config.max_nodes) == (0, 2, 2)
    assert any("m5.large" in note for note in imported.notes)


def test_types_as_rays_examples_have_them() -> None:
    imported = read_ray_file(TYPES + START, source="cluster.yaml")
    config = imported.config
    assert config.place.aws is not None
    assert (config.place.aws.subnets, config.place.aws.profile) == (("subnet-1", "subnet-2"), "ray")
    worker = config.groups["ray-worker-default"]
    assert (worker.min, worker.max, worker.market) == (1, 2, "spot")
    assert worker.options["ImageId"] == "ami-1"
    assert worker.options["SecurityGroupIds"] == config.head.options["SecurityGroupIds"] == ["sg-1"]
    assert "SubnetIds" not in worker.options
    notes = "\n".join(imported.notes)
    assert "the node type `ray.worker.default` is the group `ray-worker-default`" in notes
    assert "ulimit" in notes


DOCKER = """
docker:
    image: rayproject/ray:2.60.0
    worker_image: rayproject/ray:2.60.0-gpu
    container_name: ray_container
    pull_before_run: true
    use_podman: true
    run_options: [--ulimit nofile=65536:65536, --shm-size=8g, --network host]
    head_run_options: [-v /data:/data]
    worker_run_options: [--gpus all]
"""


def test_containers_of_hosts_that_exist() -> None:
    imported = read_ray_file(LOCAL.replace("/data/code", "~/code") + DOCKER, source="cluster.yaml")
    config = imported.config
    assert (config.image, config.image_engine) == ("rayproject/ray:2.60.0", "podman")
    assert config.image_options == ("--ulimit nofile=65536:65536", "--pull=always")
    assert (config.head.image, config.head.image_options) == ("", ("-v /data:/data",))
    workers = config.groups["workers"]
    assert (workers.image, workers.image_options) == ("rayproject/ray:2.60.0-gpu", ("--gpus all",))
    notes = "\n".join(imported.notes)
    assert "`container_name` is not used" in notes
    assert "`--shm-size` of `docker` is not used" in notes
    assert load_config(ClusterConfig, imported.to_yaml(), source="ours.yaml").value == config


def test_containers_of_node_types_replace_those_of_the_cluster() -> None:
    text = TYPES.replace('image: ""', "head_image: a, worker_image: b, pull_before_run: false").replace(
        "min_workers: 1", "min_workers: 1\n        docker: {worker_image: c, worker_run_options: [--gpus all]}"
    )
    config = read(text)
    worker = config.groups["ray-worker-default"]
    assert (config.image, config.head.image, config.head.image_options) == ("", "a", ())
    assert (worker.image, worker.image_options) == ("c", ("--gpus all",))
    pulled = read(text.replace("pull_before_run: false", "pull_before_run: true"))
    assert pulled.head.image_options == ("--pull=always",)
    assert pulled.groups["ray-worker-default"].image_options == ("--gpus all", "--pull=always")
    files = TYPES.replace('image: ""', "image: a").replace("file_mounts: {", "file_mounts: {/data: .")
    with pytest.raises(SpecError, match="`/data` is not seen in containers"):
        read(files)


def test_hosts_exist_so_all_of_them_are_nodes() -> None:
    imported = read_ray_file(LOCAL, source="cluster.yaml")
    assert any("all 2 workers are nodes from the start" in note for note in imported.notes)
    fewer = read_ray_file(LOCAL.replace("max_workers: 2", "max_workers: 1"), source="cluster.yaml")
    assert fewer.config.groups["workers"].count == 1
    assert "not used, as `max_workers` is 1: 10.0.0.3" in fewer.notes


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "message"),
    [
        (TYPES, "ray.head.default:\n", "Ray Worker.default:\n", 7, "head_node_type: no node type `ray.head.default`"),
        (
            TYPES,
            "    ray.worker.default:",
            "    ray-head-default:\n        node_config: *request\n    ray.worker.default:",
            0,
            "",
        ),
        (TYPES, "min_workers: 1", "min_workers: 3\n        max_workers: 2", 19, "is 2, and `min_workers` is 3"),
        (
            TYPES,
            "min_workers: 1",
            "min_workers: 1\n        docker: {worker_image: a b}",
            19,
            "invalid image `a b`",
        ),
        (TYPES, "resources: {}", "docker: {worker_image: a}", 10, "docker` has no effect: its nodes are heads"),
        (TYPES, "min_workers: 1", "min_workers: -1", 18, "-1"),
        (TYPES, 'image: ""', "image: a, run_options: [--name x]", 4, "`--name` cannot be honoured: windlass makes"),
        (TYPES, 'image: ""', "image: a, head_run_options: [--restart always]", 4, "`--restart` cannot be honoured"),
        (
            TYPES,
            'image: ""',
            "image: a, worker_run_options: [-u 0]",
            4,
            "`-u` cannot be honoured: the container runs as",
        ),
        (TYPES, "ImageId: ami-1", "ImageId: latest_dlami", 19, "a name that only Ray knows"),
        (TYPES, "ImageId: ami-1", "MinCount: 2", 19, "MinCount` cannot be honoured"),
        (TYPES, "ImageId: ami-1", "SubnetIds: [a, b]", 15, "names several subnets, and other nodes have others"),
        (
            TYPES,
            "ImageId: ami-1",
            "IamInstanceProfile: {Name: b}",
            9,
            "`IamInstanceProfile` is not the same for all nodes",
        ),
        (
            TYPES,
            "ImageId: ami-1",
            "Placement: {AvailabilityZone: a}",
            19,
            "Placement.AvailabilityZone` cannot be honoured",
        ),
        (TYPES, "MarketType: spot", "MarketType: capacity-block", 19, "InstanceMarketOptions` cannot be honoured"),
        (TYPES, "file_mounts: {\n}", "file_mounts: [{a: b}]", 5, "`file_mounts` must be a mapping, not a list"),
        (TYPES, "file_mounts: {\n}", "max_workers: 0", 5, "`max_workers` is 0, and the node types have at least 1"),
        (TYPES, "file_mounts: {\n}", "auth: {ssh_private_key: ~/x.pem}", 5, "needs the key pair's name at EC2"),
        (TYPES, "file_mounts: {\n}", "upscaling_speed: 0", 5, "upscaling_speed"),
        (TYPES, "file_mounts: {\n}", "worker_nodes: {ImageId: ami-1}", 5, "`worker_nodes`, of the form of 2019"),
        (TYPES, "cluster_name: types", "cluster_name: ...", 2, "has no letter or digit"),
        (OF_2019, "min_workers: 2", "min_workers: 5", 3, "`min_workers` is 5, and `max_workers` is 4"),
        (OF_2019, "initial_workers: 3", "initial_workers: 9", 4, "`initial_workers` is 9, and `max_workers` is 4"),
        (LOCAL, "min_workers: 1", "min_workers: 3", 10, "`min_workers` is 3, and `max_workers` is 2"),
        (LOCAL, "10.0.0.2, 10.0.0.3", "10.0.0.2, 10.0.0.2", 6, "duplicate host `10.0.0.2`"),
        (LOCAL, "upscaling_speed: 2.0", "upscaling_speed: 2.0\nupscaling_speed: 1.0", 13, "duplicate key"),
        (
            LOCAL,
            "    - ray stop\n    - ulimit",
            "    - source ~/env && ray stop\n    - ulimit",
            22,
            "`source ~/env` cannot",
        ),
    ],
)
def test_refusals_name_key_and_line(text: str, old: str, new: str, line: int, message: str) -> None:
    assert old in text
    if not line:
        assert set(read(text.replace(old, new, 1)).groups) == {"ray-head-default", "ray-worker-default"}
        return
    problems = problems_of(text.replace(old, new, 1))
    found = next(each for each in problems if message in each.message)
    assert found.place is not None
    assert found.place.line == line


def test_two_types_never_share_a_group() -> None:
    text = TYPES + "    ray_worker.default:\n        node_config: *request\n"
    assert set(read(text).groups) == {"ray-worker-default", "ray_worker-default"}
    text = TYPES + "    ray-worker-default:\n        node_config: *request\n"
    (problem,) = problems_of(text)
    assert "`ray-worker-default` and `ray.worker.default` would both be the group" in problem.message
    assert problem.place is not None
    assert problem.place.line == 21


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a",
        "\0",
        "\t- a: b",
        "provider: {type: aws" + ", a: {b" * 100,
        "provider: &a {type: *a}",
        "a: &a [x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\nprovider: *b",
        "cluster_name: 5\nprovider: aws",
        "cluster_name: x\nprovider: {type: [aws]}",
        "cluster_name: x\nprovider: {type: aws, region: us-west-2}\nmax_workers: 99999999999999999999",
        "cluster_name: x\nprovider: {type: aws, region: us-west-2}\nhead_node: " + "{a: " * 60 + "1" + "}" * 60,
        "cluster_name: x\nprovider: {type: aws, region: us-west-2}\nidle_timeout_minutes: .nan",
        "cluster_name: x\nprovider: {type: aws, region: us-west-2}\nidle_timeout_minutes: 1e308",
    ],
)
def test_files_that_are_no_cluster_are_refused_with_a_place(text: str) -> None:
    problems = problems_of(text)
    assert problems
    assert all(problem.place and problem.place.source == "cluster.yaml" for problem in problems)


def files_of_ray() -> list[Path]:
    found = find_spec("ray")
    assert found is not None, "needs ray: run the tests with `make test`"
    assert found.origin is not None
    return sorted(Path(found.origin).parent.glob("autoscaler/**/*.yaml"))


def problems_of(text: str) -> tuple[Problem, ...]:
    """Return what is refused; empty if the file is read."""
    try:
        read(text)
    except SpecError as error:
        return tuple(error.problems)
    return ()


def test_files_of_rays_wheel_are_read_or_refused() -> None:
    files = files_of_ray()
    assert len(files) >= 5
    for file in files:
        assert all(problem.hint and problem.place for problem in problems_of(file.read_text())), file
    aws = next(file for file in files if file.parent.name == "aws")
    assert read(aws.read_text()).groups


def test_mutated_files_are_read_or_refused() -> None:
    rng = random.Random(0)
    texts = [*(LOCAL, AWS, OF_2019) * 4, *(file.read_text() for file in files_of_ray())]
    num_read = 0
    for _ in range(400):
        data = yaml.safe_load(rng.choice(texts))
        for _ in range(rng.randint(1, 3)):
            _mutate(data, rng)
        text = yaml.safe_dump(data)
        if rng.random() < 0.2:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice("{[:-&*!%\t\0") + text[at + rng.randint(0, 5) :]
        problems = problems_of(text)
        assert all(problem.message and problem.code and problem.place for problem in problems)
        num_read += not problems
    assert num_read > 5


def _mutate(data: Any, rng: random.Random) -> None:
    """Change one place of nested data: another type, another key, or nothing there."""
    values: list[Any] = [None, True, -1, 3.5, "x", "", [], {}, ["a", {"b": None}], {"a": {"b": [1]}}, 10**20, "nan"]
    node = data
    while isinstance(node, (dict, list)) and node:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.7:
            node = node[key]
            continue
        if isinstance(node, dict) and rng.random() < 0.3:
            node[f"{key}x"] = node.pop(key)
        else:
            node[key] = rng.choice(values)
        return
