"""Pareto fronts of several metrics and their hypervolume, for up to a few thousand results."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.tune.search.protocol import Objectives
from windlass.tune.trial import Metrics

__all__ = ["crowding", "fronts", "hypervolume", "is_better", "losses", "pareto_front"]

Losses = tuple[float, ...]
"""Values of all metrics; less is better in each."""


def losses(objectives: Objectives, result: Metrics) -> Losses | None:
    """Return the metrics in a result, negated where higher is better, or None if one is missing or NaN."""
    values = [result.get(name) for name in objectives.metrics]
    if not all(isinstance(value, (int, float)) and value == value for value in values):  # noqa: PLR0124 - NaN
        return None
    return tuple(
        -float(value) if is_max else float(value)
        for value, is_max in zip(values, objectives.is_max, strict=True)
        if value is not None
    )


def is_better(one: Losses, other: Losses) -> bool:
    """Return whether a point dominates another: no worse in every metric and better in one."""
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def fronts(points: Sequence[Losses]) -> list[list[int]]:
    """Return the indices of the points in each front.

    The first front is not dominated, the second only by the first, and so on.

    Source: Deb et al. 2002, "A fast and elitist multiobjective genetic algorithm: NSGA-II", section III.A.
    """
    beats: list[list[int]] = [[] for _ in points]
    num_beaten_by = [0] * len(points)
    for i, one in enumerate(points):
        for j, other in enumerate(points):
            if is_better(one, other):
                beats[i].append(j)
                num_beaten_by[j] += 1
    found: list[list[int]] = []
    front = [index for index, count in enumerate(num_beaten_by) if count == 0]
    while front:
        found.append(front)
        following = []
        for i in front:
            for j in beats[i]:
                num_beaten_by[j] -= 1
                if num_beaten_by[j] == 0:
                    following.append(j)
        front = sorted(following)
    return found


def pareto_front(points: Sequence[Losses]) -> list[int]:
    """Return the indices, in order, of the points that are not dominated, including equal ones.

    Cheaper than `fronts`.
    """
    kept: list[int] = []
    for index in sorted(range(len(points)), key=points.__getitem__):  # a point that dominates another sorts before it
        if not any(is_better(points[other], points[index]) for other in kept):
            kept.append(index)
    return sorted(kept)


def crowding(points: Sequence[Losses]) -> list[float]:
    """Return the crowding distance of each point in a front, infinite at its ends. Source: as for `fronts`, III.B."""
    distances = [0.0] * len(points)
    for axis in range(len(points[0]) if points else 0):
        order = sorted(range(len(points)), key=[point[axis] for point in points].__getitem__)
        distances[order[0]] = distances[order[-1]] = float("inf")
        width = points[order[-1]][axis] - points[order[0]][axis]
        for before, index, after in zip(order, order[1:], order[2:], strict=False):
            distances[index] += (points[after][axis] - points[before][axis]) / width if width else 0.0
    return distances


def hypervolume(points: Sequence[Losses], reference: Losses) -> float:
    """Return the volume between the points and a reference point, or 0 if no point is better than it.

    Exact, by slicing along the last metric: fine for hundreds of points and up to four metrics.
    """
    inside = [point for point in points if all(value < bound for value, bound in zip(point, reference, strict=True))]
    inside = [inside[index] for index in pareto_front(inside)]
    if not inside:
        return 0.0
    if len(reference) == 1:
        return reference[0] - min(point[0] for point in inside)
    total, upper = 0.0, reference[-1]
    for point in sorted(inside, key=lambda point: point[-1], reverse=True):
        below = [other[:-1] for other in inside if other[-1] <= point[-1]]
        total += (upper - point[-1]) * hypervolume(below, reference[:-1])
        upper = point[-1]
    return total
