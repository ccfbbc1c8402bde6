"""What the callbacks share: which of a library's metrics are reported under which names, and with what checkpoint."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.core.names import nearest
from windlass.tune.errors import BadValueError
from windlass.tune.trainable import Checkpoint, report

__all__ = ["MetricNames", "need_library", "pick", "report_with"]

MetricNames = str | Sequence[str] | Mapping[str, str] | None
"""Nothing: all; names that are kept; or `{name to report: the library's name}`."""


def pick(found: Mapping[str, Any], names: MetricNames) -> dict[str, Any]:
    """The metrics that are to be reported.

    Raises:
        UsageError: the library has no metric of that name.
    """
    if not names:
        return dict(found)
    wanted = (
        names if isinstance(names, Mapping) else {name: name for name in ([names] if isinstance(names, str) else names)}
    )
    for theirs in wanted.values():
        if theirs not in found:
            near = nearest(theirs, found)
            hint = f"did you mean `{near}`?" if near else f"there are {', '.join(found) or 'none yet'}"
            raise BadValueError(f"the library has no metric `{theirs}`", hint=hint, code="unknown-metric")
    return {ours: found[theirs] for ours, theirs in wanted.items()}


def report_with(metrics: Mapping[str, Any], filename: str, write: Callable[[str], object]) -> None:
    """Report metrics with a checkpoint of one file, which `write` makes at the path that it gets."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        write(str(Path(folder, filename)))
        report(metrics, checkpoint=Checkpoint.from_directory(folder))


def need_library(*modules: str) -> Any:
    """The first of some modules that can be imported.

    Raises:
        PreconditionError: none can.
    """
    for module in modules:
        try:
            return importlib.import_module(module)
        except ImportError:
            continue
    package = modules[0].partition(".")[0]
    hint = f"pip install {package}"
    raise PreconditionError(f"this callback is for {package}, which is not installed", hint=hint, code="extra-missing")
