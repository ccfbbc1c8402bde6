from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_committed import REGISTRY_HOSTS
from scripts.tree import ROOT
from windlass.config.loading import load_config
from windlass.core.codec import decode, encode
from windlass.plan.site import Site
from windlass.sites.profile import Fabric
from windlass.sites.store import fabric_names, find_site, shipped_names

SHIPPED = ROOT / "src" / "windlass" / "sites" / "shipped"
STUBS = ("jean-zay", "leonardo", "lumi", "perlmutter")


def test_these_come_with_windlass() -> None:
    assert shipped_names() == sorted(["ai2-google", "ai2-weka", "alps", "frontier", "isambard", *STUBS])
    assert fabric_names() == ["efa", "gib", "jupiter-ib", "tcpx", "tcpxo"]


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_profile_is_whole_and_says_where_it_comes_from(name: str, tmp_path: Path) -> None:
    profile = find_site(name, tmp_path)
    assert profile.about
    assert profile.sources
    assert all(source.seen or source.status == "unverified" for source in profile.sources)
    assert decode(Site, encode(Site.of(profile))).profile == profile


@pytest.mark.parametrize("name", fabric_names())
def test_a_fabric_is_whole_and_says_where_it_comes_from(name: str) -> None:
    text = (SHIPPED / "fabrics" / f"{name}.yaml").read_text()
    fabric = load_config(Fabric, text, source=name).value
    assert fabric.name == name
    assert fabric.net.interconnect
    assert all(source.url and source.seen for source in fabric.sources)


@pytest.mark.parametrize("name", STUBS)
def test_what_is_not_known_is_empty(name: str, tmp_path: Path) -> None:
    profile = find_site(name, tmp_path)
    assert (profile.net.vars, profile.partitions, profile.net.interconnect) == ((), {}, "")
    assert {source.status for source in profile.sources} == {"unverified"}


def test_no_shipped_file_names_a_package_registry() -> None:
    for path in SHIPPED.rglob("*.yaml"):
        text = path.read_text().lower()
        assert [host for host in REGISTRY_HOSTS if host in text] == [], path


def test_efa_sets_nothing() -> None:
    fabric = load_config(Fabric, (SHIPPED / "fabrics" / "efa.yaml").read_text(), source="efa").value
    assert fabric.net.vars == ()


def test_isambard_preloads_the_environments_nccl_for_the_driver_alone(tmp_path: Path) -> None:
    profile = find_site("isambard", tmp_path)
    preloads = {variable.role: variable for variable in profile.env.vars if variable.name == "LD_PRELOAD"}
    assert set(preloads) == {"driver", "worker"}
    assert (preloads["driver"].value or "").startswith("${env.path}/")
    assert "libnccl" in (preloads["driver"].value or "")
    assert preloads["worker"].value is None
    assert all(variable.why for variable in preloads.values())


def test_isambards_workarounds_are_dated_and_say_why(tmp_path: Path) -> None:
    profile = find_site("isambard", tmp_path)
    assert all(exclusion.reason and exclusion.seen for exclusion in profile.scheduler.exclude)
    assert all(override.why and override.seen for override in profile.env.overrides)
    assert all(patch.why and patch.seen for patch in profile.env.patches)
    excluded = [source for source in profile.sources if "scheduler.exclude" in source.facts]
    assert [source.status for source in excluded] == ["unverified"]
    torch = profile.env.overrides[0]
    assert (torch.package, torch.index) == ("torch==2.9.1", "cu126")
    assert profile.partitions["workq"].gpus == 4
    assert profile.ray.cpus == 32


def test_isambards_patches_are_python(tmp_path: Path) -> None:
    for patch in find_site("isambard", tmp_path).env.patches:
        compile(patch.code, patch.name, "exec")


def test_frontier_forces_its_plugin_only_where_it_starts(tmp_path: Path) -> None:
    found = {v.when: v.value for v in find_site("frontier", tmp_path).net.vars if v.name == "NCCL_NET"}
    assert found == {("multi-node", "gpu"): "OFI", ("one-node", "gpu"): "Socket"}
