"""EC2 beside an API with faults: what the ledger says is what counts; machines, keys and rights are the cluster's alone."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cloud import REGION, CloudLab
from tests.lab.ec2_ledger import Fault
from tests.lab.hosts import REPO
from tests.system.cluster.aws_lab import AwsCluster, until
from windlass.backends.site_shell import SshShell
from windlass.cluster.machine import Choice
from windlass.cluster.providers.aws.network import key_path
from windlass.cluster.providers.aws.profile import head_policy
from windlass.cluster.providers.protocol import (
    NoCapacityError,
    RefusedError,
    ThrottledError,
    UncertainError,
)
from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError
from windlass.record.journal import JournalWriter
from windlass.supervise.node.boot import render_boot

pytestmark = pytest.mark.system


@pytest.fixture
def lab(cloud: CloudLab, tmp_path: Path) -> AwsCluster:
    return AwsCluster(cloud, tmp_path)


def boto(service: str, cloud: CloudLab) -> Any:
    import boto3

    return boto3.client(service, region_name=REGION, endpoint_url=cloud.front.url)


def made_of(lab: AwsCluster) -> int:
    """Return how many instances the ledger has of a cluster's tokens that begin with `t`."""
    return sum(each.token.startswith(f"t-{lab.cluster}") for each in lab.cloud.front.ledger.all())


# -------------------------------------------------------------------------------------------------------------- requests


def test_one_lost_reply_is_asked_for_again_with_the_same_token(lab: AwsCluster) -> None:
    lab.cloud.front.order(Fault(do="lost"))
    (made,) = lab.create(f"t-{lab.cluster}")
    assert made_of(lab) == 1
    assert lab.cloud.front.clear() == []
    assert [each.id for each in lab.provider.find(f"t-{lab.cluster}")] == [made.id]


def test_replies_that_stay_lost_are_found_by_token(lab: AwsCluster) -> None:
    token = f"t-{lab.cluster}"
    lab.cloud.front.order(Fault(do="lost", times=3))
    with pytest.raises(UncertainError):
        lab.create(token)
    (found,) = lab.provider.find(token)
    assert [each.id for each in lab.create(token)] == [found.id]
    assert made_of(lab) == 1


def test_a_request_that_never_arrived_made_nothing(lab: AwsCluster) -> None:
    token = f"t-{lab.cluster}"
    lab.cloud.front.order(Fault(do="dropped", times=3))
    with pytest.raises(UncertainError):
        lab.create(token)
    assert lab.provider.find(token) == []
    assert made_of(lab) == 0
    lab.create(token)
    assert made_of(lab) == 1


def test_too_many_requests_wait(lab: AwsCluster) -> None:
    lab.cloud.front.order(Fault(do="error", code="RequestLimitExceeded", status=503))
    with pytest.raises(ThrottledError) as caught:
        lab.create(f"t-{lab.cluster}")
    assert caught.value.after_s > 0
    assert made_of(lab) == 0


def test_a_token_with_another_request_is_refused(lab: AwsCluster) -> None:
    lab.create(f"t-{lab.cluster}")
    with pytest.raises(RefusedError, match="IdempotentParameterMismatch"):
        lab.create(f"t-{lab.cluster}", count=2)
    assert made_of(lab) == 1


def test_a_refusal_says_what_to_type(lab: AwsCluster) -> None:
    lab.cloud.front.order(Fault(do="error", code="VcpuLimitExceeded", status=400, message="32 vCPUs"))
    with pytest.raises(RefusedError) as caught:
        lab.create(f"t-{lab.cluster}")
    assert caught.value.message == "cannot make m5.large in any zone of us-west-2: 32 vCPUs (VcpuLimitExceeded)"
    assert "servicequotas" in caught.value.hint


def test_without_capacity_the_next_type_is_taken_and_what_was_tried_is_known(lab: AwsCluster) -> None:
    match = {"InstanceType": r"m5\.large", "MaxCount": "2"}
    lab.cloud.front.order(Fault(do="error", code="InsufficientInstanceCapacity", times=99, match=match))
    state = lab.drive("up").state
    assert sorted(each.choice.type for each in state.living("workers")) == ["m5.xlarge", "m5.xlarge"]
    (refused,) = state.refused
    assert "InsufficientInstanceCapacity" in refused.detail
    lab.drive("down")


def test_no_capacity_at_all_is_one_error_with_all_that_was_tried(lab: AwsCluster) -> None:
    lab.cloud.front.order(
        Fault(do="error", code="InsufficientInstanceCapacity", times=99, match={"MaxCount": "2"}, message="none left")
    )
    with pytest.raises(PreconditionError) as caught:
        lab.drive("up")
    assert caught.value.code == NoCapacityError.default_code
    for kind in ("m5.large", "m5.xlarge"):
        assert f"cannot make {kind} in any zone of us-west-2: none left" in caught.value.message
    lab.cloud.front.clear()
    lab.drive("down")
    assert lab.cloud.front.ledger.alive() == []


def test_lists_that_lag_double_nothing(lab: AwsCluster) -> None:
    lab.cloud.front.order(
        Fault(action="DescribeInstances", do="lie", seconds=2.0, seconds_long=30.0), Fault(do="lost", times=3, skip=1)
    )
    before = {each.id for each in lab.cloud.front.ledger.all()}  # other tests' instances, of other files too
    lab.drive("up")
    made = [each for each in lab.cloud.front.ledger.all() if each.id not in before]
    assert len(made) == 3
    assert max(Counter(each.token for each in made).values()) <= 2
    lab.drive("down")
    assert lab.cloud.front.ledger.alive() == []


@pytest.mark.parametrize("window_s", [5.0, 0.0])
def test_down_ends_what_no_list_showed_yet_because_it_waits_for_the_window(lab: AwsCluster, window_s: float) -> None:
    """A request whose reply is lost is followed by the death of its client; without the window, its machine leaks."""
    lab.provider.window_s = window_s
    front = lab.cloud.front
    front.order(
        # Without the window, `down` must not be too slow to see the lie's end.
        Fault(action="DescribeInstances", do="lie", seconds=3.0 if window_s else 600.0, seconds_long=600.0),
        Fault(do="lost", times=3, match={"MaxCount": "2"}),
    )
    with closing(JournalWriter(lab.folder / "journal", "client", SystemClock())) as journal:
        controller = lab.controller(journal)
        controller.want("up")
        until(lambda: controller.round() is not None and controller.state.open_intents, "a request without a reply")
    assert len(front.ledger.alive()) == 3
    lab.drive("down")
    assert bool(front.ledger.alive()) == (window_s == 0.0)


def test_down_waits_for_instances_that_take_their_time(lab: AwsCluster) -> None:
    lab.drive("up")
    lab.cloud.front.ending_s = 3.0
    try:
        began_s = time.monotonic()
        lab.drive("down")
        assert time.monotonic() - began_s >= 3.0 + lab.provider.window_s
    finally:
        lab.cloud.front.ending_s = 0.0


def test_terminating_again_and_unknown_ids_are_no_failures(lab: AwsCluster) -> None:
    (made,) = lab.create(f"t-{lab.cluster}")
    for _ in range(2):
        lab.provider.terminate([made.id, "i-0123456789abcdef0", "i-0123456789abcdef1"])
    assert lab.cloud.front.ledger.alive() == []
    (ended,) = lab.provider.describe([made.id, "i-0123456789abcdef0"])
    assert ended.state == "ended"
    assert ended.why


# ------------------------------------------------------------------------------------------------------------- the hosts


def test_a_machine_ends_itself_at_its_deadline_with_all_else_dead(lab: AwsCluster) -> None:
    front = lab.cloud.front
    deadline_at = time.time() + 20.0
    boot = render_boot(shutdown=lab.place.shutdown, deadline_at=deadline_at, deadline_s=20.0)
    made = lab.booted(f"t-{lab.cluster}", boot=boot, deadline_at=deadline_at)
    front.close()
    try:
        assert time.time() < deadline_at, "it booted too slowly to prove anything"
        until(lambda: not front.ledger.alive(), "the machine's end")
    finally:
        front.start()
    found = front.ledger.get(made.id)
    assert found is not None
    assert found.ended_at is not None
    assert found.why == "shut down by itself"
    assert deadline_at - 1.0 <= found.ended_at <= deadline_at + 60.0
    until(lambda: not lab.provider.list_machines(lab.cluster), "the list to be empty")


def test_ssh_has_a_key_of_the_cluster_and_keeps_host_keys_in_its_folder(lab: AwsCluster) -> None:
    made = lab.booted(f"t-{lab.cluster}")
    shell = lab.place.host(made).shell
    assert isinstance(shell, SshShell)
    try:
        assert shell.run(["hostname"]).out.strip() == made.id
    finally:
        shell.close()
    settings = lab.config.place.aws
    assert settings is not None
    key = key_path(settings, lab.folder)
    assert key.parent == lab.folder
    assert key.stat().st_mode & 0o777 == 0o600
    assert (lab.folder / "known_hosts").read_text().count("ssh-ed25519") == 1


def test_the_head_alone_has_credentials(lab: AwsCluster) -> None:
    ask = "import boto3; print(len(boto3.client('ec2').describe_instances()['Reservations']))"
    for group in ("head", "workers"):
        made = lab.booted(f"t-{lab.cluster}-{group}", group=group)
        shell = lab.place.host(made).shell
        assert isinstance(shell, SshShell)
        try:
            done = shell.run([sys.executable, "-c", ask], env={"PYTHONPATH": str(REPO / "src")}, timeout_s=300)
        finally:
            shell.close()
        assert (done.code == 0) == (group == "head"), done
        assert ("NoCredentialsError" in done.err) == (group == "workers")


def test_a_spot_machine_hears_of_its_end(cloud: CloudLab, tmp_path: Path) -> None:
    lab = AwsCluster(cloud, tmp_path, group=", market: spot")
    made = lab.booted(f"t-{lab.cluster}")
    assert made.choice.is_spot
    shell = lab.place.host(made).shell
    assert isinstance(shell, SshShell)
    code = "from windlass.cluster.providers.aws.notices import fetch_notices; print(fetch_notices())"

    def notices() -> str:
        argv, env = [sys.executable, "-c", code], {"PYTHONPATH": str(REPO / "src")}
        return shell.run(argv, env=env, timeout_s=300).out.strip()

    try:
        assert notices() == "[]"
        cloud.front.interrupt(made.id, 600.0)
        assert "kind='terminate'" in notices()
    finally:
        shell.close()
    cloud.front.interrupt(made.id, 0.0)
    until(lambda: not lab.provider.list_machines(lab.cluster), "the interruption")
    (ended,) = lab.provider.describe([made.id])
    assert ended.why.startswith("Server.SpotInstanceTermination")


# ------------------------------------------------------------------------------------------------ what is made besides


def test_all_that_was_made_for_a_cluster_goes_with_it(lab: AwsCluster) -> None:
    ec2, iam = boto("ec2", lab.cloud), boto("iam", lab.cloud)
    name = f"windlass-{lab.cluster}"

    def names() -> set[str]:
        found = {each["KeyName"] for each in ec2.describe_key_pairs()["KeyPairs"]}
        found |= {each["GroupName"] for each in ec2.describe_security_groups()["SecurityGroups"]}
        found |= {each["RoleName"] for each in iam.list_roles()["Roles"]}
        found |= {each["InstanceProfileName"] for each in iam.list_instance_profiles()["InstanceProfiles"]}
        return {each for each in found if lab.cluster in each}

    assert lab.provider.check(lab.config) == []
    assert names() == set()
    lab.create("head", group="head")
    lab.create("worker")
    assert names() == {name}
    (group,) = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [name]}])["SecurityGroups"]
    opened = {(each["IpProtocol"], each.get("FromPort")) for each in group["IpPermissions"]}
    assert opened == {("-1", None), ("tcp", 22)}
    policy = iam.get_role_policy(RoleName=name, PolicyName="windlass")["PolicyDocument"]
    assert policy == head_policy(lab.cluster, [REGION], name)
    lab.drive("down")
    for _ in range(2):
        lab.place.close()
    assert names() == set()
    assert not (lab.folder / "aws_key").exists()


def test_the_newest_image_of_canonical_is_taken(lab: AwsCluster) -> None:
    (made,) = lab.create(f"t-{lab.cluster}")
    (found,) = boto("ec2", lab.cloud).describe_instances(InstanceIds=[made.id])["Reservations"][0]["Instances"]
    assert found["ImageId"] == "ami-0aaaaaaaaaaaaaaa2"


def test_further_fields_of_the_request_reach_ec2(cloud: CloudLab, tmp_path: Path) -> None:
    lab = AwsCluster(cloud, tmp_path, group=", options: {Monitoring: {Enabled: true}}")
    assert lab.provider.check(lab.config) == []
    (made,) = lab.create(f"t-{lab.cluster}")
    (found,) = boto("ec2", cloud).describe_instances(InstanceIds=[made.id])["Reservations"][0]["Instances"]
    assert found["Monitoring"]["State"] == "enabled"


def test_a_script_that_is_too_long_is_refused_before_the_request(lab: AwsCluster) -> None:
    with pytest.raises(RefusedError, match="16385 bytes"):
        lab.create("t", boot=b"#" * 16385)


# --------------------------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("more", "group", "message", "hint"),
    [
        (", zones: [us-west-2z]", "", "`us-west-2` has no zone `us-west-2z`", "choose among us-west-2a"),
        (", image: ami-1234", "", "cannot find the image ami-1234", "place.aws.image"),
        (", subnets: [subnet-1234]", "", "cannot use the subnets", "place.aws.subnets"),
        (", security_groups: [sg-1234]", "", "cannot use the security groups", "place.aws.security_groups"),
        (", key: /none, key_name: none", "", "no key file /none", "correct `place.aws.key`"),
        (", profile: none", "", "cannot use the instance profile `none`", "list-instance-profiles"),
        ("", ", options: {Monitorin: 1}", "unknown field `Monitorin`", "RunInstances"),
    ],
)
def test_what_would_fail_is_said_before_anything_is_made(
    cloud: CloudLab, tmp_path: Path, more: str, group: str, message: str, hint: str
) -> None:
    lab = AwsCluster(cloud, tmp_path, more=more, group=group)
    before = cloud.front.calls["RunInstances"]
    found = lab.provider.check(lab.config)
    assert [each for each in found if message in each.message and hint in each.hint], found
    assert cloud.front.calls["RunInstances"] == before


def test_unknown_types_are_named_with_the_nearest(cloud: CloudLab, tmp_path: Path) -> None:
    lab = AwsCluster(cloud, tmp_path)
    wrong = replace(lab.config, head=replace(lab.config.head, types=("m5.lage",)))
    (problem,) = lab.provider.check(wrong)
    assert problem.message == "us-west-2 has no machine type `m5.lage`"
    assert problem.hint == "did you mean `m5.large`?"


@pytest.mark.parametrize(
    ("code", "hint"), [("RequestExpired", "timedatectl set-ntp true"), ("AuthFailure", "aws configure")]
)
def test_clock_and_credentials_are_checked(lab: AwsCluster, code: str, hint: str) -> None:
    lab.cloud.front.order(Fault(action="DescribeAvailabilityZones", do="error", code=code, status=400))
    (problem,) = lab.provider.check(lab.config)
    assert code in problem.message
    assert hint in problem.hint


def test_without_credentials_nothing_is_asked(lab: AwsCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (problem,) = lab.provider.check(lab.config)
    assert problem.message == "cannot use the credentials: no credentials for AWS"
    assert "aws configure" in problem.hint


def test_an_api_that_does_not_reply_is_uncertain(lab: AwsCluster) -> None:
    lab.cloud.front.close()
    try:
        for ask in (
            lambda: lab.provider.list_machines(lab.cluster),
            lambda: lab.provider.find("t"),
            lambda: lab.provider.describe(["i-1"]),
            lambda: lab.provider.terminate(["i-1"]),
        ):
            _raises_uncertain(ask)
    finally:
        lab.cloud.front.start()


def _raises_uncertain(ask: Callable[[], object]) -> None:
    with pytest.raises(UncertainError):
        ask()


def test_choices_are_types_by_zone_and_market_in_order(cloud: CloudLab, tmp_path: Path) -> None:
    zones = ", zones: [us-west-2b, us-west-2a]"
    lab = AwsCluster(cloud, tmp_path, more=zones, group=", market: spot-first")
    found = lab.provider.choices(lab.config, "workers")
    assert [(each.is_spot, each.type, each.zone) for each in found[:3]] == [
        (True, "m5.large", "us-west-2b"),
        (True, "m5.large", "us-west-2a"),
        (True, "m5.xlarge", "us-west-2b"),
    ]
    assert [each.is_spot for each in found] == [True] * 4 + [False] * 4
    assert found[0].price_per_hour == 0.096
    (made,) = lab.create(f"t-{lab.cluster}")
    assert made.choice == Choice(
        type="m5.large", region="us-west-2", zone="us-west-2b", is_spot=True, price_per_hour=0.096
    )
