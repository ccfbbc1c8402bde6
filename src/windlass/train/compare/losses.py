"""Comparison for `windlass ckpt compare-loss A B`: the first step at which metrics differ; importable without torch."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windlass.core.errors import NotFoundError, UsageError
from windlass.core.json_text import decode_json
from windlass.core.phrases import count

__all__ = ["LossComparison", "MetricComparison", "compare_losses", "read_metrics"]

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """Comparison of one metric in two runs, over the steps they have in common.

    Attributes:
        num_steps: steps compared.
        first_step: the first step with a difference beyond the tolerance; None if there is none.
        before, after: the values at that step.
        largest: the largest difference, at step `largest_step`; infinite if one of the values is
            not finite.
    """

    name: str
    num_steps: int
    largest: float
    largest_step: int
    first_step: int | None = None
    before: float | None = None
    after: float | None = None

    def __str__(self) -> str:
        if self.first_step is None:
            return f"{self.name}: equal over {count(self.num_steps, 'step')}, largest difference {self.largest:.3g}"
        return (
            f"{self.name}: differs from step {self.first_step}: {self.before!r} and {self.after!r}; largest difference "
            f"{self.largest:.3g} at step {self.largest_step}, of {count(self.num_steps, 'step')}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossComparison:
    """All compared metrics, sorted so that the earliest difference comes first.

    Attributes:
        only_a, only_b: ranges of steps that only that run has, such as `(101, 200)`.
    """

    a: str
    b: str
    tolerance: float
    metrics: tuple[MetricComparison, ...]
    only_a: tuple[tuple[int, int], ...] = ()
    only_b: tuple[tuple[int, int], ...] = ()

    @property
    def is_equal(self) -> bool:
        """Return whether all metrics are equal."""
        return self.first_step is None

    @property
    def first_step(self) -> int | None:
        """First step at which any metric differs."""
        return self.metrics[0].first_step if self.metrics else None

    def __str__(self) -> str:
        lines = [f"- {self.a}", f"+ {self.b}", *(str(metric) for metric in self.metrics)]
        for name, spans in ((self.a, self.only_a), (self.b, self.only_b)):
            if spans:
                steps = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans)
                lines.append(f"only {name} has steps {steps}")
        return "\n".join(lines)

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form; NaN and infinities are strings."""
        metrics = [{key: _safe(value) for key, value in asdict(metric).items()} for metric in self.metrics]
        return {
            "a": self.a,
            "b": self.b,
            "tolerance": self.tolerance,
            "is_equal": self.is_equal,
            "first_step": self.first_step,
            "metrics": metrics,
            "only_a": [list(span) for span in self.only_a],
            "only_b": [list(span) for span in self.only_b],
        }


def compare_losses(
    a: str | Path, b: str | Path, *, names: Sequence[str] = ("train/loss",), tolerance: float = 0.0
) -> LossComparison:
    """Compare the metrics of two runs step by step.

    Args:
        a, b: a file of metrics, a folder that holds `metrics.jsonl`, the folder of a run, or a checkpoint `step-N` beside one.
        names: globs of metric names.
        tolerance: largest absolute difference that counts as none.

    Raises:
        NotFoundError: there is no file of metrics.
        UsageError: it is not a metrics file, or the runs have no step or metric in common.
    """
    first, second = read_metrics(a), read_metrics(b)
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise UsageError(f"{a} and {b} have no step in common", hint="choose other runs", code="nothing-to-compare")
    chosen = _chosen(first, second, shared, names)
    if not chosen:
        raise UsageError(
            f"{a} and {b} have no metric {', '.join(names)} in common",
            hint="name other metrics with `--metric`, such as `--metric 'eval/*'`",
            code="nothing-to-compare",
        )
    compared = [_compare(name, first, second, shared, tolerance) for name in chosen]
    compared.sort(key=lambda metric: math.inf if metric.first_step is None else metric.first_step)
    return LossComparison(
        a=str(a),
        b=str(b),
        tolerance=tolerance,
        metrics=tuple(compared),
        only_a=tuple(_spans(sorted(first.keys() - second.keys()))),
        only_b=tuple(_spans(sorted(second.keys() - first.keys()))),
    )


def read_metrics(path: str | Path) -> dict[int, dict[str, float]]:
    """Read metrics by step. If a resumed run has repeated steps, the later line is used.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a line is not a step record.
    """
    file = _metrics_file(Path(path).expanduser())
    found: dict[int, dict[str, float]] = {}
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            data = decode_json(line)
            step = int(data["step"])
            values = data.get("metrics", data)
            record = {str(key): float(value) for key, value in values.items() if _is_number(key, value)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break  # the last line may be incomplete after a kill
            raise UsageError(
                f"{file}:{number}: not a step record",
                hint="pass a file of the `jsonl` callback",
                code="invalid-file",
            ) from error
        found.setdefault(step, {}).update(record)
    return found


def _metrics_file(path: Path) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        own = sorted(path.glob(f"out/*/{METRICS_FILE}"))  # a windlass run with a single training task
        beside = [folder / METRICS_FILE for folder in (path, path.parent, path.parent.parent)]
        candidates: list[Path] = own + beside if len(own) == 1 else beside
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    raise NotFoundError(
        f"no {METRICS_FILE} at {path}",
        hint="add a callback of kind `jsonl` to the recipe, or pass its file",
        code="file-not-found",
    )


def _is_number(key: object, value: object) -> bool:
    is_word = value in ("nan", "inf", "-inf")  # as the `jsonl` callback writes nan and infinities
    return key != "step" and (is_word or (isinstance(value, int | float) and not isinstance(value, bool)))


def _chosen(
    first: Mapping[int, Mapping[str, float]],
    second: Mapping[int, Mapping[str, float]],
    shared: Sequence[int],
    names: Sequence[str],
) -> list[str]:
    found: dict[str, None] = {}
    for step in shared:
        for name in first[step].keys() & second[step].keys():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in names):
                found[name] = None
    return sorted(found)


def _compare(
    name: str,
    first: Mapping[int, Mapping[str, float]],
    second: Mapping[int, Mapping[str, float]],
    shared: Sequence[int],
    tolerance: float,
) -> MetricComparison:
    steps = [step for step in shared if name in first[step] and name in second[step]]
    gaps = {step: _gap(first[step][name], second[step][name]) for step in steps}
    largest_step = max(steps, key=lambda step: gaps[step])
    parted = next((step for step in steps if gaps[step] > tolerance), None)
    return MetricComparison(
        name=name,
        num_steps=len(steps),
        largest=gaps[largest_step],
        largest_step=largest_step,
        first_step=parted,
        before=None if parted is None else first[parted][name],
        after=None if parted is None else second[parted][name],
    )


def _gap(left: float, right: float) -> float:
    """Return the absolute difference: 0 if both are NaN, infinity if only one is."""
    if left == right or (math.isnan(left) and math.isnan(right)):
        return 0.0
    gap = abs(left - right)
    return math.inf if math.isnan(gap) else gap


def _spans(steps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive steps."""
    start = None
    for place, step in enumerate(steps):
        start = step if start is None else start
        if place + 1 == len(steps) or steps[place + 1] != step + 1:
            yield start, step
            start = None


def _safe(value: object) -> object:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
