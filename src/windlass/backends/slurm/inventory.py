"""Parsers for Slurm's listings of a site, without I/O. Written for 22.05 to 25.05; unknown words are ignored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from windlass.core.dataclass import dataclass
from windlass.sites.profile import Mapped, Partition

__all__ = [
    "Association",
    "NodeRecord",
    "PartitionRecord",
    "Quality",
    "parse_associations",
    "parse_config",
    "parse_nodes",
    "parse_partitions",
    "parse_qualities",
    "parse_time",
    "partition_of",
    "priorities_of",
]

_KEY = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]*)=")
_CONFIG = re.compile(r"^\s*([A-Za-z][A-Za-z0-9_\[\]]*)\s*=\s?(.*?)\s*$")
_GPUS = re.compile(r"gpu(?::([^:,()\s]+))?:([0-9]{1,6})(?![0-9])")
_NOTHING = {"", "(null)", "N/A", "n/a", "NONE", "None"}
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """Node at a site; sizes are in bytes."""

    name: str
    arch: str
    cpus: int
    memory: int
    gpus: int
    gres: str
    features: tuple[str, ...]
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """Partition at a site; times are in seconds, and None means no limit.

    Attributes:
        tier: a partition of a higher tier may preempt jobs of a lower one if Slurm is configured so.
        quality: QOS whose limits apply to every job there.
        is_open: whether users may submit jobs to it.
        is_submitting: whether jobs can be submitted from its nodes.
    """

    name: str
    nodes: str
    num_nodes: int
    max_nodes: int
    time_max: float | None
    tier: int
    preempt_mode: str
    grace_s: float
    qos: tuple[str, ...]
    quality: str
    is_default: bool
    is_open: bool
    is_exclusive: bool
    is_submitting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality of service: priority, the QOS that it may preempt, and walltime limit in seconds (None if unlimited)."""

    name: str
    priority: int
    preempts: tuple[str, ...]
    time_max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """Account that the user may charge, with the QOS that it may use."""

    account: str
    qos: tuple[str, ...]
    default_qos: str


def parse_partitions(text: str) -> list[PartitionRecord]:
    """Parse the output of `scontrol show partition -o`."""
    return [_partition(record) for record in _records(text) if "PartitionName" in record]


def _partition(record: Mapping[str, str]) -> PartitionRecord:
    alloc = record.get("AllocNodes", "ALL")
    return PartitionRecord(
        name=record["PartitionName"],
        nodes=_value(record, "Nodes"),
        num_nodes=_count(record.get("TotalNodes", "")),
        max_nodes=_count(record.get("MaxNodes", "")),
        time_max=parse_time(record.get("MaxTime", "")),
        tier=_count(record.get("PriorityTier", "")),
        preempt_mode=record.get("PreemptMode", "OFF"),
        grace_s=float(_count(record.get("GraceTime", ""))),
        qos=() if record.get("AllowQos", "ALL") == "ALL" else _words(record["AllowQos"]),
        quality=_value(record, "QoS"),
        is_default=record.get("Default") == "YES",
        is_open=record.get("RootOnly", "NO") != "YES" and record.get("State", "UP") in ("UP", "DRAIN"),
        is_exclusive=record.get("OverSubscribe", record.get("Shared", "")).startswith("EXCLUSIVE"),
        is_submitting=alloc in ("ALL", ""),
    )


def parse_nodes(text: str) -> list[NodeRecord]:
    """Parse the output of `scontrol show node -o`."""
    return [_node(record) for record in _records(text) if "NodeName" in record]


def _node(record: Mapping[str, str]) -> NodeRecord:
    found = _GPUS.findall(record.get("Gres", ""))
    kinds = {kind for kind, _ in found if kind}
    memory = _count(record.get("RealMemory", "")) - _count(record.get("MemSpecLimit", ""))
    return NodeRecord(
        name=record["NodeName"],
        arch=_value(record, "Arch"),
        cpus=_count(record.get("CPUEfctv", "")) or _count(record.get("CPUTot", "")),
        memory=memory * _MIB,
        gpus=sum(int(count) for _, count in found),
        gres=kinds.pop() if len(kinds) == 1 else "",
        features=_words(_value(record, "AvailableFeatures")),
        partitions=_words(_value(record, "Partitions")),
    )


def parse_config(text: str) -> dict[str, str]:
    """Parse the output of `scontrol show config` into a mapping of names to values; a value may be empty."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _CONFIG.match(line)
        if match is not None:
            value = match.group(2)
            found.setdefault(match.group(1), "" if value in _NOTHING else value)
    return found


def parse_qualities(text: str) -> list[Quality]:
    """Parse the output of `sacctmgr -nP show qos format=name,priority,preempt,maxwall`."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    return [
        Quality(name=name, priority=_count(priority), preempts=_words(preempts), time_max=parse_time(wall))
        for name, priority, preempts, wall in rows
        if name
    ]


def parse_associations(text: str) -> list[Association]:
    """Parse the output of `sacctmgr -nP show assoc where user=NAME format=account,qos,defaultqos`."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return [
        Association(account=account, qos=_words(qos), default_qos=default) for account, qos, default in rows if account
    ]


def partition_of(
    record: PartitionRecord,
    nodes: Sequence[NodeRecord],
    others: Sequence[PartitionRecord],
    qualities: Sequence[Quality],
    config: Mapping[str, str],
) -> Partition:
    """Convert a partition to a profile's form; if its nodes differ, the most common kind is described."""
    own = [node for node in nodes if record.name in node.partitions]
    shapes = Counter((node.cpus, node.memory, node.gpus, node.gres, node.arch) for node in own)
    cpus, memory, gpus, gres, arch = shapes.most_common(1)[0][0] if shapes else (0, 0, None, "", "")
    is_preempted = _is_preempted(record, nodes, others, config)
    walls = [record.time_max, *(quality.time_max for quality in qualities if quality.name == record.quality)]
    return Partition(
        num_nodes=record.num_nodes or len(own),
        max_nodes=min(record.max_nodes, record.num_nodes or record.max_nodes),
        time_max=min((wall for wall in walls if wall is not None), default=None),
        gpus=gpus,
        gpu_type=gres.lower(),
        gres=gres,
        cpus=cpus,
        memory=memory,
        arch=arch,
        features=tuple(sorted({feature for node in own for feature in node.features})),
        qos=record.qos,
        is_preempted=is_preempted,
        notice=record.grace_s if is_preempted else None,
    )


def _is_preempted(
    record: PartitionRecord, nodes: Sequence[NodeRecord], others: Sequence[PartitionRecord], config: Mapping[str, str]
) -> bool:
    """Return True if a partition with a higher tier shares its nodes and preemption is by tier.

    Source: slurm.conf(5).
    """
    if config.get("PreemptType") != "preempt/partition_prio" or record.preempt_mode in ("OFF", ""):
        return False
    higher = {other.name for other in others if other.tier > record.tier}
    return any(record.name in node.partitions and higher.intersection(node.partitions) for node in nodes)


def priorities_of(
    partitions: Mapping[str, Partition], qualities: Sequence[Quality], usable: Sequence[str], config: Mapping[str, str]
) -> tuple[dict[str, Mapped], Mapped | None]:
    """Return the QOS for each priority in a profile, and for `preemptible` the QOS that others may preempt."""
    names = {quality.name: quality for quality in qualities if not usable or quality.name in usable}
    priority: dict[str, Mapped] = {wish: Mapped(qos=wish) for wish in ("low", "high", "urgent") if wish in names}
    if config.get("PreemptType") == "preempt/qos":
        victims = {victim for quality in qualities for victim in quality.preempts}
        found = sorted((name for name in victims if name in names), key=lambda name: (names[name].priority, name))
        return priority, Mapped(qos=found[0]) if found else None
    preempted = [name for name, partition in partitions.items() if partition.is_preempted]
    return priority, Mapped(partition=preempted[0]) if preempted else None


def parse_time(text: str) -> float | None:
    """Parse `1-02:03:04`, `02:03:04` or `03:04` to seconds; None for no limit. Source: sbatch(1), --time."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _records(text: str) -> list[dict[str, str]]:
    """Parse lines of `Key=value Key=value`; values may contain spaces, and the first of duplicate keys is used."""
    records = []
    for line in text.splitlines():
        found: dict[str, str] = {}
        matches = list(_KEY.finditer(line))
        ends = [*(match.start() for match in matches[1:]), len(line)]
        for match, end in zip(matches, ends, strict=False):  # so that a line without keys has an end too
            found.setdefault(match.group(1), line[match.end() : end].strip())
        if found:
            records.append(found)
    return records


def _value(record: Mapping[str, str], key: str) -> str:
    value = record.get(key, "")
    return "" if value in _NOTHING else value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word and word not in _NOTHING)


def _count(text: str) -> int:
    """Parse a number; 0 for UNLIMITED and any other text."""
    match = re.match(r"[0-9]{1,18}(?![0-9])", text)
    return int(match.group()) if match else 0
