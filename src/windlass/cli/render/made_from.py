"""Inputs of a run as lines of `windlass show`: code, environment or image, data, overrides, parameters."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from windlass.core.errors import WindlassError
from windlass.core.phrases import count, size
from windlass.plan.plan import Plan
from windlass.plan.tokens.tokens import flat_params
from windlass.runs.provenance.graph import built_digest
from windlass.runs.store import RunFolder

if TYPE_CHECKING:
    from windlass.pin.code.pinned import CodePin

__all__ = ["made_from"]

_MAX_FILES = 4


def made_from(run: RunFolder) -> Iterator[tuple[str, str]]:
    """Yield a (label, text) pair for each input; yield nothing if the plan cannot be read."""
    try:
        plan = Plan.from_data(run.plan())
    except WindlassError:
        return
    yield "code", code_text(plan.pins.code)
    if plan.pins.environment.kind != "none" or not plan.image:
        yield "environment", plan.pins.environment.text()
    if plan.image:
        yield "image", plan.pins.image.text()
    yield from (("data", text) for text in _data(run, plan))
    if plan.overrides:
        yield "overrides", shlex.join(plan.overrides)
    params = plan.experiment.get("params")
    if isinstance(params, Mapping) and params:
        leaves = {name: value for name, value in flat_params(params).items() if not isinstance(value, Mapping)}
        yield "params", ", ".join(f"{name.partition('.')[2]}={_value(value)}" for name, value in leaves.items())


def _data(run: RunFolder, plan: Plan) -> Iterator[str]:
    for name, pin in plan.pins.data.items():
        held = f"{size(pin.size_bytes)}, {count(pin.num_files, 'file')}"
        yield f"{name}: {pin.source}  sha256:{pin.digest[:12]}  {held}"
    for name, build in plan.pins.builds.items():
        digest = build.digest or built_digest(run, name)
        yield f"{name}: prepared, key {build.key[:12]}" + (f"  sha256:{digest[:12]}" if digest else "")


def code_text(pin: CodePin) -> str:
    """Return a one-line description of the code pin."""
    branch = f" ({pin.branch})" if pin.branch else ""
    files = [*pin.dirty_files[:_MAX_FILES], *(["..."] if len(pin.dirty_files) > _MAX_FILES else [])]
    if pin.kind == "in-place":
        dirty = f", dirty: {', '.join(files)}" if files else ""
        return f"in place{dirty}" + (f"; on commit {pin.commit[:12]}{branch}" if pin.commit else "")
    if pin.kind == "snapshot":
        base = f", commit {pin.base[:12]}{branch}" if pin.base else ""
        return f"snapshot {pin.tree[:12]}{base}" + (f" with {', '.join(files)}" if base and files else "")
    return f"commit {pin.commit[:12]}{branch}" if pin.kind == "commit" else "none"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
