"""Clusters with a list of regions on the local EC2: one head in the first region that has one, and nothing left in any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cloud import OTHER_REGION, REGION, CloudLab
from tests.lab.ec2_ledger import Fault
from tests.system.cluster.aws_lab import AwsCluster, until
from tests.system.cluster.faulty_clients import Clients
from windlass.cluster.config import HEAD, ClusterConfig
from windlass.cluster.decide import TargetGroup
from windlass.cluster.home import find_cluster
from windlass.cluster.plan import plan_up
from windlass.cluster.providers.aws.provider import AwsProvider
from windlass.cluster.state import fold
from windlass.cluster.up import groups_of
from windlass.config.loading import load_config
from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError
from windlass.record.journal import JournalWriter, read_journal
from windlass.runs.home import Home

pytestmark = pytest.mark.system

REGIONS = f"regions: [{REGION}, {OTHER_REGION}]"
ALONE = """
name: lab
place: {{aws: {{regions: [{first}, {second}], endpoint: "{url}", user: root}}}}
head: {{types: [m5.large]}}
"""


class RegionalCluster(AwsCluster):
    """A cluster whose client makes the head alone, as `windlass cluster` does."""

    @property
    def groups(self) -> dict[str, TargetGroup]:
        return groups_of(self.config, self.provider)


@pytest.fixture
def lab(cloud: CloudLab, tmp_path: Path) -> RegionalCluster:
    return RegionalCluster(cloud, tmp_path, where=REGIONS)


def none_left() -> Fault:
    """Return a fault that leaves the first region without machines."""
    return Fault(do="error", code="InsufficientInstanceCapacity", message="none left", region=REGION, times=99)


def boto(service: str, cloud: CloudLab, region: str) -> Any:
    import boto3

    return boto3.client(service, region_name=region, endpoint_url=cloud.front.url)


def left_of(cloud: CloudLab, cluster: str) -> dict[str, set[str]]:
    """Return the names of what a cluster has besides machines, by region; those of the account are under `iam`."""
    found: dict[str, set[str]] = {}
    for region in (REGION, OTHER_REGION):
        ec2 = boto("ec2", cloud, region)
        names = {f"key {each['KeyName']}" for each in ec2.describe_key_pairs()["KeyPairs"]}
        names |= {f"group {each['GroupName']}" for each in ec2.describe_security_groups()["SecurityGroups"]}
        found[region] = {each for each in names if cluster in each}
    iam = boto("iam", cloud, REGION)
    names = {each["RoleName"] for each in iam.list_roles()["Roles"]}
    names |= {each["InstanceProfileName"] for each in iam.list_instance_profiles()["InstanceProfiles"]}
    found["iam"] = {each for each in names if cluster in each}
    return {region: names for region, names in found.items() if names}


def alive(cloud: CloudLab) -> list[str]:
    """Return the region of each machine that costs money."""
    return [each.region for each in cloud.front.ledger.alive()]


def test_without_machines_in_the_first_region_the_head_comes_in_the_second(lab: RegionalCluster) -> None:
    lab.cloud.front.order(none_left())
    state = lab.drive("up").state
    (head,) = state.living()
    assert (head.choice.region, head.choice.zone[:-1]) == (OTHER_REGION, OTHER_REGION)
    assert [each.choice.words for each in state.refused] == [f"m5.large in any zone of {REGION}"]
    assert alive(lab.cloud) == [OTHER_REGION]
    assert set(left_of(lab.cloud, lab.cluster)) == {REGION, OTHER_REGION, "iam"}
    lab.cloud.wait_booted(head.id)
    shell = lab.place.host(head).shell
    try:
        assert shell.run(["hostname"]).out.strip() == head.id
    finally:
        shell.close()  # type: ignore[attr-defined]
    lab.drive("down")
    for _ in range(2):
        lab.place.close()
    assert alive(lab.cloud) == []
    assert left_of(lab.cloud, lab.cluster) == {}
    assert not (lab.folder / "aws_key").exists()


def test_with_machines_in_the_first_region_no_other_is_asked(lab: RegionalCluster) -> None:
    lab.drive("up")
    assert alive(lab.cloud) == [REGION]
    assert set(left_of(lab.cloud, lab.cluster)) == {REGION, "iam"}
    lab.drive("down")
    lab.place.close()
    assert (alive(lab.cloud), left_of(lab.cloud, lab.cluster)) == ([], {})


def test_without_machines_in_any_region_all_that_was_tried_is_named(lab: RegionalCluster) -> None:
    lab.cloud.front.order(none_left(), Fault(do="error", code="InsufficientInstanceCapacity", times=99))
    with pytest.raises(PreconditionError) as caught:
        lab.drive("up")
    assert caught.value.code == "no-capacity"
    for region in (REGION, OTHER_REGION):
        assert f"m5.large in any zone of {region}: " in caught.value.message
    lab.cloud.front.clear()
    lab.drive("down")
    lab.place.close()
    assert (alive(lab.cloud), left_of(lab.cloud, lab.cluster)) == ([], {})


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("killed_in", [REGION, OTHER_REGION])
@pytest.mark.parametrize("wishes", [("down",), ("up", "down")])
def test_a_client_that_is_killed_between_intent_and_reply_leaves_nothing(
    cloud: CloudLab, tmp_path: Path, wishes: tuple[str, ...], killed_in: str, phase: str
) -> None:
    """The next client finds the machine in the region that was asked, though another would have machines, too."""
    front, clients, cluster = cloud.front, Clients(cloud.env), f"lab-{tmp_path.name[-8:]}".replace("_", "-")
    file = ALONE.format(first=REGION, second=OTHER_REGION, url=front.url)
    job = {"file": file, "folder": str(tmp_path), "cluster": cluster, "window_s": 2.0}
    before = len(front.ledger.all())
    if killed_in == OTHER_REGION:
        front.order(none_left())
    left = [2 if killed_in == OTHER_REGION and phase == "before" else 1]

    def kill(action: str, moment: str) -> None:
        if action == "RunInstances" and moment == phase and left[0]:
            left[0] -= 1
            if not left[0]:
                clients.kill()

    front.on_call = kill
    try:
        assert clients.run({**job, "wish": "up"}) == -9
        state = fold(read_journal(tmp_path / "journal"))
        (intent,) = state.open_intents
        assert intent.choice.region == killed_in
        until(lambda: len(front.ledger.all()) > before, "the request of the client that was killed")
        assert alive(cloud) == [killed_in]
        for wish in wishes:
            assert clients.run({**job, "wish": wish}) == 0
            assert alive(cloud) == ([killed_in] if wish == "up" else [])
    finally:
        front.on_call = lambda action, phase: None
        clients.close()
    assert len(front.ledger.all()) == before + 1
    config = load_config(ClusterConfig, file, source="cluster.yaml").value
    AwsProvider(config, cluster=cluster, folder=tmp_path).remove()
    assert left_of(cloud, cluster) == {}


def test_a_region_of_an_earlier_file_is_listed_and_cleaned(lab: RegionalCluster, tmp_path: Path) -> None:
    """A file may be changed when nothing came of its requests; what was made besides machines is removed in the end."""
    lab.cloud.front.order(none_left(), Fault(do="error", code="InsufficientInstanceCapacity", times=99))
    with pytest.raises(PreconditionError):
        lab.drive("up")
    lab.cloud.front.clear()
    later = RegionalCluster(lab.cloud, tmp_path, where="region: eu-west-1")
    provider = AwsProvider(later.config, cluster=lab.cluster, folder=tmp_path)
    calls = lab.cloud.front.calls["DescribeInstances"]
    assert provider.list_machines(lab.cluster) == []
    assert lab.cloud.front.calls["DescribeInstances"] - calls == 3
    provider.remove()
    assert left_of(lab.cloud, lab.cluster) == {}


def test_terminating_unknown_ids_reaches_the_machines_of_all_regions(lab: RegionalCluster) -> None:
    with closing(JournalWriter(lab.folder / "journal", "client", SystemClock())):
        choices = lab.provider.choices(lab.config, HEAD)
        made = [lab.create(f"t-{number}", group=HEAD, choice=choice)[0] for number, choice in enumerate(choices)]
    assert sorted(alive(lab.cloud)) == [OTHER_REGION, REGION]
    assert {each.id for each in lab.provider.list_machines(lab.cluster)} == {each.id for each in made}
    assert [each.choice.region for each in lab.provider.find("t-1")] == [OTHER_REGION]
    fresh = AwsProvider(lab.config, cluster=lab.cluster, folder=lab.folder)
    fresh.terminate([*(each.id for each in made), "i-0123456789abcdef0"])
    assert alive(lab.cloud) == []
    assert {each.state for each in fresh.describe([each.id for each in made])} == {"ended"}
    fresh.remove()


# --------------------------------------------------------------------------------------------------------------- checks


def test_a_region_that_lacks_a_type_is_a_line_of_the_plan_and_not_asked(cloud: CloudLab, tmp_path: Path) -> None:
    """The local EC2 has p5e.48xlarge in us-west-2 alone."""
    where = f"regions: [{OTHER_REGION}, {REGION}]"
    lab = RegionalCluster(cloud, tmp_path, where=where, types="[p5e.48xlarge]")
    plan = plan_up(lab.config, lab.provider)
    assert plan.problems == ()
    assert plan.skips[0].why == f"{OTHER_REGION} has no machine type for `workers` (p5e.48xlarge)"
    assert {choice.region for row in plan.rows for choice in row.choices} == {REGION}
    state = lab.drive("up").state
    assert [each.choice.region for each in state.living()] == [REGION]
    assert [each.detail for each in state.refused] == [
        f"cannot make m5.large in any zone of {OTHER_REGION}: {plan.skips[0].why}"
    ]
    assert set(left_of(cloud, lab.cluster)) == {REGION, "iam"}
    lab.drive("down")
    lab.place.close()
    assert (alive(cloud), left_of(cloud, lab.cluster)) == ([], {})


def test_each_region_is_checked(cloud: CloudLab, tmp_path: Path) -> None:
    lab = RegionalCluster(cloud, tmp_path, where=REGIONS, more=", security_groups: [none], zones: [us-east-1z]")
    assert [each.message for each in lab.provider.check(lab.config)] == ["`us-east-1` has no zone `us-east-1z`"]
    lab = RegionalCluster(cloud, tmp_path, where=REGIONS, more=", key: /none, key_name: none")
    messages = [each.message for each in lab.provider.check(lab.config)]
    assert len([each for each in messages if each == "no key file /none"]) == 1
    assert len([each for each in messages if "cannot use the key pair `none`" in each]) == 1
    images = f", images: {{{REGION}: ami-0aaaaaaaaaaaaaaa2, {OTHER_REGION}: ami-1234}}"
    lab = RegionalCluster(cloud, tmp_path, where=REGIONS, more=images)
    (problem,) = lab.provider.check(lab.config)
    assert problem.message.startswith(f"{OTHER_REGION}: cannot find the image ami-1234")
    cloud.front.order(
        Fault(action="DescribeAvailabilityZones", do="error", code="OptInRequired", status=400, region=OTHER_REGION)
    )
    lab = RegionalCluster(cloud, tmp_path, where=REGIONS)
    (problem,) = lab.provider.check(lab.config)
    assert f"cannot use the region {OTHER_REGION}" in problem.message
    wrong = RegionalCluster(cloud, tmp_path, where=REGIONS, types="[m5.lage, m5.large]")
    (problem,) = wrong.provider.check(wrong.config)
    assert (problem.message, problem.hint) == (
        "none of the regions has the machine type `m5.lage`",
        "did you mean `m5.large`?",
    )


# ---------------------------------------------------------------------------------------------------- the command line

FILE = f"""
name: lab
place: {{aws: {{{REGIONS}, user: root}}}}
head: {{types: [m5.large], resources: {{CPU: 1, GPU: 0, object_store_memory: 80000000}}}}
groups:
  workers: {{types: [m5.large], count: 1, resources: {{CPU: 1, GPU: 0, object_store_memory: 80000000}}}}
ttl: 30m
"""
SCRIPT = """
import ray, sys, time
ray.init(log_to_driver=False)
while len([node for node in ray.nodes() if node["Alive"]]) < 2:
    time.sleep(0.2)
print("nodes", len(ray.nodes()))
sys.exit(37)
"""


def test_head_and_workers_are_in_the_second_region_and_show_says_what_was_tried(
    cloud: CloudLab, tmp_path: Path
) -> None:
    python = cloud.slot.folder / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "cluster.yaml").write_text(FILE)
    (tmp_path / "train.py").write_text(SCRIPT)
    cloud.front.order(none_left())

    def windlass(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "windlass", "cluster", *words]
        environ = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}
        return subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900)

    try:
        done = windlass("submit", "cluster.yaml", "--start", "--yes", "train.py")
        shown, listed = windlass("show", "lab"), windlass("show", "lab", "--json")
    finally:
        ended = windlass("down", "lab")
        python.unlink()
    assert done.returncode == 37, done.stdout + done.stderr
    assert "nodes 2" in done.stdout
    assert f"all nodes are in one region: the first of {REGION}, {OTHER_REGION} that has a head" in done.stderr
    assert [each.region for each in cloud.front.ledger.all()[-2:]] == [OTHER_REGION, OTHER_REGION]
    assert f"aws ({OTHER_REGION})" in shown.stdout, shown.stdout + shown.stderr
    assert f"not made     1 head: m5.large {REGION}: cannot make m5.large in any zone of {REGION}" in shown.stdout
    assert {each["choice"]["region"] for each in json.loads(listed.stdout)["machines"]} == {OTHER_REGION}
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cluster = find_cluster(Home(tmp_path / "home"), "lab")
    assert cluster.state().is_cleared
    assert (alive(cloud), left_of(cloud, cluster.id)) == ([], {})
