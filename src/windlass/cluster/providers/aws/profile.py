"""Instance profile of a cluster's head: the right to make and end the cluster's machines. One for all regions.

It is named after the cluster's id, looked up before it is made, and removed by `remove`; both are idempotent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

from windlass.cluster.providers.aws.client import AwsClient
from windlass.cluster.providers.aws.request import CLUSTER_TAG

__all__ = ["HeadProfile", "head_policy"]

_DUPLICATES = ("EntityAlreadyExists", "LimitExceeded")
_MISSING = ("NoSuchEntity",)
_TRUST = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}


class HeadProfile:
    """Profile with which a head makes and ends the cluster's machines, and nothing else.

    Attributes:
        is_new: it was made by this process, so that EC2 may not know it for some seconds.
    """

    def __init__(self, client: AwsClient, *, cluster: str, regions: Sequence[str]) -> None:
        self._client, self._cluster, self._regions = client, cluster, regions
        self._name = f"windlass-{cluster}"[:64]
        self._lock, self._is_made = threading.Lock(), False
        self.is_new = False

    def ensure(self) -> str:
        """Return the profile's name; makes it if it is missing. Idempotent.

        Raises:
            ProviderError: one of its four kinds.
        """
        with self._lock:
            if not self._is_made:
                self._make()
                self._is_made = True
        return self._name

    def remove(self) -> None:
        """Remove it. Idempotent.

        Raises:
            ProviderError: something is left.
        """
        what, name = "cannot remove the head's instance profile", self._name
        self._iam("remove_role_from_instance_profile", what, _MISSING, InstanceProfileName=name, RoleName=name)
        self._iam("delete_instance_profile", what, _MISSING, InstanceProfileName=name)
        self._iam("delete_role_policy", what, _MISSING, RoleName=name, PolicyName="windlass")
        self._iam("delete_role", what, _MISSING, RoleName=name)
        self._is_made = False

    def _make(self) -> None:
        what, name = "cannot make the head's instance profile", self._name
        tag = {"Key": CLUSTER_TAG, "Value": self._cluster}
        trust = {"Version": "2012-10-17", "Statement": [_TRUST]}
        self._iam("create_role", what, RoleName=name, AssumeRolePolicyDocument=json.dumps(trust), Tags=[tag])
        policy = json.dumps(head_policy(self._cluster, self._regions, name))
        self._iam("put_role_policy", what, RoleName=name, PolicyName="windlass", PolicyDocument=policy)
        made = self._iam("create_instance_profile", what, InstanceProfileName=name, Tags=[tag])
        self._iam("add_role_to_instance_profile", what, InstanceProfileName=name, RoleName=name)
        self.is_new = made is not None

    def _iam(self, action: str, what: str, absent: Sequence[str] = _DUPLICATES, **fields: Any) -> Any:
        return self._client.call(action, what=what, service="iam", absent=absent, **fields)


def head_policy(cluster: str, regions: Sequence[str], role: str) -> dict[str, Any]:
    """Return the head's permissions: EC2 of the file's regions, and to end only machines of its cluster.

    Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon EC2".
    """
    where = {"aws:RequestedRegion": regions[0] if len(regions) == 1 else list(regions)}
    here = {"StringEquals": where}
    ours = {"StringEquals": {f"ec2:ResourceTag/{CLUSTER_TAG}": cluster, **where}}
    on_create = {"StringEquals": {"ec2:CreateAction": "RunInstances", **where}}
    describe = [
        "ec2:DescribeImages",
        "ec2:DescribeInstances",
        "ec2:DescribeKeyPairs",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeSubnets",
        "ec2:DescribeVpcs",
    ]
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": [*describe, "ec2:RunInstances"], "Resource": "*", "Condition": here},
            {"Effect": "Allow", "Action": "ec2:CreateTags", "Resource": "*", "Condition": on_create},
            {"Effect": "Allow", "Action": "ec2:TerminateInstances", "Resource": "*", "Condition": ours},
            {"Effect": "Allow", "Action": "iam:PassRole", "Resource": f"arn:aws:iam::*:role/{role}"},
        ],
    }
