"""A site with partitions of different shapes, for tests of the planner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plan.sample import PINS
from windlass.config.loading import load_config
from windlass.core.errors import SpecError
from windlass.plan.pins import Pins
from windlass.plan.plan import Plan
from windlass.plan.planner import make_plan
from windlass.plan.site import Site
from windlass.sites.profile import Profile
from windlass.spec import Experiment

PROFILE = """\
name: lab
scheduler:
  partition: gpu
  accounts: [alpha, beta]
  account: alpha
  qos_known: [normal, high, spare]
  gpu_option: gres
  exclude: [{host: n13, reason: ECC errors, seen: "2026-02-15"}]
  options: ["--network=single_node_vni"]
  priority:
    high: {qos: high}
    low: {nice: 100}
  preemptible: {partition: spare}
partitions:
  gpu: {num_nodes: 20, max_nodes: 16, time_max: 24h, gpus: 4, gpu_type: gh200, gres: gh, cpus: 288, memory: 400GiB, features: [ib]}
  big: {num_nodes: 4, time_max: 48h, gpus: 8, gpu_type: h100, cpus: 96, memory: 1TiB}
  cpu: {num_nodes: 50, time_max: 5d, gpus: 0, cpus: 64, memory: 2TiB}
  spare: {num_nodes: 20, time_max: 12h, gpus: 4, gpu_type: gh200, cpus: 288, is_preempted: true}
net:
  interface: hsn
  interconnect: slingshot
  vars:
    - NCCL_CROSS_NIC=1
    - {name: NCCL_NET, value: AWS Libfabric, when: [multi-node, gpu]}
fs: {shared: "/shared/${user}"}
env:
  module_init: /etc/profile.d/modules.sh
  module_purge: true
  modules: [cuda/12.6, "brics/aws ofi"]
  vars:
    - {name: LD_PRELOAD, value: "${env.path}/libnccl.so.2", role: driver, when: gpu}
    - {name: LD_PRELOAD, role: worker}
    - {name: HF_HOME, value: "${fs.shared}/hf"}
    - {name: OMPI_MCA_btl}
ray: {cpus: 32}
"""


def site(*overrides: str, partition: str = "") -> Site:
    """The sample site, with overrides of its profile."""
    profile = load_config(Profile, PROFILE, source="lab.yaml", overrides=overrides).value
    return replace(Site.of(profile), partition=partition)


def refused(text: str, *overrides: str, at: Site | None = None, reshape: bool = False) -> dict[str, tuple[str, str]]:
    """Message and hint by code, of an experiment that the planner refuses; the first of each code."""
    with pytest.raises(SpecError) as caught:
        planned(text, *overrides, at=at, reshape=reshape)
    problems = reversed(caught.value.problems)
    return {problem.code: (problem.message, problem.hint) for problem in problems}


def planned(text: str, *overrides: str, at: Site | None = None, reshape: bool = False, pins: Pins = PINS) -> Plan:
    """The plan of an experiment at the sample site."""
    loaded = load_config(Experiment, text, source="exp.yaml", overrides=overrides)
    place = site() if at is None else at
    return make_plan(loaded.value, pins, place, overrides=overrides, reshape=reshape, origins=loaded.origins)
