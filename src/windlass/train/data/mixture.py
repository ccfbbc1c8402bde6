"""Number of rows from each source per epoch, computed from sizes and ratios; importable without torch and numpy."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from windlass.core.errors import Problem, SpecError

__all__ = ["rows_of_epoch"]


def rows_of_epoch(
    sizes: Sequence[int],
    ratios: Sequence[float | None],
    max_repeats: Sequence[float],
    *,
    names: Sequence[str],
    total: int | None = None,
) -> list[int]:
    """Return the rows per epoch from each source, which sum to `total` (largest remainders).

    Args:
        sizes: rows that each source has.
        ratios: relative shares of the mixture; all None: each source once.
        max_repeats: maximum number of times that a row may occur in an epoch.
        total: number of rows in an epoch; if None, the rows of all sources.

    Raises:
        SpecError: a source has no row, or too few for its share (`data-too-small`).
    """
    empty = [name for name, size in zip(names, sizes, strict=True) if size == 0]
    if empty:
        hint = "add text, or lower `data.sequence_length`"
        raise SpecError(Problem(f"{name} does not fill one row", "data-too-small", hint=hint) for name in empty)
    weights = [size if ratio is None else ratio for size, ratio in zip(sizes, ratios, strict=True)]
    rows = sum(sizes) if total is None else total
    counts = _shares(weights, rows)
    problems = [
        _too_large(name, size, count, limit, rows)
        for name, size, count, limit in zip(names, sizes, counts, max_repeats, strict=True)
        if count > size * limit
    ]
    if problems:
        raise SpecError(problems)
    return counts


def _shares(weights: Sequence[float], total: int) -> list[int]:
    """Return integers that are proportional to the weights and sum to a total; the largest remainders are rounded up."""
    whole = sum(Fraction(weight) for weight in weights)
    exact = [Fraction(weight) * total / whole for weight in weights]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(weights)), key=lambda number: (counts[number] - exact[number], number))
    for number in by_remainder[: total - sum(counts)]:
        counts[number] += 1
    return counts


def _too_large(name: str, size: int, count: int, limit: float, total: int) -> Problem:
    message = f"{name} would repeat {count / size:.3g} times in an epoch for its share of {count / total:.3g}"
    most = f"its `max_repeats` of {limit:g} allows a share of {size * limit / total:.3g}"
    return Problem(
        f"{message}, but {most}",
        "data-too-small",
        hint="lower its `ratio`, raise its `max_repeats`, or make epochs shorter with `data.epoch_tokens`",
    )
