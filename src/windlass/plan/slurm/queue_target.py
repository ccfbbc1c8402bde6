"""Queue target at a Slurm site: partition, QOS, account and nice value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from windlass.core.dataclass import dataclass
from windlass.core.errors import InternalError
from windlass.core.names import nearest
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.site import Site
from windlass.sites.profile import Partition, Profile
from windlass.spec import Context, Experiment, Task

__all__ = ["QueueTarget", "mapping_text", "queue_target_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTarget:
    """Partition of a site, and the options for its jobs.

    Attributes:
        partition: the scheduler's default if empty; nothing is then known about it.
        there: resources of its nodes; 0, None and empty mean unknown.
        qos, account: the scheduler's default if empty.
    """

    profile: Profile
    partition: str = ""
    there: Partition = Partition()
    qos: str = ""
    account: str = ""
    nice: int = 0

    def __str__(self) -> str:
        return f"{self.profile.name}/{self.partition}" if self.partition else self.profile.name

    def cpus_per_node(self, task: Task) -> int:
        """Return the number of CPUs on a node that a task may use; 0 if unknown."""
        if task.cluster == "ray" and self.profile.ray.cpus:
            return self.profile.ray.cpus
        return int(task.cpus) if task.cpus else self.there.cpus

    def others(self, holds: Callable[[Partition], bool]) -> Iterator[str]:
        """Yield the names of other partitions that satisfy a condition, as `--on` accepts them."""
        for name, partition in self.profile.partitions.items():
            is_like = not self.there.gpus or partition.gpus != 0
            if name != self.partition and is_like and holds(partition):
                yield f"{self.profile.name}/{name}"


def queue_target_of(experiment: Experiment, site: Site, diagnostics: Diagnostics) -> QueueTarget:
    """Choose the partition, QOS, account and nice value; refuse names that the site does not have."""
    profile = site.profile
    if profile is None:
        raise InternalError(f"site `{site.name}` has no profile")
    partition = _partition(experiment.context, site.partition, profile, diagnostics)
    there = profile.partitions.get(partition, Partition())
    qos = _qos(experiment.context, profile, diagnostics)
    target = QueueTarget(
        profile=profile,
        partition=partition,
        there=there,
        qos=qos,
        account=experiment.context.account or profile.scheduler.account,
        nice=sum(wish.nice for _, wish in _wishes(experiment.context, profile)),
    )
    _check_partition(target, diagnostics)
    _check_qos(target, diagnostics)
    _check_account(target, experiment.context, diagnostics)
    return target


def mapping_text(profile: Profile, setting: str, value: object) -> str:
    """Describe what the site maps a setting to; empty if there is no mapping."""
    mapped = profile.scheduler.preemptible if setting == "preemptible" else profile.scheduler.priority.get(str(value))
    if mapped is None:
        return ""
    parts = [f"partition {mapped.partition}" if mapped.partition else "", f"QOS {mapped.qos}" if mapped.qos else ""]
    parts.append(f"--nice={mapped.nice}" if mapped.nice else "")
    return "here it is " + (", ".join(part for part in parts if part) or "what every job gets")


def _wishes(context: Context, profile: Profile) -> Iterator[tuple[str, _Wish]]:
    """Yield a (setting, mapped options) pair for each setting that the site maps."""
    scheduler = profile.scheduler
    if context.preemptible and scheduler.preemptible is not None:
        mapped = scheduler.preemptible
        yield "context.preemptible", _Wish(mapped.partition, mapped.qos, mapped.nice)
    if context.priority in scheduler.priority:
        mapped = scheduler.priority[context.priority]
        yield "context.priority", _Wish(mapped.partition, mapped.qos, mapped.nice)


@dataclass(frozen=True, slots=True)
class _Wish:
    partition: str
    qos: str
    nice: int


def _partition(context: Context, named: str, profile: Profile, diagnostics: Diagnostics) -> str:
    asked = [("where", named)] if named else []
    asked += [(setting, wish.partition) for setting, wish in _wishes(context, profile) if wish.partition]
    _check_agreement("partition", asked, profile, diagnostics)
    only = next(iter(profile.partitions)) if len(profile.partitions) == 1 else ""
    return asked[0][1] if asked else profile.scheduler.partition or only


def _qos(context: Context, profile: Profile, diagnostics: Diagnostics) -> str:
    asked = [(setting, wish.qos) for setting, wish in _wishes(context, profile) if wish.qos]
    _check_agreement("QOS", asked, profile, diagnostics)
    return asked[0][1] if asked else profile.scheduler.qos


def _check_agreement(noun: str, asked: list[tuple[str, str]], profile: Profile, diagnostics: Diagnostics) -> None:
    for setting, name in asked[1:]:
        if name != asked[0][1]:
            message = f"{setting} means {noun} `{name}` at `{profile.name}`, and {asked[0][0]} means `{asked[0][1]}`"
            hint = f"keep one of them: ~{setting}"
            hint += f", or --on {profile.name}/{name}" if asked[0][0] == "where" else f", or ~{asked[0][0]}"
            diagnostics.add(setting, message, "conflicting-options", hint)


def _check_partition(target: QueueTarget, diagnostics: Diagnostics) -> None:
    known = target.profile.partitions
    if target.partition and known and target.partition not in known:
        hint = _suggest(target.partition, known, "partitions", prefix=f"--on {target.profile.name}/")
        message = f"`{target.profile.name}` has no partition `{target.partition}`"
        diagnostics.add("where", message, "unknown-queue", hint)


def _check_qos(target: QueueTarget, diagnostics: Diagnostics) -> None:
    profile, allowed = target.profile, target.there.qos
    known = profile.scheduler.qos_known
    if target.qos and known and target.qos not in known:
        hint = _suggest(target.qos, known, "QOS") + f"; it comes from the profile of `{profile.name}`"
        diagnostics.add("where", f"`{profile.name}` has no QOS `{target.qos}`", "unknown-queue", hint)
    elif target.qos and allowed and target.qos not in allowed:
        other = next(target.others(lambda partition: target.qos in partition.qos), "")
        hint = f"--on {other}" if other else f"partition `{target.partition}` takes: {', '.join(allowed)}"
        message = f"QOS `{target.qos}` is not allowed in partition `{target.partition}` of `{profile.name}`"
        diagnostics.add("where", message, "unknown-queue", hint)


def _check_account(target: QueueTarget, context: Context, diagnostics: Diagnostics) -> None:
    known = target.profile.scheduler.accounts
    if target.account and known and target.account not in known:
        whose = "" if context.account else " (scheduler.account in its profile)"
        message = f"you have no account `{target.account}` at `{target.profile.name}`{whose}"
        hint = _suggest(target.account, known, "accounts", prefix="context.account=")
        diagnostics.add("context.account", message, "unknown-queue", hint)


def _suggest(word: str, names: Iterable[str], what: str, prefix: str = "") -> str:
    close = nearest(word, names)
    return f"did you mean `{prefix}{close}`?" if close else f"the {what} are: {', '.join(names)}"
