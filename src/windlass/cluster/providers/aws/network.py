"""Parts that instances of a cluster need in a region: image, key pair, security group.

What is made is named after the cluster's id, looked up before it is made, and removed by `remove`, so that all of it is
idempotent and a client that dies leaves nothing that the next one does not find.
"""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from windlass.cluster.config import AwsPlace, NodeGroupConfig
from windlass.cluster.providers.aws.client import AwsClient
from windlass.cluster.providers.aws.request import CLUSTER_TAG, InstanceSettings
from windlass.cluster.providers.protocol import RefusedError, UncertainError
from windlass.core.errors import PreconditionError

__all__ = ["CANONICAL", "IMAGE_NAME", "AwsNetwork", "fetch_image", "key_path"]

CANONICAL = "099720109477"
"""Account of Canonical, by which its images are known; source: Ubuntu on AWS, "Find Ubuntu images"."""

IMAGE_NAME = "ubuntu/images/hvm-ssd*/ubuntu-jammy-22.04-amd64-server-*"
_KEY_FILE = "aws_key"
_SSH_PORT = 22
_REMOVE_S = 120.0
_PAUSE_S = 2.0
_DUPLICATES = ("InvalidGroup.Duplicate", "InvalidPermission.Duplicate")
_MISSING = ("InvalidGroup.NotFound", "InvalidKeyPair.NotFound", "InvalidGroupId.Malformed")


def key_path(place: AwsPlace, folder: Path) -> Path:
    """Return the private key's file: the stated one, or the cluster's."""
    return Path(place.key).expanduser() if place.key else folder / _KEY_FILE


class AwsNetwork:
    """Image, key pair and security group of a cluster in one region."""

    def __init__(self, client: AwsClient, place: AwsPlace, *, cluster: str, folder: Path) -> None:
        self._client, self._place, self._cluster, self._folder = client, place, cluster, folder
        self._name = f"windlass-{cluster}"
        self._lock = threading.Lock()
        self._images: dict[str, dict[str, Any]] = {}
        self._made: dict[str, Any] = {}

    def ensure(self, group: NodeGroupConfig, *, profile: str) -> InstanceSettings:
        """Return what a group's instances need; makes what is missing. Idempotent.

        Args:
            profile: name of their instance profile; empty: none.

        Raises:
            ProviderError: one of its four kinds.
        """
        with self._lock:
            image = str(group.options.get("ImageId") or self._place.image or self._newest_image())
            if image not in self._images:
                self._images[image] = fetch_image(self._client, image)
            device, disk = _first_disk(self._images[image])
            return InstanceSettings(
                image=image,
                root_device=device,
                root_gib=int(disk.get("VolumeSize") or 0),
                is_disk_kept=disk.get("DeleteOnTermination") is False,
                key_name=self._once("key", self._ensure_key),
                security_groups=self._once("groups", self._security_groups),
                profile=profile,
            )

    def remove(self) -> None:
        """Remove what was made for the cluster; called once it has no machines. Idempotent.

        Raises:
            ProviderError: something is left.
        """
        if not self._place.key_name:
            self._client.call("delete_key_pair", what="cannot remove the key pair", KeyName=self._name, absent=_MISSING)
            for path in (self._folder / _KEY_FILE, self._folder / f"{_KEY_FILE}.pub"):
                path.unlink(missing_ok=True)
        if not self._place.security_groups:
            self._remove_security_group()
        self._made.clear()

    def _once(self, name: str, make: Any) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    # ---------------------------------------------------------------------------------------------------------- image

    def _newest_image(self) -> str:
        return str(self._once("image", lambda: fetch_image(self._client, "")["ImageId"]))

    # ------------------------------------------------------------------------------------------------------- key pair

    def _ensure_key(self) -> str:
        if self._place.key_name:
            return self._place.key_name
        what = "cannot make the key pair"
        found = self._client.call(
            "describe_key_pairs", what=what, Filters=[{"Name": "key-name", "Values": [self._name]}]
        )["KeyPairs"]
        private, public = self._folder / _KEY_FILE, self._folder / f"{_KEY_FILE}.pub"
        if found:
            return self._name  # on the head, the key stays with the client
        if not private.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self._name, "-f", str(private)]
            try:
                done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            except FileNotFoundError as error:
                hint = "install the OpenSSH client and try again"
                raise PreconditionError("`ssh-keygen` is not installed", hint=hint, code="program-missing") from error
            if done.returncode:
                raise RefusedError(f"ssh-keygen: {done.stderr.strip()}", hint=f"is {self._folder} writable?")
        self._client.call(
            "import_key_pair",
            what=what,
            absent=("InvalidKeyPair.Duplicate",),
            KeyName=self._name,
            PublicKeyMaterial=public.read_bytes(),
            TagSpecifications=self._tags("key-pair"),
        )
        return self._name

    # ------------------------------------------------------------------------------------------------- security group

    def _security_groups(self) -> tuple[str, ...]:
        stated = self._place.security_groups
        if not stated:
            return (self._ensure_security_group(),)
        names = [each for each in stated if not each.startswith("sg-")]
        if not names:
            return stated
        found = self._client.pages(
            "describe_security_groups",
            "SecurityGroups",
            what="cannot find the security groups",
            Filters=[{"Name": "group-name", "Values": names}, {"Name": "vpc-id", "Values": [self._vpc()]}],
        )
        ids = {str(each["GroupName"]): str(each["GroupId"]) for each in found}
        for name in names:
            if name not in ids:
                hint = "`aws ec2 describe-security-groups` lists those for `place.aws.security_groups`"
                raise RefusedError(f"no security group `{name}` in {self._place.region}", hint=hint)
        return tuple(ids.get(each, each) for each in stated)

    def _ensure_security_group(self) -> str:
        """Return our own group: open for its members among each other, and for ssh from everywhere."""
        what = "cannot make the security group"
        vpc = self._vpc()
        found = self._own_groups(what, vpc)
        if not found:
            self._client.call(
                "create_security_group",
                what=what,
                absent=_DUPLICATES,
                GroupName=self._name,
                Description=f"windlass cluster {self._cluster}",
                VpcId=vpc,
                TagSpecifications=self._tags("security-group"),
            )
            found = self._own_groups(what, vpc)
        if not found:
            raise UncertainError(f"{what}: it is not listed yet", hint="try again")
        name = found[0]
        inside = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": name}]}
        world = [{"CidrIp": "0.0.0.0/0", "Description": "ssh, with the cluster's key"}]
        ssh = {"IpProtocol": "tcp", "FromPort": _SSH_PORT, "ToPort": _SSH_PORT, "IpRanges": world}
        for rule in (inside, ssh):
            self._client.call(
                "authorize_security_group_ingress", what=what, absent=_DUPLICATES, GroupId=name, IpPermissions=[rule]
            )
        return name

    def _own_groups(self, what: str, vpc: str = "") -> list[str]:
        filters = [{"Name": "group-name", "Values": [self._name]}]
        filters += [{"Name": "vpc-id", "Values": [vpc]}] if vpc else []
        pages = self._client.pages("describe_security_groups", "SecurityGroups", what=what, Filters=filters)
        return [str(each["GroupId"]) for each in pages]

    def _remove_security_group(self) -> None:
        """Remove our group; EC2 refuses this for some seconds after the end of its last member."""
        what = "cannot remove the security group"
        end_s = time.monotonic() + _REMOVE_S
        for name in self._own_groups(what):
            while True:
                try:
                    self._client.call("delete_security_group", what=what, absent=_MISSING, GroupId=name)
                    break
                except RefusedError as error:
                    if "(DependencyViolation)" not in error.message or time.monotonic() > end_s:
                        raise
                time.sleep(_PAUSE_S)

    def _vpc(self) -> str:
        """Return the network of the stated subnets, or the default one."""
        return str(self._once("vpc", self._fetch_vpc))

    def _fetch_vpc(self) -> str:
        what = "cannot find the network"
        if self._place.subnets:
            ids = list(self._place.subnets)
            found = [
                str(each["VpcId"])
                for each in self._client.pages("describe_subnets", "Subnets", what=what, SubnetIds=ids)
            ]
        else:
            default = [{"Name": "is-default", "Values": ["true"]}]
            found = [
                str(each["VpcId"]) for each in self._client.pages("describe_vpcs", "Vpcs", what=what, Filters=default)
            ]
        if not found:
            hint = "add a subnet as `place.aws.subnets`, or `aws ec2 create-default-vpc`"
            raise RefusedError(f"{self._place.region} has no default network", hint=hint)
        if len(set(found)) > 1:
            raise RefusedError(
                "the subnets are of several networks", hint="name subnets of one VPC in `place.aws.subnets`"
            )
        return found[0]

    def _tags(self, kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": [{"Key": CLUSTER_TAG, "Value": self._cluster}]}]


def _first_disk(image: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name = str(image.get("RootDeviceName") or "/dev/sda1")
    disks = image.get("BlockDeviceMappings", [])
    return name, next((dict(each.get("Ebs", {})) for each in disks if each.get("DeviceName") == name), {})


def fetch_image(client: AwsClient, name: str) -> dict[str, Any]:
    """Return an image by id; without one, the newest Ubuntu 22.04 of Canonical.

    Raises:
        RefusedError: the region has none.
    """
    what = f"cannot find the image {name}".rstrip()
    if name:
        found = list(client.pages("describe_images", "Images", what=what, ImageIds=[name]))
    else:
        filters = [{"Name": "name", "Values": [IMAGE_NAME]}, {"Name": "state", "Values": ["available"]}]
        found = list(client.pages("describe_images", "Images", what=what, Owners=[CANONICAL], Filters=filters))
    if not found:
        raise RefusedError(
            f"{what}: {client.place.region} has none", hint="choose an image of this region as `place.aws.image`"
        )
    newest = max((str(image.get("CreationDate", "")), number) for number, image in enumerate(found))
    return dict(found[newest[1]])
