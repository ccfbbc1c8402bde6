"""`cluster: ray` over four nodes of a real Slurm, each with an address of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON
from windlass.record.state import State

pytestmark = pytest.mark.system

DRIVER = """
import json, os, ray
from ray.util.placement_group import placement_group, placement_group_table

ray.init(log_to_driver=False)
names = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}

def place(bundles, strategy):
    group = placement_group(bundles, strategy=strategy)
    ray.get(group.ready(), timeout=300)
    nodes = placement_group_table(group)["bundles_to_node_id"]
    return [names[nodes[bundle]] for bundle in sorted(nodes)]

@ray.remote(num_cpus=1)
def look():
    return os.environ.get("FOR_DRIVER"), os.environ.get("FOR_WORKER"), os.environ["WINDLASS_RANK"]

said = {
    "spread": place([{"GPU": 2, "CPU": 1}] * 4, "STRICT_SPREAD"),
    "packed": place([{"GPU": 1}] * 8, "PACK"),
    "addresses": sorted({node["NodeManagerAddress"] for node in ray.nodes()}),
    "resources": [ray.cluster_resources()["GPU"], ray.cluster_resources()["CPU"]],
    "worker": ray.get(look.remote()),
    "driver": [os.environ.get("FOR_DRIVER"), os.environ.get("FOR_WORKER"), os.environ["WINDLASS_RANK"]],
}
json.dump(said, open("said.json", "w"))
"""


def test_four_nodes_with_placement_groups_and_variables_by_role(
    slurm_stage: SlurmStage, monkeypatch: pytest.MonkeyPatch, need: Callable[[str], None]
) -> None:
    need("ray")
    stage = slurm_stage
    monkeypatch.setenv("PATH", os.path.dirname(PYTHON), prepend=os.pathsep)
    roles = "vars: [{name: FOR_DRIVER, value: d, role: driver}, {name: FOR_WORKER, value: w, role: worker}]"
    stage.write_site(**{'env: {python: "': f'env: {{{roles}, python: "'})
    path = f"{os.path.dirname(PYTHON)}:/usr/bin:/bin"
    spec = stage.python(DRIVER, nodes=4, gpus=4, cpus=2, cluster="ray", vars={"PATH": path})
    run = stage.start(spec)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.log(run) + stage.story(run)
    said = json.loads((stage.code / "said.json").read_text())
    assert sorted(said["spread"]) == [f"windlass-{rank}" for rank in range(4)]
    assert len(said["packed"]) == 8
    assert len(said["addresses"]) == 4
    assert not [address for address in said["addresses"] if address.startswith("127.")]
    assert said["resources"] == [16.0, 8.0]
    assert said["worker"][:2] == [None, "w"]
    assert said["driver"] == ["d", None, "0"]
    assert {end.cause for r in stage.attempts(run)[0].replicas.values() if (end := r.end)} == {"ok"}
    for rank in range(4):
        assert (run.folder.logs / "1" / "main" / f"ray-{rank}" / "raylet.out").stat().st_size > 0
