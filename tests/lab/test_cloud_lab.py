"""The lab of EC2 does what tests of clusters rely on: one instance for one token, faults, notices, hosts that boot."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cloud import REGION, CloudLab
from tests.lab.components import COMPONENTS, is_present
from tests.lab.ec2_front import Fault
from tests.lab.hosts import wait_until
from windlass.supervise.node.boot import render_boot

pytestmark = pytest.mark.system

IMAGE = "ami-0aaaaaaaaaaaaaaa2"
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def _api() -> Iterator[CloudLab]:
    if not is_present("s3"):  # moto has both S3 and EC2
        pytest.skip(f"needs s3: {COMPONENTS['s3'].remedy}")
    lab = CloudLab(boots=False, name="api")
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


@pytest.fixture
def api(_api: CloudLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudLab]:
    """The API without hosts."""
    for name, value in _api.env.items():
        monkeypatch.setenv(name, value)
    yield _api
    _api.reset()


def connect(**options: Any) -> Any:
    import boto3  # lazy: only where moto is
    from botocore.config import Config

    return boto3.client("ec2", config=Config(retries={"total_max_attempts": 1}, read_timeout=300, **options))


def run(client: Any, **request: Any) -> dict[str, Any]:
    """Run one instance."""
    asked = {"ImageId": IMAGE, "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1, **request}
    found: dict[str, Any] = client.run_instances(**asked)["Instances"][0]
    return found


def listed(client: Any, **request: Any) -> list[dict[str, Any]]:
    found = client.describe_instances(**request)["Reservations"]
    return [each for reservation in found for each in reservation["Instances"]]


def running(client: Any) -> list[str]:
    """Ids of what runs; what earlier tests ended stays listed for a while, as at Amazon."""
    return [each["InstanceId"] for each in listed(client) if each["State"]["Name"] == "running"]


def code_of(call: Callable[[], object]) -> str:
    from botocore.exceptions import ClientError  # lazy: only where moto is

    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])


# ------------------------------------------------------------------------------------------------------------- the API


def test_one_token_makes_one_instance_however_many_ask_at_once(api: CloudLab) -> None:
    clients = [connect() for _ in range(8)]
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda c=c: found.append(run(c, ClientToken="t")["InstanceId"])) for c in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert api.front.ledger.per_token()["t"] == 1
    assert code_of(lambda: run(clients[0], ClientToken="t", InstanceType="m5.xlarge")) == "IdempotentParameterMismatch"


def test_instances_are_found_by_token(api: CloudLab) -> None:
    client = connect()
    wanted = run(client, ClientToken="mine")["InstanceId"]
    run(client, ClientToken="other")
    by_token = {"Name": "client-token", "Values": ["mine"]}
    assert [each["InstanceId"] for each in listed(client, Filters=[by_token])] == [wanted]
    runs = {"Name": "instance-state-name", "Values": ["running"]}
    assert [each["InstanceId"] for each in listed(client, Filters=[by_token, runs])] == [wanted]
    stopped = {"Name": "instance-state-name", "Values": ["stopped"]}
    assert listed(client, Filters=[by_token, stopped]) == []


def test_what_ec2_refuses_is_refused(api: CloudLab) -> None:
    client = connect()
    assert code_of(lambda: run(client, InstanceType="m5.enormous")) == "InvalidParameterValue"
    assert code_of(lambda: run(client, DryRun=True)) == "DryRunOperation"
    zone = {"AvailabilityZone": REGION + "z"}
    assert code_of(lambda: run(client, Placement=zone)).startswith("Invalid")
    assert api.front.ledger.alive() == []


def test_addresses_are_in_the_labs_network(api: CloudLab) -> None:
    found = [run(connect(), Placement={"AvailabilityZone": REGION + zone}) for zone in "abc"]
    assert [each["Placement"]["AvailabilityZone"] for each in found] == [REGION + zone for zone in "abc"]
    assert all(each["PrivateIpAddress"].startswith(api.slot.network + ".") for each in found)


def test_ledger_has_who_ended_what(api: CloudLab) -> None:
    client = connect()
    spot = run(client, InstanceMarketOptions={"MarketType": "spot"})
    plain = run(client, ClientToken="p", InstanceInitiatedShutdownBehavior="terminate")
    assert listed(client, InstanceIds=[spot["InstanceId"]])[0]["SpotInstanceRequestId"].startswith("sir-")
    api.front.interrupt(spot["InstanceId"], 0.0)
    client.terminate_instances(InstanceIds=[plain["InstanceId"]])
    wait_until(lambda: not api.front.ledger.alive(), "both to end")
    one, two = (api.front.ledger.get(each["InstanceId"]) for each in (spot, plain))
    assert one is not None
    assert two is not None
    assert (one.is_spot, one.why) == (True, "interrupted")
    assert (two.is_spot, two.why, two.token, two.behaviour) == (False, "terminated", "p", "terminate")

    def reason() -> str:
        return str(listed(client, InstanceIds=[spot["InstanceId"]])[0].get("StateReason", {}).get("Code"))

    wait_until(lambda: reason() == "Server.SpotInstanceTermination", "the reason in lists")


def test_lost_reply_leaves_an_instance_and_a_dropped_request_none(api: CloudLab) -> None:
    from botocore.exceptions import ConnectionClosedError, HTTPClientError  # lazy: only where moto is

    client = connect()
    api.front.order(Fault(do="lost", match={"InstanceType": "m5.*"}))
    with pytest.raises((ConnectionClosedError, HTTPClientError)):
        run(client, ClientToken="lost")
    assert api.front.ledger.per_token()["lost"] == 1
    again = run(client, ClientToken="lost")
    assert running(client) == [again["InstanceId"]]
    api.front.order(Fault(do="dropped", skip=1))
    run(client, ClientToken="skipped")
    with pytest.raises((ConnectionClosedError, HTTPClientError)):
        run(client, ClientToken="dropped")
    assert api.front.ledger.per_token()["dropped"] == 0
    assert api.front.clear() == []


def test_errors_and_delays_happen_as_often_as_ordered(api: CloudLab) -> None:
    client = connect()
    api.front.order(Fault(do="error", code="InsufficientInstanceCapacity", times=2))
    assert [code_of(lambda: run(client)) for _ in range(2)] == ["InsufficientInstanceCapacity"] * 2
    api.front.order(Fault(do="delay", seconds=0.3))
    began = time.monotonic()
    run(client)
    assert time.monotonic() - began >= 0.3


def test_lists_that_lag_hide_young_instances(api: CloudLab) -> None:
    client = connect()
    api.front.order(Fault(action="DescribeInstances", do="lie", seconds=600.0))
    name = run(client)["InstanceId"]
    assert running(client) == []
    assert code_of(lambda: listed(client, InstanceIds=[name])) == "InvalidInstanceID.NotFound"
    api.front.clear()
    assert running(client) == [name]


def test_a_long_session_has_addresses_for_all_its_instances(api: CloudLab) -> None:
    client = connect()
    for _ in range(80):
        client.terminate_instances(InstanceIds=[run(client)["InstanceId"]])
    found = [each.address for each in api.front.ledger.all()[-80:]]
    assert all(address.startswith(f"{api.slot.network}.") for address in found)


def test_other_processes_order_faults_and_read_the_ledger(api: CloudLab) -> None:
    def ask(path: str, body: object = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{api.front.url}/lab/{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    client = connect()
    ask("faults", [{"action": "RunInstances", "do": "error", "code": "RequestLimitExceeded", "status": 503}])
    assert code_of(lambda: run(client)) == "RequestLimitExceeded"
    ask("faults", [{"do": "error"}])
    ask("faults", method="DELETE")
    name = run(client, InstanceMarketOptions={"MarketType": "spot"}, ClientToken="http")["InstanceId"]
    ask("interrupt", {"id": name, "notice": 0})
    wait_until(lambda: ask("ledger")[name]["why"] == "interrupted", "the interruption")
    found = ask("ledger")[name]
    assert (found["life"], found["token"], found["type"]) == ("spot", "http", "m5.large")
    assert found["seconds"] == pytest.approx(found["ended_at"] - found["born_at"], abs=0.001)


def test_two_labs_do_not_meet(api: CloudLab) -> None:
    other = CloudLab(boots=False, name="second")
    try:
        other.up()
        run(connect())
        assert (len(api.front.ledger.alive()), len(other.front.ledger.alive())) == (1, 0)
        assert other.front.url != api.front.url
    finally:
        other.down()
    assert not other.slot.folder.exists()


# --------------------------------------------------------------------------------------------------------------- hosts

ASK = """url=$AWS_EC2_METADATA_SERVICE_ENDPOINT/latest
token=$(curl -fsS -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" $url/api/token)
ask() { curl -fsS -H "X-aws-ec2-metadata-token: $token" $url/meta-data/$1; echo; }
"""


def ssh(cloud: CloudLab, address: str, command: str) -> subprocess.CompletedProcess[str]:
    options = ["-F", "none", "-i", str(cloud.slot.folder / "test_key"), "-o", "IdentitiesOnly=yes"]
    options += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    return subprocess.run(["ssh", *options, f"root@{address}", command], capture_output=True, text=True, timeout=300)


def boot(cloud: CloudLab, **request: Any) -> dict[str, Any]:
    found = run(connect(), **request)
    cloud.wait_booted(found["InstanceId"])
    return found


@pytest.fixture
def key(cloud: CloudLab) -> str:
    """A key pair that the API made; its private part is what `ssh` uses."""
    made = connect().create_key_pair(KeyName=f"key-{time.time_ns()}", KeyType="ed25519")
    path: Path = cloud.slot.folder / "test_key"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(made["KeyMaterial"])
    return str(made["KeyName"])


def test_user_data_runs_once_as_root_and_knows_its_instance(cloud: CloudLab) -> None:
    asks = "ask instance-id; ask instance-type; ask instance-life-cycle; ask ../user-data | head -n 1"
    data = f"#!/bin/sh\n{ASK}{asks}\nid -un; echo done\n"
    made = boot(cloud, UserData=data, InstanceMarketOptions={"MarketType": "spot"})
    name = made["InstanceId"]
    wait_until(lambda: "done" in cloud.user_data_log(name), "user data to end")
    assert cloud.user_data_log(name).splitlines() == [name, "m5.large", "spot", "#!/bin/sh", "root", "done"]


def test_key_pairs_let_in_and_hosts_have_their_own_folders(cloud: CloudLab, key: str) -> None:
    one, two = (boot(cloud, KeyName=key)["PrivateIpAddress"] for _ in range(2))
    assert ssh(cloud, one, "echo one >/tmp/file; echo $AWS_ENDPOINT_URL").stdout == f"{cloud.front.url}\n"
    listed = ssh(cloud, two, "ls /tmp")
    assert (listed.returncode, "file" in listed.stdout.split()) == (0, False)  # this repository may be below /tmp
    assert ssh(cloud, one, "cat /tmp/file").stdout == "one\n"


@pytest.mark.parametrize(("behaviour", "state"), [("terminate", "terminated"), ("stop", "stopped")])
def test_host_that_ends_itself_is_recorded(cloud: CloudLab, key: str, behaviour: str, state: str) -> None:
    made = boot(cloud, KeyName=key, InstanceInitiatedShutdownBehavior=behaviour)
    name = made["InstanceId"]
    ssh(cloud, made["PrivateIpAddress"], "shutdown -h now")
    wait_until(lambda: listed(connect(), InstanceIds=[name])[0]["State"]["Name"] == state, f"{name} to be {state}")
    found = cloud.front.ledger.get(name)
    assert found is not None
    assert found.why == "shut down by itself"


def test_terminating_is_a_power_cut(cloud: CloudLab, key: str) -> None:
    made = boot(cloud, KeyName=key, UserData="#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 1; done\n")
    name = made["InstanceId"]
    idle = len(cloud.hosts.processes(boot(cloud)["InstanceId"]))
    wait_until(lambda: len(cloud.hosts.processes(name)) > idle, "user data to run")
    connect().terminate_instances(InstanceIds=[name])
    wait_until(lambda: not cloud.hosts.is_up(name), "the power cut")
    assert cloud.hosts.processes(name) == []
    assert ssh(cloud, made["PrivateIpAddress"], "true").returncode == 255


def test_boot_script_of_windlass_ends_its_machine_at_the_deadline(cloud: CloudLab) -> None:
    at = time.time() + 4
    data = render_boot(shutdown="shutdown -h now", deadline_at=at, deadline_s=4.0)
    name = run(connect(), UserData=data, InstanceInitiatedShutdownBehavior="terminate")["InstanceId"]
    wait_until(lambda: not cloud.front.ledger.alive(), "the deadline")
    found = cloud.front.ledger.get(name)
    assert found is not None
    assert found.ended_at is not None
    assert found.why == "shut down by itself"
    assert int(at) <= found.ended_at


def test_many_instances_boot_at_once(cloud: CloudLab) -> None:
    made = connect().run_instances(ImageId=IMAGE, InstanceType="m5.large", MinCount=12, MaxCount=12)["Instances"]
    for each in made:
        cloud.wait_booted(each["InstanceId"])
    hosts = {cloud.hosts.run(each["InstanceId"], ["hostname", "-I"]).stdout.strip() for each in made}
    assert hosts == {each["PrivateIpAddress"] for each in made}


def test_stopping_cuts_the_power_too(cloud: CloudLab) -> None:
    name = boot(cloud)["InstanceId"]
    connect().stop_instances(InstanceIds=[name])
    wait_until(lambda: not cloud.hosts.is_up(name), "the power cut")
    found = cloud.front.ledger.get(name)
    assert found is not None
    assert found.why == "stopped"


def test_notice_reaches_the_host_before_its_end(cloud: CloudLab) -> None:
    data = f"#!/bin/sh\n{ASK}echo ready\nuntil ask spot/instance-action 2>/dev/null | grep action; do sleep 0.1; done\nsleep 100\n"
    name = boot(cloud, UserData=data, InstanceMarketOptions={"MarketType": "spot"})["InstanceId"]
    wait_until(lambda: "ready" in cloud.user_data_log(name), "user data to run")
    began = time.monotonic()
    cloud.front.interrupt(name, 15.0)
    wait_until(lambda: '"action": "terminate"' in cloud.user_data_log(name), "the notice")
    assert cloud.hosts.is_up(name)
    wait_until(lambda: not cloud.hosts.is_up(name), "the end")
    assert time.monotonic() - began >= 15.0


def test_metadata_is_refused_to_others_and_without_a_session(cloud: CloudLab) -> None:
    path = f"{cloud.front.url}/latest/meta-data/instance-id"
    codes = []
    for headers in ({}, {"X-aws-ec2-metadata-token": "lab-session"}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(path, headers=headers), timeout=120)
        codes.append(caught.value.code)
        caught.value.close()
    assert codes == [401, 404]
