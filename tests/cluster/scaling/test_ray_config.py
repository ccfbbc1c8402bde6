"""What the head gives Ray: a configuration that its validators accept, templates of nodes, and code that imports alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.cluster.config import ClusterConfig
from windlass.cluster.scaling.code import scaling_code
from windlass.cluster.scaling.monitor import CONFIG, INITIAL_DONE, group_template, write_ray_config
from windlass.cluster.scaling.ray_config import check_ray_config, ray_config
from windlass.config.loading import load_config
from windlass.core.errors import PreconditionError
from windlass.core.json_text import decode_json
from windlass.supervise.node.spec import NodeSpec

FILE = """
name: lab
place: {virtual: {}}
idle: 30s
ttl: 1h
host_setup: [first]
setup: [third]
upscaling_speed: 2.0
groups:
  gpu: {types: [small], min: 1, initial: 3, max: 4, idle: 9s, priority: 5, setup: [fourth], host_setup: [second],
        labels: {kind: a}, resources: {CPU: 2, GPU: 1, licence: 2}}
  any: {types: [small], count: 2}
"""


@pytest.fixture
def config() -> ClusterConfig:
    return load_config(ClusterConfig, FILE, source="cluster.yaml").value


def test_rays_validators_accept_the_file_and_it_says_what_ours_says(config: ClusterConfig, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    content = ray_config(config, cluster="lab-1", folder=tmp_path)
    check_ray_config(content)
    types = content["available_node_types"]
    assert (types["gpu"]["min_workers"], types["gpu"]["max_workers"]) == (1, 4)
    assert types["gpu"]["resources"] == {"CPU": 2, "GPU": 1, "licence": 2}
    assert (types["gpu"]["idle_timeout_s"], types["gpu"]["priority"], types["gpu"]["labels"]) == (9.0, 5, {"kind": "a"})
    assert (types["any"]["min_workers"], types["any"]["max_workers"]) == (2, 2)
    assert (types["head"]["min_workers"], types["head"]["max_workers"]) == (0, 0)
    assert (content["max_workers"], content["idle_timeout_minutes"], content["upscaling_speed"]) == (6, 0.5, 2.0)


def test_a_file_that_ray_refuses_is_an_error_before_its_monitor_starts(config: ClusterConfig, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    content = ray_config(config, cluster="lab-1", folder=tmp_path)
    for change in ({"surprise": 1}, {"max_workers": "many"}, {"head_node_type": 3}):
        with pytest.raises(PreconditionError, match=r"Ray 2\.\d+\.\d+ refuses the configuration") as caught:
            check_ray_config({**content, **change})
        assert caught.value.code == "ray-failed"


def test_nodes_to_start_with_are_the_least_only_at_first(config: ClusterConfig, tmp_path: Path) -> None:
    def least() -> int:
        write_ray_config(tmp_path, config, "lab-1")
        return int(decode_json((tmp_path / CONFIG).read_bytes())["available_node_types"]["gpu"]["min_workers"])

    assert least() == 3
    (tmp_path / INITIAL_DONE).touch()
    assert least() == 1


def test_the_template_of_a_group_has_its_settings_and_nothing_of_the_heads(config: ClusterConfig) -> None:
    head = NodeSpec(
        cluster="lab-1",
        token="t",
        number=0,
        auth_token="secret",
        instance="i-1",
        group="head",
        store_port=1,
        ray_port=2,
        ttl_s=60.0,
        shutdown="off",
        metadata="virtual",
        is_scaled=True,
        address="10.0.0.1",
    )
    found = group_template(config, head, "gpu")
    assert (found.host_setup, found.setup) == (("first", "second"), ("third", "fourth"))
    assert (found.group, found.shutdown, found.metadata, found.ttl_s) == ("gpu", "off", "virtual", 60.0)
    assert (found.auth_token, found.instance, found.store_port, found.ray_port) == ("", "", 0, 0)
    assert (found.is_scaled, found.is_head, found.address) == (False, False, "")


def test_the_code_of_the_head_imports_without_windlass_and_is_the_same_each_time(tmp_path: Path) -> None:
    content = scaling_code("virtual")
    assert content == scaling_code("virtual")
    (tmp_path / "code.zip").write_bytes(content)
    program = (
        "import windlass.cluster.scaling.monitor as m, windlass.supervise.node.boot as b\n"
        "from windlass.cluster.providers.virtual.provider import open_provider\n"
        "assert 'code.zip' in m.__file__, m.__file__\n"
        "node = b.NodeBoot(store='h:1', token='t', group='g', metadata='aws')\n"
        "assert b'StoreClient' in b.render_boot(shutdown='true', node=node)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "code.zip")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
