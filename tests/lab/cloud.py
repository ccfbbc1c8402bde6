"""A small EC2 on this machine: moto's API behind `Ec2Front`, and instances that boot as virtual hosts.

An instance's host has the instance's private address, its own /tmp and /dev/shm, and lets in the keys of all key pairs.
User data runs at its first boot, as root, with the metadata service in its environment. A host that ends itself
(`shutdown` there means this) is terminated or stopped as its InstanceInitiatedShutdownBehavior says. Terminating an
instance is a power cut.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tests.lab.ec2_front import Ec2Front, Instance
from tests.lab.hosts import REPO, Hosts, clean_environment, wait_until
from tests.lab.slots import Slot, claim, dismantle

__all__ = ["OTHER_REGION", "REGION", "CloudHosts", "CloudLab"]

REGION = "us-west-2"
OTHER_REGION = "us-east-1"
UBUNTU_OWNER = "099720109477"
"""Account of Canonical at Amazon; moto's own images of it are older than 22.04."""

_SUBNETS = {
    f"{REGION}a": "64/26",
    f"{REGION}b": "128/26",
    f"{REGION}c": "192/27",
    f"{OTHER_REGION}a": "224/27",
}
"""Subnets by zone, by the last number of their address; below them are this machine's addresses."""

_SHUTDOWN = (
    "#!/bin/sh\n# What a machine's own end is here: the programs of that name would end this machine.\nkill -TERM 1\n"
)
_SHUTDOWN_NAMES = ("shutdown", "poweroff", "halt", "reboot")


class _CloudSlot(Slot):
    """Slot whose hosts are in moto's default VPC, 172.31.0.0/16, above its default subnets."""

    @property
    def network(self) -> str:
        return f"172.31.{128 + self.number}"


class CloudHosts(Hosts):
    """Hosts that come and go, each at the address that its instance was given."""

    def __init__(self, slot: Slot, exported: Mapping[str, str]) -> None:
        super().__init__(slot, (), own=("/tmp", "/dev/shm"), exported=exported)
        self._addresses: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._count = itertools.count(1)

    def prepare(self) -> None:
        """Make the network, and the program that ends a host."""
        self._make_bridge()
        self._write_names_and_keys()
        folder = self.slot.folder / "bin"
        folder.mkdir()
        for name in _SHUTDOWN_NAMES:
            (folder / name).write_text(_SHUTDOWN)
            (folder / name).chmod(0o755)

    def boot(self, name: str, address: str) -> None:
        """Boot a host; returns when it takes ssh connections."""
        self._addresses[name] = address
        if name not in self._numbers:
            self._numbers[name] = next(self._count)  # hosts boot in several threads
        self.start(name)
        # Scripts with another PATH find these too: in this mount namespace only, systemctl is the script.
        mount = f'for name in {" ".join(_SHUTDOWN_NAMES)}; do path=$(command -v "/usr/sbin/$name") || continue; '
        mount += f'mount --bind {self.slot.folder}/bin/"$name" "$path"; done'
        self.run(name, ["sh", "-c", mount])

    def ip(self, name: str) -> str:
        return self._addresses[name]

    def _cable(self, name: str) -> str:
        return f"{self.slot.bridge}-{self._numbers[name]}"


class CloudLab:
    """One cloud with everything of its own.

    Args:
        boots: whether instances boot as hosts; without, there is only the API, and no root is needed.
        boot_s: time before a host boots.
    """

    def __init__(self, *, boots: bool = True, boot_s: float = 0.0, name: str = "cloud") -> None:
        self.boots, self.boot_s, self._name = boots, boot_s, f"{name}-of-{os.getpid()}"
        self._moto: subprocess.Popen[bytes] | None = None
        self._pool = ThreadPoolExecutor(max_workers=16)
        self._boots: dict[str, Future[None]] = {}
        self._up: set[str] = set()
        self._children: list[subprocess.Popen[bytes]] = []
        self._ends = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    # -------------------------------------------------------------------------------------------------- life of a lab

    def up(self) -> None:
        """Start the API; returns when it answers."""
        slot = claim(self._name)
        self.slot: Slot = _CloudSlot(**asdict(slot))
        self._start_moto()
        host = f"{self.slot.network}.1" if self.boots else "127.0.0.1"
        if self.boots:
            self.hosts = CloudHosts(self.slot, {})
            self.hosts.prepare()
        self.front = Ec2Front((host, self.slot.port(1) if self.boots else 0), self._moto_port, {})
        self.front.subnets = self._make_subnets()
        self.front.on_key = self._let_in
        self.front.start()
        if self.boots:
            self.hosts.exported = {"PATH": self._path, **self.guest_env}
            self.front.on_run, self.front.on_end = self._run, self._end
            self._watcher.start()

    def down(self) -> None:
        """End all of it; idempotent."""
        self._ends.set()
        if self._watcher.is_alive():
            self._watcher.join()
        if hasattr(self, "front"):
            self.front.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._moto is not None:
            self._moto.kill()
            self._moto.wait()
            self._moto = None
        if hasattr(self, "slot"):
            dismantle(self.slot)

    # ---------------------------------------------------------------------------------------------------- for a test

    @property
    def env(self) -> dict[str, str]:
        """Return the variables with which a client on this machine finds the API."""
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}
        return {**keys, "AWS_ENDPOINT_URL": self.front.url, "AWS_CONFIG_FILE": os.devnull}

    @property
    def guest_env(self) -> dict[str, str]:
        """Return the variables of user data and ssh sessions in hosts; credentials come from the metadata service."""
        url = self.front.url
        return {"AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": url, "AWS_DEFAULT_REGION": REGION}

    def reset(self) -> None:
        """End every instance and cancel every fault, between two tests; raises what a boot raised."""
        self.front.clear()
        for each in self.front.ledger.alive():
            self.front.ledger.end(each.id, "the lab's reset")
            self.front.ask({"Action": "TerminateInstances", "InstanceId.1": each.id}, region=each.region)
            self._end(each.id)
        boots, self._boots = self._boots, {}
        for boot in boots.values():
            boot.result(timeout=300)

    def wait_booted(self, name: str) -> None:
        """Wait until an instance's host takes ssh connections and its user data was started."""
        self._boots[name].result(timeout=300)

    def user_data_log(self, name: str) -> str:
        """Return what an instance's user data has printed."""
        path = self.hosts.disk(name) / "user-data.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -------------------------------------------------------------------------------------------------------- private

    @property
    def _path(self) -> str:
        return f"{self.slot.folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"

    def _start_moto(self) -> None:
        images = self.slot.folder / "images.json"
        images.write_text(json.dumps(_images()))
        env = {**clean_environment(self.slot), "MOTO_AMIS_PATH": str(images), "MOTO_IAM_LOAD_MANAGED_POLICIES": "true"}
        self._moto_port = self.slot.port(0)
        argv = [sys.executable, "-m", "tests.lab.ec2_moto", "-H", "127.0.0.1", "-p", str(self._moto_port)]
        with (self.slot.folder / "moto.log").open("wb") as log:
            self._moto = subprocess.Popen(argv, cwd=REPO, env=env, stdout=log, stderr=log, start_new_session=True)

        def is_up() -> bool:
            assert self._moto is not None
            assert self._moto.poll() is None, (self.slot.folder / "moto.log").read_text()
            connection = HTTPConnection("127.0.0.1", self._moto_port, timeout=10)
            try:
                connection.request("GET", "/moto-api/data.json")
                return connection.getresponse().status == 200
            except (OSError, HTTPException):
                return False
            finally:
                connection.close()

        wait_until(is_up, "moto to answer", timeout_s=300, poll_s=0.05)

    def _make_subnets(self) -> dict[str, str]:
        """Return the lab's subnets by zone."""
        found = {}
        for zone, part in _SUBNETS.items():
            region = zone[:-1]
            vpc = re.search(rb"<vpcId>(.*?)</vpcId>", self.front.ask({"Action": "DescribeVpcs"}, region=region).body)
            assert vpc is not None, (self.slot.folder / "moto.log").read_text()
            query = {"VpcId": vpc[1].decode(), "CidrBlock": f"{self.slot.network}.{part}"}
            query |= {"Action": "CreateSubnet", "AvailabilityZone": zone}
            reply = self.front.ask(query, region=region)
            subnet = re.search(rb"<subnetId>(.*?)</subnetId>", reply.body)
            assert subnet is not None, reply.body
            found[zone] = subnet[1].decode()
        return found

    def _let_in(self, public: str) -> None:
        with (self.slot.folder / "authorized_keys").open("a") as file:
            file.write(public.strip() + "\n")

    def _run(self, instance: Instance) -> None:
        self._boots[instance.id] = self._pool.submit(self._boot, instance)

    def _boot(self, instance: Instance) -> None:
        self._ends.wait(self.boot_s)
        if not self._is_alive(instance.id):
            return
        self.hosts.boot(instance.id, instance.address)
        if instance.user_data:
            script = self.hosts.disk(instance.id) / "user-data"
            script.write_bytes(instance.user_data)
            script.chmod(0o700)
            with (self.hosts.disk(instance.id) / "user-data.log").open("wb") as log:
                child = subprocess.Popen(
                    ["setsid", *self.hosts.inside(instance.id, ["sh", "-c", 'cd; exec "$0"', str(script)])],
                    env={"PATH": self._path, "HOME": str(Path.home()), "LANG": "C.UTF-8", **self.guest_env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._children.append(child)
        self._up.add(instance.id)
        if not self._is_alive(instance.id):
            self._cut(instance.id)

    def _is_alive(self, name: str) -> bool:
        found = self.front.ledger.get(name)
        return found is not None and found.ended_at is None

    def _end(self, name: str) -> None:
        if name in self._boots:
            self._boots[name].add_done_callback(lambda done: self._cut(name))

    def _cut(self, name: str) -> None:
        self._up.discard(name)
        if name in self.hosts._numbers:
            self.hosts.kill(name)

    def _watch(self) -> None:
        """Notice hosts that ended themselves."""
        while not self._ends.wait(0.1):
            for name in list(self._up):
                if not self.hosts.is_up(name) and name in self._up:
                    self._up.discard(name)
                    self.front.end_by_itself(name)


def _images() -> list[dict[str, object]]:
    """Return what moto knows of images: one Ubuntu 22.04 of two dates, and one of somebody else with the same name."""
    one = {
        "architecture": "x86_64",
        "description": "Canonical, Ubuntu, 22.04 LTS",
        "hypervisor": "xen",
        "image_type": "machine",
        "platform": None,
        "public": True,
        "root_device_name": "/dev/sda1",
        "root_device_type": "ebs",
        "sriov": "simple",
        "state": "available",
        "virtualization_type": "hvm",
    }
    made = [("ami-0aaaaaaaaaaaaaaa1", "20260101", UBUNTU_OWNER), ("ami-0aaaaaaaaaaaaaaa2", "20260601", UBUNTU_OWNER)]
    made.append(("ami-0bbbbbbbbbbbbbbb1", "20261101", "123456789999"))
    return [
        {
            **one,
            "ami_id": name,
            "name": f"ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-{date}",
            "owner_id": owner,
            "image_location": f"{owner}/ubuntu-{date}",
            "creation_date": f"{date[:4]}-{date[4:6]}-{date[6:]}T00:00:00.000Z",
        }
        for name, date, owner in made
    ]
