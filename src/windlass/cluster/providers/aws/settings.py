"""Settings of EC2 in a cluster's file: one region, or several in the order to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Annotated, TypeAlias

from windlass.config.annotations import Diagnostic, Doc, OneOrMany, Pattern
from windlass.core.dataclass import dataclass

__all__ = ["AwsPlace"]

_Region: TypeAlias = Annotated[str, Pattern(r"\S+", "a region is a word such as `us-west-2`")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsPlace:
    """Instances of Amazon EC2."""

    region: Annotated[
        str,
        Pattern(r"\S+", "a region is a word such as `us-west-2`"),
        Doc("Region, such as `us-west-2`; exactly one of this and `regions`."),
    ] = ""
    regions: Annotated[
        tuple[_Region, ...],
        OneOrMany(),
        Doc("Regions in the order to try; all machines of the cluster are in the region that has the head."),
    ] = ()
    zones: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc("Availability zones in the order to try; in a region of which none is named: all."),
    ] = ()
    subnets: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Subnets in the order to try; empty: the default one of each zone.")
    ] = ()
    security_groups: Annotated[
        tuple[str, ...],
        OneOrMany(),
        Doc("Security groups by id or name; empty: one of our own, open between its members and for ssh."),
    ] = ()
    image: Annotated[str, Doc("Machine image (AMI); empty: the newest Ubuntu 22.04 of the region.")] = ""
    images: Annotated[Mapping[str, str], Doc("Machine image of each region, where `regions` names several.")] = field(
        default_factory=dict
    )
    user: Annotated[str, Doc("User that the image lets in over ssh.")] = "ubuntu"
    key: Annotated[str, Doc("File of the private key; empty: one is made for the cluster.")] = ""
    key_name: Annotated[str, Doc("Name of the key pair at EC2; needs `key`. Empty: one is made for the cluster.")] = ""
    profile: Annotated[str, Doc("Instance profile by name, for access to buckets.")] = ""
    proxy: Annotated[str, Doc("ProxyCommand of ssh; empty: none.")] = ""
    is_private: Annotated[bool, Doc("Reach machines at their private addresses, and give them no public ones.")] = False
    endpoint: Annotated[str, Doc("URL of another EC2 API, for tests; empty: Amazon's.")] = ""
    tags: Annotated[Mapping[str, str], Doc("Further tags of all machines.")] = field(default_factory=dict)

    @property
    def all_regions(self) -> tuple[str, ...]:
        """Return the regions in the order to try."""
        return (self.region,) if self.region else self.regions

    def in_region(self, region: str) -> AwsPlace:
        """Return the settings for one region alone."""
        zones = tuple(zone for zone in self.zones if _is_in(zone, region))
        image = self.images.get(region, self.image)
        return replace(self, region=region, regions=(), zones=zones, image=image, images={})

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        if bool(self.key) != bool(self.key_name):
            named, missing = ("key", "key_name") if self.key else ("key_name", "key")
            message = f"`{named}` needs `{missing}`: the name at EC2 and the file belong together"
            yield named, message, "missing-key", f"add `{missing}`, or remove `{named}`"
        yield from self._check_regions()
        for name in self.tags:
            if name.startswith(("aws:", "windlass-", "ray-")):
                yield f"tags.{name}", f"the tag `{name}` is reserved", "invalid-value", "choose another name"

    def _check_regions(self) -> Iterator[Diagnostic]:
        """Check the regions, and what belongs to one of them."""
        if self.region and self.regions:
            yield "regions", "both `region` and `regions` are set", "conflicting-options", "keep one of them"
            return
        if not self.all_regions:
            yield "", "no region", "missing-key", "add `region: us-west-2`, or several as `regions`"
            return
        for index, region in enumerate(self.regions):
            if region in self.regions[:index]:
                yield f"regions.{index}", f"duplicate region `{region}`", "invalid-value", "remove one of them"
        names = self.all_regions
        words = f"region {names[0]}" if len(names) == 1 else f"regions {', '.join(names)}"
        for index, zone in enumerate(self.zones):
            if not any(_is_in(zone, region) for region in names):
                message = f"the zone `{zone}` is not in the {words}"
                yield f"zones.{index}", message, "invalid-value", f"write a zone such as `{names[0]}a`"
        for name in self.images:
            if name not in names:
                message = f"`images` names {name}, which is not among the {words}"
                yield f"images.{name}", message, "invalid-value", "remove it, or add the region to `regions`"
        if self.images and self.image:
            yield "image", "both `image` and `images` are set", "conflicting-options", "keep `images`"
        if len(names) > 1:
            yield from self._check_ids()

    def _check_ids(self) -> Iterator[Diagnostic]:
        """Check that several regions do not share what one of them has."""
        one = "write one `region`, or remove it"
        if self.subnets:
            yield "subnets", "a subnet is in one region, and `regions` names several", "conflicting-options", one
        for index, group in enumerate(self.security_groups):
            if group.startswith("sg-"):
                message = f"the security group `{group}` is in one region, and `regions` names several"
                yield f"security_groups.{index}", message, "conflicting-options", "write a name that every region has"
        if self.image:
            message = "an image is in one region, and `regions` names several"
            hint = f"write `images: {{{self.regions[0]}: {self.image}, ...}}`"
            yield "image", message, "conflicting-options", hint
        missing = [region for region in self.regions if self.images and region not in self.images]
        if missing:
            message = f"`images` has none for {', '.join(missing)}"
            yield "images", message, "missing-key", f"add `{missing[0]}: ami-...`"


def _is_in(zone: str, region: str) -> bool:
    """Return whether a zone's name begins with that of a region: `us-west-2a`, `us-west-2-lax-1a`."""
    return zone.startswith(region) and not zone[len(region) : len(region) + 1].isdigit()
