"""Machine types that regions have or lack, and what that means for a file with several regions. Pure.

A type that one region lacks is not tried there. A region in which a group can have no machine at all is skipped, since
all machines of a cluster are in one region. A type that no region has is a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from windlass.cluster.config import AwsPlace, NodeGroupConfig
from windlass.cluster.machine import Choice
from windlass.cluster.prices import known_types
from windlass.cluster.providers.protocol import Skip
from windlass.core.errors import Problem
from windlass.core.names import nearest

__all__ = ["Choices", "lacking_types", "missing_types", "shared_problems", "skips_of", "types_of"]

Choices: TypeAlias = Callable[[AwsPlace, NodeGroupConfig], Sequence[Choice]]
"""Returns the kinds of machines of a group in a region."""


def types_of(place: AwsPlace, groups: Mapping[str, NodeGroupConfig], choices: Choices) -> dict[str, list[str]]:
    """Return the machine types of each group in a region, in order."""
    return {name: list(dict.fromkeys(each.type for each in choices(place, group))) for name, group in groups.items()}


def lacking_types(
    region: str, groups: Mapping[str, NodeGroupConfig], types: Mapping[str, Sequence[str]], offered: Collection[str]
) -> Iterator[Problem]:
    """Yield the types that a region does not have.

    Args:
        types: of each group.
        offered: those that the region has.
    """
    for name, group in groups.items():
        if not types[name]:
            kind = f"{group.gpus} GPUs" + (f" of the kind `{group.gpu_type}`" if group.gpu_type else "")
            message = f"no known machine type has the {kind} of `{name}` in {region}"
            yield Problem(message, "provider-refused", hint="name types instead: `types: [g5.xlarge]`")
        for kind in types[name]:
            if kind not in offered:
                hint = _close(kind) or f"`aws ec2 describe-instance-type-offerings --region {region}`"
                yield Problem(f"{region} has no machine type `{kind}`", "provider-refused", hint=hint)


def skips_of(
    region: str, groups: Mapping[str, NodeGroupConfig], types: Mapping[str, Sequence[str]], offered: Collection[str]
) -> list[Skip]:
    """Return what is not tried in a region: each type that it lacks, and first all of it if a group has none left."""
    whole = []
    for name in groups:
        if not set(types[name]) & set(offered):
            kinds = f" ({', '.join(types[name])})" if types[name] else ""
            whole.append(f"{region} has no machine type for `{name}`{kinds}")
    lacking = dict.fromkeys(kind for kinds in types.values() for kind in kinds if kind not in offered)
    found = [Skip(region=region, type=kind, why=f"{region} has no machine type `{kind}`") for kind in lacking]
    return [Skip(region=region, why="; ".join(whole)), *found] if whole else found


def missing_types(regions: Sequence[str], skips: Sequence[Skip]) -> Iterator[Problem]:
    """Yield why no region of several can have the cluster, or which types none of them has."""
    whole = [skip for skip in skips if not skip.type]
    lacking = [{skip.type for skip in skips if skip.region == region and skip.type} for region in regions]
    nowhere = sorted(set.intersection(*lacking))
    for kind in nowhere:
        hint = _close(kind) or f"`aws ec2 describe-instance-type-offerings --region {regions[0]}`"
        yield Problem(f"none of the regions has the machine type `{kind}`", "provider-refused", hint=hint)
    if len(whole) == len(regions) and not nowhere:
        message = f"no region can have all groups: {'; '.join(skip.why for skip in whole)}"
        yield Problem(message, "provider-refused", hint="add types that one region has, or regions")


def shared_problems(found: Mapping[str, Sequence[Problem]]) -> Iterator[Problem]:
    """Yield the problems of several regions: those of all once, and others with the name of the region."""
    first, *others = found.values()
    shared = [each for each in first if all(each in problems for problems in others)]
    yield from shared
    for region, problems in found.items():
        for each in problems:
            if each not in shared:
                is_named = region in each.message
                yield each if is_named else Problem(f"{region}: {each.message}", each.code, each.place, each.hint)


def _close(kind: str) -> str:
    close = nearest(kind, known_types())
    return f"did you mean `{close}`?" if close else ""
