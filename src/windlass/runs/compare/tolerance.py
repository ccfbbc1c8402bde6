"""Tolerances for numbers: `loss=1e-3` absolute, `loss=0.1%` relative, `loss=1e-3+0.1%` both.

The rule is |after - before| <= absolute + relative * |before|. NaN equals only NaN, and an infinity only
itself. Values that are not numbers must be equal.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError
from windlass.core.names import nearest
from windlass.runs import metrics
from windlass.runs.store import RunFolder

__all__ = ["Tolerance", "apart", "compare_metrics", "find_tolerance", "parse_tolerance", "unmatched", "value_names"]

_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
_FORM = re.compile(rf"(?P<name>[^=]+)=(?:(?P<absolute>{_NUMBER})(?!%))?\+?(?:(?P<relative>{_NUMBER})%)?\Z")
_HINT = "write NAME=1e-3 (absolute), NAME=0.1% (of the recorded value), or NAME=1e-3+0.1%"
_MAX_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Tolerance for the values with one name.

    Attributes:
        name: metric or key in a JSON output, alone (`loss`) or with its path (`eval.loss`); `*` matches any text.
        relative: as a fraction of the recorded value, 0.01 for 1 %.
    """

    name: str
    absolute: float = 0.0
    relative: float = 0.0

    def fits(self, path: str) -> bool:
        """Return whether the tolerance applies to the value at a dotted path."""
        last = path.rpartition(".")[2]
        return fnmatch.fnmatchcase(path, self.name) or fnmatch.fnmatchcase(last, self.name)

    def holds(self, before: float, after: float) -> bool:
        """Return whether two values are within the tolerance."""
        if math.isnan(before) or math.isnan(after):
            return math.isnan(before) and math.isnan(after)
        if math.isinf(before) or math.isinf(after):
            return before == after
        return abs(after - before) <= self.absolute + self.relative * abs(before)

    def __str__(self) -> str:
        parts = [f"{self.absolute:g}" if self.absolute or not self.relative else ""]
        parts.append(f"{self.relative * 100:g}%" if self.relative else "")
        return f"{self.name}=" + "+".join(part for part in parts if part)


def parse_tolerance(text: str) -> Tolerance:
    """Parse `NAME=AMOUNT`. Raises UsageError for anything else."""
    found = _FORM.match(text)
    if found is None or not (found["absolute"] or found["relative"]):
        raise UsageError(f"invalid tolerance `{text}`", hint=_HINT, code="invalid-value")
    return Tolerance(
        name=found["name"].strip(),
        absolute=float(found["absolute"] or 0),
        relative=float(found["relative"] or 0) / 100,
    )


def find_tolerance(path: str, tolerances: Iterable[Tolerance]) -> Tolerance | None:
    """Return the first tolerance that applies to a value, or None."""
    return next((tolerance for tolerance in tolerances if tolerance.fits(path)), None)


def apart(before: object, after: object, tolerances: Sequence[Tolerance], path: str = "") -> Iterator[str]:
    """Yield the differences between two plain values that exceed their tolerances."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}, key=str):
            below = f"{path}.{key}" if path else str(key)
            if key not in before or key not in after:
                yield f"{below} is {'new' if key not in before else 'missing'}"
            else:
                yield from apart(before[key], after[key], tolerances, below)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path or 'it'} has {len(after)} entries instead of {len(before)}"
            return
        for left, right in zip(before, after, strict=True):
            yield from apart(left, right, tolerances, path)
    elif _is_number(before) and _is_number(after):
        yield from _numbers_apart(float(before), float(after), find_tolerance(path, tolerances), path)  # type: ignore[arg-type]  # checked above
    elif before != after or type(before) is not type(after):
        yield f"{path or 'it'}: {before!r} -> {after!r}"


def _numbers_apart(before: float, after: float, tolerance: Tolerance | None, path: str) -> Iterator[str]:
    if not (tolerance or Tolerance(name="*")).holds(before, after):
        allowed = f" (allowed: {tolerance})" if tolerance is not None else ""
        yield f"{path or 'it'}: {before:.9g} -> {after:.9g}{allowed}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_names(value: object, path: str = "") -> set[str]:
    """Return the dotted paths of all numbers in a value; the items of a list share one path."""
    if isinstance(value, Mapping):
        return {
            name for key, below in value.items() for name in value_names(below, f"{path}.{key}" if path else str(key))
        }
    if isinstance(value, list):
        return {name for below in value for name in value_names(below, path)}
    return {path} if _is_number(value) else set()


def unmatched(tolerances: Iterable[Tolerance], names: Iterable[str]) -> UsageError | None:
    """Return an error if a tolerance applies to no value of the run, or None."""
    known = sorted(set(names))
    for tolerance in tolerances:
        if not any(tolerance.fits(name) for name in known):
            close = nearest(tolerance.name, known)
            listed = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
            hint = (
                f"did you mean `{close}`?"
                if close
                else f"known names: {listed}"
                if known
                else "the run reported no numbers"
            )
            message = f"the run has no metric and no JSON output value `{tolerance.name}`"
            return UsageError(message, hint=hint, code="unknown-metric")
    return None


def compare_metrics(before: RunFolder, after: RunFolder, tolerances: Sequence[Tolerance]) -> Iterator[tuple[str, str]]:
    """Yield a (metric, problem or empty string) pair for each metric that has a tolerance."""
    for name in metrics.names(before):
        tolerance = find_tolerance(name, tolerances)
        if tolerance is not None:
            yield name, _series_problem(before, after, name, tolerance)


def _series_problem(before: RunFolder, after: RunFolder, name: str, tolerance: Tolerance) -> str:
    left, right = metrics.series(before, name), metrics.series(after, name)
    if [point.step for point in left] != [point.step for point in right]:
        return f"was reported {len(right)} times instead of {len(left)}, or at other steps"
    wrong = [
        f"step {old.step}: {old.value:.9g} -> {new.value:.9g}"
        for old, new in zip(left, right, strict=True)
        if not tolerance.holds(old.value, new.value)
    ]
    more = f" and {len(wrong) - _MAX_SHOWN} more" if len(wrong) > _MAX_SHOWN else ""
    return f"{'; '.join(wrong[:_MAX_SHOWN])}{more} (allowed: {tolerance})" if wrong else ""
