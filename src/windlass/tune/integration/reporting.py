"""Code shared by the callbacks: selecting metrics, and reporting them with checkpoints."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.core.names import nearest
from windlass.tune.errors import BadValueError
from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trainable.session import report

__all__ = ["MetricNames", "need_library", "pick", "report_with"]

MetricNames = str | Sequence[str] | Mapping[str, str] | None
"""None for all metrics, names to keep, or `{name to report: the library's name}`."""


def pick(found: Mapping[str, Any], names: MetricNames) -> dict[str, Any]:
    """Return those metrics that are to be reported.

    Raises:
        UsageError: the library has no metric with that name.
    """
    if not names:
        return dict(found)
    wanted = (
        names if isinstance(names, Mapping) else {name: name for name in ([names] if isinstance(names, str) else names)}
    )
    for theirs in wanted.values():
        if theirs not in found:
            near = nearest(theirs, found)
            hint = f"did you mean `{near}`?" if near else f"available: {', '.join(found) or 'none yet'}"
            raise BadValueError(f"the library has no metric `{theirs}`", hint=hint, code="unknown-metric")
    return {ours: found[theirs] for ours, theirs in wanted.items()}


def report_with(metrics: Mapping[str, Any], filename: str, write: Callable[[str], object]) -> None:
    """Report metrics with a checkpoint that consists of one file, which `write` creates at a given path."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        write(str(Path(folder, filename)))
        report(metrics, checkpoint=Checkpoint.from_directory(folder))


def need_library(*modules: str) -> Any:
    """Import and return the first of several modules that is installed.

    Raises:
        PreconditionError: none is installed.
    """
    for module in modules:
        try:
            return importlib.import_module(module)
        except ImportError:
            continue
    package = modules[0].partition(".")[0]
    hint = f"pip install {package}"
    raise PreconditionError(f"this callback needs {package}, which is not installed", hint=hint, code="extra-missing")
