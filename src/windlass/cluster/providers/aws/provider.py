"""Provider of EC2 instances, in the regions of a cluster's file.

All machines of a cluster are in one region: the first of the file that has a head. The client asks for the head in one
region after the other; the head's own file names its region alone. Whoever lists machines asks every region in which
any were ever asked for, whatever came of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from windlass.cluster.config import HEAD, AwsPlace, ClusterConfig, NodeGroupConfig
from windlass.cluster.machine import Choice, Machine, Notice
from windlass.cluster.prices import gpu_types, list_price
from windlass.cluster.providers.aws.checks import problems_of
from windlass.cluster.providers.aws.client import AwsClient
from windlass.cluster.providers.aws.notices import fetch_notices
from windlass.cluster.providers.aws.offers import missing_types, shared_problems, skips_of, types_of
from windlass.cluster.providers.aws.profile import HeadProfile
from windlass.cluster.providers.aws.region import AwsRegion
from windlass.cluster.providers.aws.request import MAX_BOOT_BYTES, option_problems
from windlass.cluster.providers.protocol import CreateRequest, NoCapacityError, ProviderError, RefusedError, Skip
from windlass.core.errors import Problem
from windlass.record.journal import read_journal

__all__ = ["WINDOW_S", "AwsProvider", "choices_of", "open_provider"]

WINDOW_S = 300.0
"""Seconds for which lists may not show an instance.

Source: Amazon EC2 Developer Guide, "Eventual consistency in the Amazon EC2 API": ask again for up to five minutes, since
an instance that was made may be unknown to later requests.
"""
_ENDPOINTS = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2"}
"""Variables that name another API than Amazon's, as botocore reads them."""

_OTHER_WINDOW_S = 5.0  # another API than Amazon's, for tests: on one machine


def open_provider(config: ClusterConfig, *, cluster: str, folder: Path) -> AwsProvider:
    """Return the provider of a cluster; makes no request, and imports boto3 with the first."""
    return AwsProvider(config, cluster=cluster, folder=folder)


class AwsProvider:
    """EC2 in the regions of a cluster's file.

    Args:
        cluster: id of the cluster, which names what is made for it.
        folder: folder of the cluster on this machine, for its key; the client's journal is there, too.
        window_s: another window than that of the API, for tests.
    """

    name = "aws"
    is_rented = True

    def __init__(self, config: ClusterConfig, *, cluster: str, folder: Path, window_s: float | None = None) -> None:
        assert config.place.aws is not None
        self._config, self._place = config, config.place.aws
        self._cluster, self._folder = cluster, folder
        usual_s = _OTHER_WINDOW_S if self._place.endpoint or _ENDPOINTS & os.environ.keys() else WINDOW_S
        self.window_s = usual_s if window_s is None else window_s
        names = self._place.all_regions
        client = AwsClient(self._place.in_region(names[0]))  # for what is the same in all regions
        self._profile = HeadProfile(client, cluster=cluster, regions=names)
        self._lock = threading.Lock()
        self._regions: dict[str, AwsRegion] = {}
        self._used: set[str] = set()
        self._where: dict[str, str] = {}

    def check(self, config: ClusterConfig) -> Sequence[Problem]:
        """Return what would fail in any region that may be used; creates nothing."""
        groups, names = {HEAD: config.head, **config.groups}, self._place.all_regions
        regions = [self._region(name) for name in names]
        by_region = {each.name: list(problems_of(each, groups, choices_of, len(names) > 1)) for each in regions}
        if len(names) == 1:
            found = by_region[names[0]]
        elif any(by_region.values()):
            found = list(shared_problems(by_region))
        else:
            found = list(missing_types(names, self.skips(config)))
        known = regions[0].client.fields("RunInstances")
        for name, group in groups.items():
            found += option_problems(name, group, known)
        return found

    def skips(self, config: ClusterConfig) -> Sequence[Skip]:
        """Return what is not tried since a region lacks it; asks for each type once.

        Raises:
            ProviderError: the types of a region are not known; `check` says so, too.
        """
        names = self._place.all_regions
        return [skip for name in names for skip in self._skips_in(name, config)] if len(names) > 1 else []

    def _skips_in(self, name: str, config: ClusterConfig) -> Sequence[Skip]:
        groups, region = {HEAD: config.head, **config.groups}, self._region(name)
        types = types_of(region.place, groups, choices_of)
        return skips_of(name, groups, types, region.offered([kind for kinds in types.values() for kind in kinds]))

    def choices(self, config: ClusterConfig, group: str) -> Sequence[Choice]:
        """Return the types of a group in each zone or subnet of one region after the other; makes no request.

        In a region, all spot ones come first. Without zones and subnets, EC2 chooses among all of the region.
        """
        place, wanted = config.place.aws or self._place, config.head if group == HEAD else config.groups[group]
        return [choice for name in place.all_regions for choice in choices_of(place.in_region(name), wanted)]

    def list_machines(self, cluster: str) -> Sequence[Machine]:
        """Return the instances of a cluster that are not terminated.

        Raises:
            ProviderError: the list may be incomplete.
        """
        found = self._seen(machine for region in self._asked() for machine in region.list_machines(cluster))
        return [machine for machine in found if machine.state != "ended"]

    def find(self, token: str) -> Sequence[Machine]:
        """Return the instances of a request, terminated ones included.

        Raises:
            UncertainError: EC2 did not reply.
        """
        return self._seen(machine for region in self._asked() for machine in region.find(token))

    def describe(self, ids: Sequence[str]) -> Sequence[Machine]:
        """Return instances by id, as long as EC2 knows them: about an hour after their end."""
        return self._seen(machine for region in self._asked() for machine in region.describe(ids)) if ids else []

    def create(self, request: CreateRequest) -> Sequence[Machine]:
        """Make instances, all or none. A request without a reply is sent again with the same token.

        A head is asked for only where all groups can have machines.

        Raises:
            ProviderError: one of its four kinds.
        """
        if len(request.boot) > MAX_BOOT_BYTES:
            message = f"the script that machines run has {len(request.boot)} bytes, and EC2 takes {MAX_BOOT_BYTES}"
            raise RefusedError(message, hint="shorten `setup` and `host_setup`")
        group = self._config.head if request.group == HEAD else self._config.groups.get(request.group)
        if group is None:
            raise RefusedError(f"no group `{request.group}` in the cluster's file", hint="add it")
        names = self._place.all_regions
        name = request.choice.region or names[0]
        with self._lock:
            self._used.add(name)
        for skip in self._skips_in(name, self._config) if len(names) > 1 else ():
            if skip.fits(request.choice):
                raise NoCapacityError(f"cannot make {request.choice.words}: {skip.why}")
        return self._seen(self._region(name).create(request, group))

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate instances; those that EC2 does not know count as ended.

        EC2 may not yet know an instance that was just made: whoever ends a cluster lists it until the window has passed.

        Raises:
            UncertainError, ThrottledError: ask again.
        """

        def end(region: AwsRegion) -> None:
            region.terminate([each for each in ids if self._where.get(each, region.name) == region.name])

        self._in_all(end)

    def notices(self) -> Sequence[Notice]:
        """Return the announcements for the instance that this runs on."""
        return fetch_notices()

    def remove(self) -> None:
        """Remove what was made for the cluster besides machines, in all regions; called once it has none. Idempotent.

        Raises:
            ProviderError: something is left.
        """
        self._in_all(lambda region: region.network.remove())
        if not self._place.profile:
            self._profile.remove()

    # -------------------------------------------------------------------------------------------------------- private

    def _asked(self) -> list[AwsRegion]:
        """Return the regions in which machines were ever asked for; all of the file's if that is not known.

        The journal has a request before it is made; on the head there is no journal of the client, and one region.
        """
        records = [each.data for each in read_journal(self._folder / "journal") if each.kind == "cluster.intent"]
        with self._lock:
            asked = {*(str(data["choice"].get("region", "")) for data in records), *self._used}
        names = self._place.all_regions
        if not asked or "" in asked or len(names) == 1:
            asked |= {*names}
        known = [name for name in names if name in asked]
        return [self._region(name) for name in [*known, *sorted(asked - {*known, ""})]]

    def _region(self, name: str) -> AwsRegion:
        with self._lock:
            if name not in self._regions:
                place = self._place.in_region(name)
                if name not in self._place.all_regions:  # of an earlier file: only what we made there counts
                    place = replace(place, subnets=(), security_groups=(), key="", key_name="")
                self._regions[name] = AwsRegion(place, self._profile, cluster=self._cluster, folder=self._folder)
            return self._regions[name]

    def _seen(self, machines: Iterable[Machine]) -> list[Machine]:
        """Remember where machines are; return them."""
        found = list(machines)
        self._where.update({machine.id: machine.choice.region for machine in found})
        return found

    def _in_all(self, do: Callable[[AwsRegion], None]) -> None:
        """Do something in all regions that were asked, also if one fails; then raise the first error."""
        errors = []
        for region in self._asked():
            try:
                do(region)
            except ProviderError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def choices_of(place: AwsPlace, group: NodeGroupConfig) -> Sequence[Choice]:
    """Return the kinds of machines of a group in one region, in order."""
    types = group.types or gpu_types(place.region, group.gpus, group.gpu_type)
    places = place.subnets or place.zones or ("",)
    markets = {"spot": (True,), "spot-first": (True, False), "on-demand": (False,)}[group.market]
    return [
        Choice(
            type=kind, region=place.region, zone=where, is_spot=is_spot, price_per_hour=list_price(place.region, kind)
        )
        for is_spot in markets
        for kind in types
        for where in places
    ]
