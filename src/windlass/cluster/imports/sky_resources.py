"""Section `resources` of SkyPilot's task files: the machines of a cluster on EC2.

Of several candidates (`any_of`, `ordered`) those on EC2 count, with their regions, types and zones in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from windlass.config.path import join_path, split_path
from windlass.core.dataclass import dataclass
from windlass.core.names import nearest

__all__ = ["Machines", "SkyResources"]

Refuse: TypeAlias = Callable[[str, str, str], None]
"""Called with a key's path, a message and a hint."""

_REGION = "us-east-1"
_DEFAULT_CPUS = 8.0
_CPU_TYPES = (
    (2, 8, "large"),
    (4, 16, "xlarge"),
    (8, 32, "2xlarge"),
    (16, 64, "4xlarge"),
    (32, 128, "8xlarge"),
    (48, 192, "12xlarge"),
    (64, 256, "16xlarge"),
    (96, 384, "24xlarge"),
)
"""Sizes of the family m5: vCPUs, GiB, suffix (EC2's list of instance types, 2026)."""

_REFUSED: Mapping[str, str] = {
    "accelerator_args": "TPUs are not supported",
    "disk_tier": "remove it, or write `options` in the cluster's file",
    "ephemeral_storage": "write `disk_size`",
    "local_disk": "name an `instance_type` that has the disk",
    "priority": "write `context: {priority: high}` in the experiment's file",
    "priority_class": "write `context: {priority: high}` in the experiment's file",
    "volumes": "volumes are not attached; copy the data in `setup`",
}
_CLOUD_KEYS = ("infra", "cloud", "region", "zone")
_MACHINE_KEYS = ("accelerators", "cpus", "memory", "instance_type", "use_spot", "max_hourly_cost")
_OTHER_KEYS = ("autostop", "disk_size", "image_id", "job_recovery", "labels", "network_tier", "ports")
_LISTS = ("any_of", "ordered")
_KEYS = frozenset({*_CLOUD_KEYS, *_MACHINE_KEYS, *_OTHER_KEYS, *_LISTS, *_REFUSED, "spot_recovery"})
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?i?b)?\s*(\+?)\s*\Z", re.IGNORECASE)
_POWERS = {"k": 2.0**-20, "m": 2.0**-10, "g": 1.0, "t": 2.0**10, "p": 2.0**20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Machines that a file asks for.

    Attributes:
        regions: in the order to try.
        images: by region; empty: none is stated.
        memory_gib, disk_gib: 0 if not stated.
        retries: restarts after the user's code failed.
    """

    regions: tuple[str, ...]
    zones: tuple[str, ...]
    types: tuple[str, ...]
    gpus: int
    gpu_type: str
    market: str
    cpus: float
    memory_gib: float
    disk_gib: int
    images: Mapping[str, str]
    tags: Mapping[str, str]
    per_hour: float | None
    retries: int


class SkyResources:
    """Reading of the section.

    Args:
        refuse: called for each key that cannot be honoured.
        note: called with what is done otherwise.
    """

    def __init__(self, section: Mapping[str, Any], refuse: Refuse, note: Callable[[str], None]) -> None:
        self._section, self._refuse, self._note = section, refuse, note

    def machines(self) -> Machines:
        """Return what is asked for; not valid if a key was refused."""
        candidates = list(self._candidates())
        for at, each in candidates:
            self._check_keys(at, each)
        kept = self._on_ec2(candidates)
        at, first = kept[0] if kept else ("resources", self._section)
        gpus, gpu_type = self._gpus(at, first)
        types = self._types(kept)
        cpus, memory = self._amount(at, first, "cpus"), self._amount(at, first, "memory")
        if not types and not gpus:
            types = (self._cpu_type(at, cpus, memory),)
        elif cpus or memory:
            self._note("`cpus` and `memory` are the task's; machines are chosen by type or GPUs alone")
        regions = tuple(dict.fromkeys(self._place(at, each)[1] for at, each in kept)) or (_REGION,)
        self._note_combinations(kept, len(regions))
        return Machines(
            regions=regions,
            zones=tuple(dict.fromkeys(zone for at, each in kept for zone in [self._place(at, each)[2]] if zone)),
            types=types,
            gpus=0 if types else gpus,
            gpu_type="" if types else gpu_type,
            market=self._market(kept),
            cpus=cpus,
            memory_gib=memory,
            disk_gib=int(self._amount(at, first, "disk_size")),
            images=self._images(kept),
            tags=self._labels(at, first),
            per_hour=self._price(at, first),
            retries=self._retries(at, first),
        )

    def gpus(self) -> tuple[int, str]:
        """Return number and kind of the GPUs of a node, also where a type of machine is named."""
        kept = self._on_ec2(list(self._candidates()))
        return self._gpus(*kept[0]) if kept else (0, "")

    def _candidates(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield each candidate with the path of its keys; outer keys count where an inner one is missing."""
        lists = [key for key in _LISTS if self._section.get(key)]
        outer = {key: value for key, value in self._section.items() if key not in _LISTS}
        if len(lists) > 1:
            self._refuse("resources.ordered", "both `any_of` and `ordered` are set", "keep one of them")
        if not lists:
            yield "resources", outer
            return
        items = self._section[lists[0]]
        for number, item in enumerate(items if isinstance(items, list) else [items]):
            at = f"resources.{lists[0]}.{number}"
            if isinstance(item, Mapping):
                yield at, {**outer, **item}
            else:
                self._refuse(at, f"`{at}` must be a mapping", "write `- infra: aws/us-east-1`")

    def _check_keys(self, at: str, candidate: Mapping[str, Any]) -> None:
        for key, value in candidate.items():
            if key not in _KEYS:
                close = nearest(key, sorted(_KEYS))
                hint = f"did you mean `{close}`?" if close else "remove it"
                self._refuse(f"{at}.{join_path((key,))}", f"unknown key `{key}` in {at}", hint)
            elif key in _REFUSED and value:
                self._refuse(f"{at}.{key}", f"`{at}.{key}` cannot be honoured", _REFUSED[key])
        if candidate.get("network_tier", "standard") not in {None, "standard"}:
            tier = candidate["network_tier"]
            self._refuse(f"{at}.network_tier", f"`{at}.network_tier` cannot be `{tier}`", "remove it")
        if self._section.get("ports") and at.endswith(("resources", ".0")):
            self._note("`ports` are not opened to the Internet; `windlass cluster submit -p PORT` forwards them")
        autostop = candidate.get("autostop")
        if autostop not in (None, False, -1):
            hint = "remove it, and set `ttl: 8h` in the cluster's file, or `submit --stop`"
            self._refuse(f"{at}.autostop", f"`{at}.autostop` cannot be honoured: heads are not idle", hint)

    # Places

    def _place(self, at: str, candidate: Mapping[str, Any]) -> tuple[str, str, str]:
        """Return cloud, region and zone; empty if not stated."""
        infra = candidate.get("infra")
        if infra is not None and any(candidate.get(key) for key in ("cloud", "region", "zone")):
            self._refuse(f"{at}.infra", "both `infra` and `cloud`, `region` or `zone` are set", "keep `infra`")
        texts = str(infra).split("/") if infra is not None else [candidate.get(key) or "" for key in _CLOUD_KEYS[1:]]
        cloud, region, zone = ["" if text == "*" else str(text) for text in [*texts, "", ""][:3]]
        if zone and not region:
            region = zone.rstrip("abcdef")
        return cloud.lower(), region, zone

    def _on_ec2(self, candidates: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the candidates on EC2 that fit the first of them, each with its region."""
        kept: list[tuple[str, Mapping[str, Any]]] = []
        regions: set[str] = set()
        for at, each in candidates:
            cloud, found, zone = self._place(at, each)
            what = "/".join(part for part in (cloud, found, zone) if part) or "any cloud"
            if cloud not in {"", "aws"}:
                reason = f"`{cloud}` is not supported"
            elif kept and each.get("accelerators") != kept[0][1].get("accelerators"):
                reason = "a group has one kind of GPU"
            elif kept and bool(each.get("instance_type")) != bool(kept[0][1].get("instance_type")):
                reason = "either all candidates name an `instance_type`, or none"
            else:
                region = found or _REGION
                if not kept or (not found and region not in regions):
                    self._note_place(cloud, found)
                regions.add(region)
                kept.append((at, {**each, "infra": None, "cloud": "aws", "region": region, "zone": zone}))
                continue
            if len(candidates) == 1:
                path = f"{at}.infra" if each.get("infra") is not None else f"{at}.cloud"
                self._refuse(path, f"{path}: {reason}", "write `infra: aws/us-east-1`")
            else:
                self._note(f"`{at}` ({what}) is not tried: {reason}")
        if not kept and len(candidates) > 1:
            self._refuse("resources", "no candidate is on EC2", "add `- infra: aws/us-east-1`")
        return kept

    def _note_place(self, cloud: str, region: str) -> None:
        if not cloud or not region:
            named = "no cloud is named" if not cloud else "no region is named"
            self._note(f"{named}: the cluster is in {region or _REGION} of EC2")

    def _note_combinations(self, kept: Sequence[tuple[str, Mapping[str, Any]]], num_regions: int) -> None:
        """Say so if kinds of machines are tried in regions where no candidate has them."""
        kinds = {(str(each.get("instance_type")), bool(each.get("use_spot"))) for _, each in kept}
        stated = {
            (self._place(at, each)[1], str(each.get("instance_type")), bool(each.get("use_spot"))) for at, each in kept
        }
        if num_regions > 1:
            self._note("all nodes are in one region: the first that has a head")
        if num_regions > 1 and len(stated) < num_regions * len(kinds):
            self._note("each kind of machine of the candidates is tried in each of their regions")

    # Machines

    def _gpus(self, at: str, candidate: Mapping[str, Any]) -> tuple[int, str]:
        """Return number and kind of GPUs."""
        stated = candidate.get("accelerators")
        path, hint = f"{at}.accelerators", "write one kind, such as `accelerators: A100:8`"
        if stated is None:
            return 0, ""
        if isinstance(stated, list):
            kinds = [str(each) for each in stated]
        elif isinstance(stated, Mapping):
            kinds = [str(kind) if number is None else f"{kind}:{number}" for kind, number in stated.items()]
        else:
            kinds = [str(stated)]
        if len(kinds) != 1:
            message = f"`{path}` names {len(kinds)} kinds: {', '.join(kinds)}; a group has one"
            self._refuse(path, message, hint)
            return 0, ""
        kind, _, number = kinds[0].partition(":")
        number = number.strip() or "1"
        if kind.lower().startswith("tpu"):
            self._refuse(path, f"{path}: `{kind}` is a TPU, which is not supported", "name GPUs, such as `A100:8`")
        elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", kind) or not re.fullmatch(r"[1-9]\d{0,2}(\.0)?", number):
            self._refuse(path, f"{path}: `{kinds[0]}` is not a kind and a whole number", hint)
        else:
            return int(float(number)), kind.lower()
        return 0, ""

    def _types(self, kept: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, ...]:
        types = []
        for at, each in kept:
            found = each.get("instance_type")
            if isinstance(found, str) and found:
                types.append(found)
            elif found is not None:
                self._refuse(f"{at}.instance_type", f"`{at}.instance_type` must be text", "write `m5.large`")
        return tuple(dict.fromkeys(types))

    def _cpu_type(self, at: str, cpus: float, memory: float) -> str:
        """Return the smallest m5 that has so much; SkyPilot's choice without a wish has 8 vCPUs, too."""
        wanted = cpus or (0.0 if memory else _DEFAULT_CPUS)
        for num_cpus, gib, suffix in _CPU_TYPES:
            if num_cpus >= wanted and gib >= memory:
                self._note(f"machines are m5.{suffix} ({num_cpus} vCPUs, {gib} GiB), as no `instance_type` is named")
                return f"m5.{suffix}"
        key = "cpus" if cpus > _CPU_TYPES[-1][0] else "memory"
        message = f"`{at}.{key}` is more than any m5 has (96 vCPUs, 384 GiB)"
        self._refuse(f"{at}.{key}", message, "name an `instance_type`")
        return ""

    def _market(self, kept: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        for at, each in kept:
            if not isinstance(each.get("use_spot", False), bool | None):
                self._refuse(f"{at}.use_spot", f"`{at}.use_spot` must be true or false", "write `use_spot: true`")
        spot = [bool(each.get("use_spot")) for _, each in kept]
        if all(spot) and spot:
            return "spot"
        if any(spot):
            self._note("spot machines are tried first, then on-demand ones")
        return "spot-first" if any(spot) else "on-demand"

    def _amount(self, at: str, candidate: Mapping[str, Any], key: str) -> float:
        """Return a number, or GiB of a size; `8+` is 8: at least."""
        stated = candidate.get(key)
        if stated is None:
            return 0.0
        found = None if isinstance(stated, bool) else _AMOUNT.match(str(stated))
        if found is None or (key == "cpus" and found[2]):
            example = "`8+`" if key == "cpus" else "`64` or `64GB`"
            self._refuse(f"{at}.{key}", f"`{at}.{key}` cannot be `{stated}`", f"write {example}")
            return 0.0
        amount = float(found[1]) * _POWERS[(found[2] or "g")[0].lower()]
        if not 0 < amount < 1e6:
            self._refuse(f"{at}.{key}", f"`{at}.{key}` is {stated}", "write a number above 0, and less than a million")
            return 0.0
        return amount

    def _images(self, kept: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
        """Return the image of each region, as its first candidate has it."""
        found: dict[str, str] = {}
        for at, each in kept:
            region = self._place(at, each)[1]
            if region not in found:
                found[region] = self._image(at, each)
            has_others = any(other.get("image_id") for _, other in kept)
            if has_others and each.get("image_id") is None and not found[region]:
                self._refuse(at, f"`{at}` names no image for {region}, and others do", "name one for each, or none")
        return {region: image for region, image in found.items() if image}

    def _image(self, at: str, candidate: Mapping[str, Any]) -> str:
        image = candidate.get("image_id")
        region = self._place(at, candidate)[1] or _REGION
        if isinstance(image, Mapping):
            if region not in image:
                message = f"`{at}.image_id` names no image for {region}"
                self._refuse(f"{at}.image_id", message, f"add `{region}: ami-0123456789abcdef0`")
                return ""
            image = image[region]
        if image is None:
            return ""
        if not isinstance(image, str) or not image.startswith("ami-"):
            is_container = str(image).startswith("docker:")
            reason = "containers of tasks are not imported" if is_container else "it is not an image of EC2"
            container = str(image).partition(":")[2]
            hint = f"remove it, and add `image: {container}` to what is printed" if is_container else "write `ami-...`"
            self._refuse(f"{at}.image_id", f"`{at}.image_id` cannot be `{image}`: {reason}", hint)
            return ""
        return image

    def _labels(self, at: str, candidate: Mapping[str, Any]) -> dict[str, str]:
        labels = candidate.get("labels") or {}
        if not isinstance(labels, Mapping):
            self._refuse(f"{at}.labels", f"`{at}.labels` must be a mapping", "write `labels: {project: mine}`")
            return {}
        return {key: str(value) for key, value in labels.items()}

    def _price(self, at: str, candidate: Mapping[str, Any]) -> float | None:
        price = candidate.get("max_hourly_cost")
        if price is None or (isinstance(price, int | float) and not isinstance(price, bool) and 0 < price < 1e9):
            return None if price is None else float(price)
        self._refuse(f"{at}.max_hourly_cost", f"`{at}.max_hourly_cost` cannot be `{price}`", "write dollars: `10.5`")
        return None

    def _retries(self, at: str, candidate: Mapping[str, Any]) -> int:
        """Return the restarts after errors; after a lost machine a run restarts in any case."""
        for key in ("job_recovery", "spot_recovery"):
            recovery = candidate.get(key)
            if not isinstance(recovery, Mapping):
                continue
            for name in recovery:
                if name not in {"strategy", "max_restarts_on_errors"} and recovery[name]:
                    path = join_path((*split_path(at), key, name))
                    self._refuse(path, f"`{path}` cannot be honoured", "remove it")
            retries = recovery.get("max_restarts_on_errors") or 0
            if isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries < 1_000_000:
                return retries
            path = f"{at}.{key}.max_restarts_on_errors"
            self._refuse(path, f"`{path}` cannot be `{retries}`", "write a whole number")
        return 0
