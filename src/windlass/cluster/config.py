"""Cluster as declared by the user: a place, groups of nodes, what is set up on them, and limits of time and money."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Annotated, Literal, TypeAlias

from windlass.cluster.image_options import option_problems
from windlass.cluster.providers.aws.settings import AwsPlace
from windlass.config.annotations import (
    Diagnostic,
    Doc,
    DurationText,
    JsonValue,
    Name,
    OneOrMany,
    Pattern,
    Range,
    SizeText,
)
from windlass.core.dataclass import dataclass

__all__ = [
    "HEAD",
    "AwsPlace",
    "ClusterConfig",
    "ClusterPlace",
    "Market",
    "NodeGroupConfig",
    "PriceLimits",
    "SshPlace",
    "VirtualPlace",
]

HEAD = "head"
"""Name of the group with the one node that directs Ray."""

Market: TypeAlias = Literal["on-demand", "spot", "spot-first"]
"""Way to buy machines; `spot-first` takes on-demand ones while there are no spot ones, and goes back."""


_Label: TypeAlias = Annotated[
    str,
    Pattern(
        "(?:[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?)?",
        "a label has at most 63 letters, digits, '-', '_' and '.', the first and the last a letter or digit",
    ),
]
_COUNTED = ("CPU", "GPU")
_IDS_OF_A_REGION = ("ImageId", "NetworkInterfaces", "SecurityGroupIds", "SubnetId")
"""Fields of EC2's request that name what one region has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshPlace:
    """Machines that exist and that ssh reaches."""

    hosts: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Hosts as ssh knows them, `user@host` or an alias; the first is the head.")
    ]
    user: Annotated[str, Doc("User on the hosts; empty: as ssh's own settings say.")] = ""
    key: Annotated[str, Doc("File of the private key; empty: as ssh's own settings say.")] = ""
    port: Annotated[int | None, Range(min=1, max=65535), Doc("Port of sshd; null: as ssh's own settings say.")] = None
    proxy: Annotated[str, Doc("ProxyCommand of ssh; empty: as ssh's own settings say.")] = ""

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        if not self.hosts:
            yield "hosts", "no hosts", "missing-key", "name them: `hosts: [gpu1, gpu2]`"
        for place, host in enumerate(self.hosts):
            if host in self.hosts[:place]:
                yield f"hosts.{place}", f"duplicate host `{host}`", "invalid-value", "remove one of them"
            elif not host or host.startswith("-") or any(letter.isspace() for letter in host):
                yield f"hosts.{place}", f"invalid host `{host}`", "invalid-value", "write `host` or `user@host`"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualPlace:
    """Network namespaces on this machine, as root; for tests and demonstrations."""

    prices: Annotated[Mapping[str, float], Doc("Machine types, with their made-up prices per hour in US dollars.")] = (
        field(default_factory=lambda: {"small": 0.1, "large": 0.4})
    )

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        if not self.prices:
            yield "prices", "no machine types", "missing-key", "name one with its price: `prices: {small: 0.1}`"
        for name, price in self.prices.items():
            if not 0 <= price < float("inf"):
                yield f"prices.{name}", f"the price is {price}", "invalid-value", "write a price per hour, such as 0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlace:
    """Place of the machines: exactly one of these."""

    ssh: Annotated[SshPlace | None, Doc("Machines that exist.")] = None
    aws: Annotated[AwsPlace | None, Doc("Amazon EC2.")] = None
    virtual: Annotated[VirtualPlace | None, Doc("Network namespaces on this machine.")] = None

    @property
    def kind(self) -> str:
        """Return the name of the provider."""
        return "ssh" if self.ssh is not None else "aws" if self.aws is not None else "virtual"

    def check(self) -> Iterator[Diagnostic]:
        """Check that exactly one place is set."""
        named = [name for name in ("ssh", "aws", "virtual") if getattr(self, name) is not None]
        if len(named) != 1:
            message = "no place" if not named else f"several places: {', '.join(named)}"
            yield "", message, "conflicting-options", "set one of `ssh`, `aws` and `virtual`"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupConfig:
    """Nodes of one kind.

    A kind is either a list of machine types in the order to try, or a count of GPUs, for which the cheapest types that
    have them are tried in the order of their price.
    """

    types: Annotated[tuple[str, ...], OneOrMany(), Doc("Machine types in the order to try, such as `g5.xlarge`.")] = ()
    gpus: Annotated[int, Range(min=0), Doc("GPUs of a node, if `types` is empty.")] = 0
    gpu_type: Annotated[str, Doc("Kind of these GPUs, such as `a10g`; empty: any.")] = ""
    count: Annotated[int | None, Range(min=0, max=100_000), Doc("Number of nodes; null: from `min` to `max`.")] = None
    min: Annotated[int, Range(min=0, max=100_000), Doc("Nodes that are always there.")] = 0
    max: Annotated[
        int | None, Range(min=0, max=100_000), Doc("Most nodes; Ray starts and ends those above `min`. Null: `min`.")
    ] = None
    initial: Annotated[
        int, Range(min=0, max=100_000), Doc("Nodes to start with; those above `min` end when they are idle.")
    ] = 0
    priority: Annotated[int, Doc("Ray prefers groups with a higher number for new nodes.")] = 0
    market: Annotated[Market, Doc("How machines are bought.")] = "on-demand"
    disk: Annotated[int, SizeText(), Range(min=0), Doc("Size of the first disk; 0: that of the image.")] = 0
    resources: Annotated[
        Mapping[str, Annotated[float, Range(min=0)]],
        Doc("What Ray counts, such as `{CPU: 8, GPU: 1, licence: 2}`; empty: what the machine has."),
    ] = field(default_factory=dict)
    labels: Annotated[Mapping[str, _Label], Doc("Labels of Ray's nodes.")] = field(default_factory=dict)
    host_setup: Annotated[tuple[str, ...], OneOrMany(), Doc("Commands after `host_setup` of the cluster.")] = ()
    setup: Annotated[tuple[str, ...], OneOrMany(), Doc("Commands after `setup` of the cluster.")] = ()
    image: Annotated[str, Doc("Overrides `image` of the cluster.")] = ""
    image_options: Annotated[tuple[str, ...], OneOrMany(), Doc("Options after those of the cluster.")] = ()
    idle: Annotated[float | None, DurationText(), Range(min=1), Doc("Overrides `idle` of the cluster.")] = None
    options: Annotated[
        Mapping[str, JsonValue], Doc("Further fields of the provider's request, such as EC2's `RunInstances`.")
    ] = field(default_factory=dict)

    @property
    def least(self) -> int:
        """Return the number of nodes that are always there."""
        return self.min if self.count is None else self.count

    @property
    def most(self) -> int:
        """Return the largest number of nodes."""
        if self.count is not None:
            return self.count
        return self.min if self.max is None else self.max

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        if self.count is not None and (self.min or self.max is not None):
            named = "min" if self.min else "max"
            yield (
                named,
                f"both `count` and `{named}` are set",
                "conflicting-options",
                "keep `count`, or `min` and `max`",
            )
        elif self.max is not None and self.max < self.min:
            yield "max", f"`max` is {self.max} and `min` {self.min}", "invalid-value", "raise `max`, or lower `min`"
        if self.types and (self.gpus or self.gpu_type):
            named = "gpus" if self.gpus else "gpu_type"
            yield named, f"both `types` and `{named}` are set", "conflicting-options", "keep one of them"
        if self.initial > self.most:
            message = f"`initial` is {self.initial}, and the group has at most {self.most} nodes"
            yield "initial", message, "invalid-value", "lower it, or raise `max`"
        for name in self.resources:
            if name.upper() in _COUNTED and name not in _COUNTED:
                message = f"Ray's resource is `{name.upper()}`, not `{name}`"
                yield f"resources.{name}", message, "invalid-value", f"write `{name.upper()}`"
        for index, kind in enumerate(self.types):
            if not kind or any(letter.isspace() for letter in kind):
                yield (
                    f"types.{index}",
                    f"invalid machine type `{kind}`",
                    "invalid-value",
                    "write one such as `g5.xlarge`",
                )
        if self.gpu_type and not self.gpus:
            yield "gpu_type", "`gpu_type` needs `gpus`", "missing-key", "add `gpus: 1`"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLimits:
    """Limits in US dollars; spot machines count at the price of on-demand ones, which is the most that they cost."""

    per_hour: Annotated[float | None, Range(above=0), Doc("Most that all machines may cost in an hour.")] = None
    total: Annotated[float | None, Range(above=0), Doc("Most that the cluster may cost; it is ended then.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Cluster as declared."""

    name: Annotated[str, Name(is_dotted=False), Doc("Name of the cluster.")]
    place: Annotated[ClusterPlace, Doc("Where its machines are.")]
    head: Annotated[NodeGroupConfig, Doc("The node that directs Ray; there is one.")] = NodeGroupConfig(count=1)
    groups: Annotated[
        Mapping[Annotated[str, Name(is_dotted=False)], NodeGroupConfig], Doc("Further nodes, by group.")
    ] = field(default_factory=dict)
    host_setup: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Shell commands on every new machine, before `setup`.")
    ] = ()
    setup: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc("Shell commands on every new node, before Ray starts."),
    ] = ()
    image: Annotated[str, Doc("Container image in which `setup`, Ray and commands run.")] = ""
    image_options: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Options of `docker run`, such as `--volume /data:/data`.")
    ] = ()
    image_engine: Annotated[
        Literal["", "docker", "podman"], Doc("Program that runs containers; empty: the first that responds.")
    ] = ""
    python: Annotated[str, Doc("Python with Ray on the nodes: a path, or a name on the PATH after set-up.")] = "python3"
    files: Annotated[Mapping[str, str], Doc("Folders and files to copy to every node: path there to path here.")] = (
        field(default_factory=dict)
    )
    exclude: Annotated[tuple[str, ...], OneOrMany(), Doc("Patterns of rsync for files that are not copied.")] = ()
    exclude_from: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc("Names of files in copied folders that list such patterns, such as `.gitignore`."),
    ] = ()
    idle: Annotated[
        float | None,
        DurationText(),
        Range(min=1),
        Doc("Time without work after which a node above `min` is ended; null: never."),
    ] = 300.0
    ttl: Annotated[
        float | None,
        DurationText(),
        Range(min=10),
        Doc("Time to live: every machine ends itself then, whatever else is alive. Null: no limit."),
    ] = None
    price: Annotated[PriceLimits, Doc("Limits of cost.")] = PriceLimits()
    upscaling_speed: Annotated[
        float, Range(above=0), Doc("New nodes at a time, as a multiple of those that run (Ray's setting).")
    ] = 1.0
    max_nodes: Annotated[
        int | None, Range(min=0, max=100_000), Doc("Most nodes besides the head; null: the sum of the groups.")
    ] = None

    def in_region(self, region: str) -> ClusterConfig:
        """Return the settings for one region of those in the file; unchanged where places have no regions."""
        if self.place.aws is None or not region:
            return self
        return replace(self, place=replace(self.place, aws=self.place.aws.in_region(region)))

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        for key in ("count", "min", "max", "initial"):
            if getattr(self.head, key) not in ((None, 1) if key == "count" else (None, 0)):
                message = f"the head is one node, and `head.{key}` is {getattr(self.head, key)}"
                yield f"head.{key}", message, "invalid-value", f"remove `{key}`, and add nodes in `groups`"
        if HEAD in self.groups:
            yield (
                f"groups.{HEAD}",
                f"a group cannot be called `{HEAD}`",
                "invalid-name",
                "write it as `head:` at the top",
            )
        yield from self._check_images()
        yield from self._check_files()
        places = [name for name in ("ssh", "aws", "virtual") if getattr(self.place, name) is not None]
        if places == ["ssh"] and self.place.ssh is not None:
            yield from self._check_ssh(self.place.ssh)
        elif places == ["aws"] and self.place.aws is not None:
            yield from self._check_aws(self.place.aws)
        elif places == ["virtual"] and self.place.virtual is not None:
            yield from self._check_virtual(self.place.virtual)
        least = sum(group.least for group in self.groups.values())
        if self.max_nodes is not None and self.max_nodes < least:
            message = f"`max_nodes` is {self.max_nodes}, and the groups have at least {least} nodes"
            yield "max_nodes", message, "invalid-value", "raise it, or lower the groups' `min` or `count`"

    def _named_groups(self) -> Iterator[tuple[str, NodeGroupConfig]]:
        """Yield the head and the other groups, with their paths."""
        yield HEAD, self.head
        for name, group in self.groups.items():
            yield f"groups.{name}", group

    def _check_files(self) -> Iterator[Diagnostic]:
        """Check paths, which are opened only when nodes are set up."""
        if not self.python:
            yield "python", "`python` is empty", "invalid-value", "write a path, or remove it"
        for there, here in self.files.items():
            if not here:
                yield "files", f"the path here of `{there}` is empty", "invalid-value", f"write `{there}: ./folder`"
            elif not there or (there.startswith("~") and there != "~" and not there.startswith("~/")):
                message = f"invalid path on nodes: `{there}`"
                yield "files", message, "invalid-value", "write `~/...` or a path from `/`"

    def _check_aws(self, place: AwsPlace) -> Iterator[Diagnostic]:
        """Check that every group names machines, and only what every region has."""
        for at, group in self._named_groups():
            if not group.types and not group.gpus:
                message = f"{at} names neither machine types nor GPUs"
                yield at, message, "missing-key", "add `types: [m5.large]` or `gpus: 1`"
            for name in _IDS_OF_A_REGION if len(place.all_regions) > 1 else ():
                if name in group.options:
                    message = f"`{name}` is of one region, and `place.aws.regions` names several"
                    yield f"{at}.options.{name}", message, "conflicting-options", "write one `region`, or remove it"

    def _check_virtual(self, place: VirtualPlace) -> Iterator[Diagnostic]:
        """Check that nothing is asked of virtual machines that they do not have."""
        for at, group in self._named_groups():
            for key in ("gpus", "gpu_type", "disk", "options"):
                if getattr(group, key):
                    yield f"{at}.{key}", f"virtual machines have no `{key}`", "setting-unused", f"remove `{key}`"
            for index, kind in enumerate(group.types):
                if kind not in place.prices:
                    known = ", ".join(place.prices)
                    message = f"no machine type `{kind}`"
                    yield f"{at}.types.{index}", message, "invalid-value", f"use one of: {known}"

    def _check_images(self) -> Iterator[Diagnostic]:
        """Check images and options of containers, which are made only when nodes are set up."""
        parts = [("", self.image, self.image_options)]
        parts += [(f"{at}.", group.image, group.image_options) for at, group in self._named_groups()]
        images = [image for _, image, _ in parts if image]
        for at, image, options in parts:
            if image.startswith("-") or any(letter.isspace() for letter in image):
                hint = "write one such as `rayproject/ray:2.60.0`"
                yield f"{at}image", f"invalid image `{image}`", "invalid-value", hint
            if options and not (images if not at else image or self.image):
                hint = "add `image`, or remove them"
                yield f"{at}image_options", "`image_options` need `image`", "missing-key", hint
            for index, message, hint in option_problems(options):
                yield f"{at}image_options.{index}", message, "unsupported-setting", hint
        if self.image_engine and not images:
            yield "image_engine", "`image_engine` needs `image`", "missing-key", "add `image`, or remove it"
        for there in self.files if images else ():
            if there.startswith("/"):
                message = f"`{there}` is not seen in containers, which share the user's home with the machine"
                hint = f"write `~/NAME`, and in `setup` what puts it at {there}"
                yield "files", message, "unsupported-setting", hint

    def _check_ssh(self, place: SshPlace) -> Iterator[Diagnostic]:
        """Check that nothing is asked of machines that exist which only new machines could honour."""
        for at, group in self._named_groups():
            for key in ("types", "gpus", "gpu_type", "disk", "options"):
                if getattr(group, key):
                    message = f"`{key}` chooses a machine, and the hosts of `ssh` exist"
                    yield f"{at}.{key}", message, "setting-unused", f"remove `{key}`"
            if group.market != "on-demand":
                yield (
                    f"{at}.market",
                    "`market` buys machines, and the hosts of `ssh` exist",
                    "setting-unused",
                    "remove it",
                )
            for key in ("initial", "priority", "idle"):
                if getattr(group, key):
                    message = f"`{key}` is for nodes that Ray starts and ends, and the hosts of `ssh` exist"
                    yield f"{at}.{key}", message, "setting-unused", f"remove `{key}`"
            if group.most > group.least:
                message = f"`max` is {group.most} and `min` {group.least}, but the hosts of `ssh` exist: nothing scales"
                yield f"{at}.max", message, "setting-unused", f"write `count: {group.most}`, or as many as you want"
        wanted = 1 + sum(group.least for group in self.groups.values())
        if place.hosts and wanted > len(place.hosts):
            message = f"the groups need {wanted} nodes with the head, and `ssh` names {len(place.hosts)} hosts"
            yield "place.ssh.hosts", message, "invalid-value", "name more hosts, or lower `min` or `count`"
        for key in ("per_hour", "total"):
            if getattr(self.price, key) is not None:
                message = f"`price.{key}` has no effect: hosts of `ssh` have no known price"
                yield f"price.{key}", message, "setting-unused", "remove it"
