"""Differences between two runs by cause, each reported once, where it originates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, WindlassError
from windlass.record.state import RunFacts
from windlass.runs import metrics, outputs
from windlass.runs.compare.pins import tidied
from windlass.runs.store import RunFolder

__all__ = ["Area", "Difference", "diff", "diff_documents", "difference_text"]


class Area(StrEnum):
    """Area to which a difference belongs, in the order of display."""

    CODE = "code"
    ENVIRONMENT = "environment"
    DATA = "data"
    PARAMETERS = "parameters"
    RESOURCES = "resources"
    HARDWARE = "hardware"
    METRICS = "metrics"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference in one value; None if a run does not have the value.

    Attributes:
        cause: area of the difference.
        path: dotted path in the document.
        details: further lines, such as changed files with the extent of each change.
        files: names of the files that differ.
    """

    cause: Area
    path: str
    before: object
    after: object
    details: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


_WIDTH = 120
_RESOURCES = frozenset(
    [
        "nodes",
        "gpus",
        "total_gpus",
        "cpus",
        "memory",
        "shared_memory",
        "disk",
        "hosts",
        "features",
        "procs_per_node",
        "where",
        "context",
        "limit",
        "retry",
        "retain",
        "site",
    ]
)
_AREA_OF_TOP = {
    "code": Area.CODE,
    "environment": Area.ENVIRONMENT,
    "env": Area.ENVIRONMENT,
    "image": Area.ENVIRONMENT,
    "data": Area.DATA,
    "builds": Area.DATA,
    "host": Area.HARDWARE,
    "hosts": Area.HARDWARE,
    "metrics": Area.METRICS,
    "outputs": Area.OUTPUTS,
}
_AREA_OF_HOST = dict.fromkeys(("os", "libc", "python", "python_version", "windlass_version"), Area.ENVIRONMENT)
_IGNORED = frozenset({"why", "host.collected_at", "host.python"})


def diff(run_a: RunFolder, run_b: RunFolder) -> list[Difference]:
    """Return the differences between two runs' documents and outputs, by cause and path.

    Raises:
        NotFoundError: a run has no plan.
        PreconditionError: a document is damaged.
    """
    return diff_documents(_documents(run_a), _documents(run_b))


def difference_text(difference: Difference) -> str:
    """Format a difference as one line: name, old value and new value, with shortened hex digests."""
    name = difference.path
    if difference.cause in (Area.PARAMETERS, Area.RESOURCES) or name.startswith("env."):
        shown = name
    else:
        shown = name.partition(".")[2] or name
        for prefix, suffix in (("packages.", ""), ("", ".digest")):
            shown = shown.removeprefix(prefix).removesuffix(suffix) or shown
    before, after = _text(difference.before), _text(difference.after)
    if difference.before is None:
        return f"+ {shown}: {after}"
    if difference.after is None:
        return f"- {shown}: {before}"
    return f"~ {shown}: {before} -> {after}"


def _text(value: object) -> str:
    if isinstance(value, Mapping) and len(value) == 1:
        return _text(next(iter(value.values())))
    if isinstance(value, str):
        return value[:12] if re.fullmatch("[0-9a-f]{32,64}", value) else value
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _documents(run: RunFolder) -> dict[str, object]:
    try:
        provenance = run.provenance()
    except NotFoundError:
        provenance = {}
    facts = run.facts()
    return {
        "plan": run.plan(),
        "provenance": provenance,
        "metrics": {name: {"value": point.value, "step": point.step} for name, point in metrics.last(run).items()},
        "outputs": _outputs(run, facts),
        "hosts": _hosts(facts),
    }


def _outputs(run: RunFolder, facts: RunFacts) -> dict[str, object]:
    """Return the digests of output files by task, or one total digest if the manifest is not local."""
    found: dict[str, object] = {}
    for task, (_, _, _, digest) in facts.outputs.items():
        try:
            entries = outputs.read_manifest(run.out(task)).entries
        except WindlassError:  # not fetched, removed or damaged: use the journal's digest
            found[task] = {"digest": digest}
            continue
        found[task] = {"digest": digest, "files": {entry.path: entry.sha256 for entry in entries}}
    return found


def _hosts(facts: RunFacts) -> dict[str, object]:
    """Return the hosts of each task's last attempt, without data builds."""
    newest = {name: task.newest_attempt for name, task in facts.tasks.items()}
    return {
        name: sorted({replica.host for replica in attempt.replicas.values() if replica.host})
        for name, attempt in newest.items()
        if attempt is not None and not name.startswith("data.")
    }


def diff_documents(before: Mapping[str, object], after: Mapping[str, object]) -> list[Difference]:
    """Return the differences between `{"plan", "provenance", "metrics", "outputs", "hosts"}` of two runs.

    A change is reported once, where it originates: a parameter is not repeated as part of a command line, nor a package
    as the digest of its lock file. Values that differ between any two runs (ids, times, paths) are omitted.
    """
    order = list(Area)
    left, right = tidied(_tree(before), _tree(after))
    return sorted(_walk(left, right, ()), key=lambda difference: (order.index(difference.cause), difference.path))


def _tree(documents: Mapping[str, object]) -> dict[str, object]:
    """Merge a run's declarations, pins and measurements into one tree."""
    plan, provenance = _mapping(documents.get("plan")), _mapping(documents.get("provenance"))
    pins = _mapping(plan.get("pins")) or provenance
    tree = dict(_mapping(plan.get("experiment")) or _mapping(provenance.get("spec")))
    tree["code"] = pins.get("code")
    tree["environment"] = _environment(_mapping(pins.get("environment")), _mapping(provenance.get("environment")))
    tree["image"] = {**_mapping(pins.get("image")), **_mapping(provenance.get("image"))}
    tree["data"] = _by_name(pins.get("data"))
    declared = _mapping(_mapping(plan.get("experiment")).get("data"))
    builds = _by_name(pins.get("builds"))
    tree["builds"] = {name: {**_mapping(pin), "declared": declared.get(name)} for name, pin in builds.items()}
    tree["site"] = _mapping(plan.get("site"))
    tree["host"] = provenance.get("host")
    tree["hosts"] = documents.get("hosts")
    tree["metrics"] = documents.get("metrics")
    tree["outputs"] = documents.get("outputs")
    return tree


def _environment(pin: Mapping[str, object], recorded: Mapping[str, object]) -> dict[str, object]:
    """Return the environment's pin, with the installed packages by name."""
    listed = recorded.get("packages") or pin.get("packages")
    texts = [str(package) for package in listed] if isinstance(listed, list) else []
    packages = {name: version for name, _, version in (text.partition("==") for text in texts)}
    return {**pin, "packages": packages}


def _by_name(pins: object) -> Mapping[str, object]:
    if isinstance(pins, list):
        return {str(_mapping(pin).get("name")): pin for pin in pins}
    return _mapping(pins)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _walk(before: object, after: object, path: tuple[str, ...]) -> Iterator[Difference]:
    is_nothing = before in (None, {}) and after in (None, {})
    if before == after or is_nothing or ".".join(path) in _IGNORED:
        return
    if path[:1] == ("metrics",) and len(path) == 2:
        yield _metric(path[1], _mapping(before), _mapping(after))
        return
    if path[-1:] == ("vars",) or path in (("env",), ("params",), ("metrics",)):
        before, after = _mapping(before), _mapping(after)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}, key=str):
            yield from _walk(before.get(key), after.get(key), (*path, str(key)))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from _walk(left, right, (*path, str(number)))
    else:
        yield Difference(cause=_area(path), path=".".join(path), before=before, after=after)


def _metric(name: str, before: Mapping[str, object], after: Mapping[str, object]) -> Difference:
    """Return the difference between the newest values of a metric, with their steps if those differ."""
    steps = before.get("step"), after.get("step")
    details = (f"newest step {steps[0]} -> {steps[1]}",) if None not in steps and steps[0] != steps[1] else ()
    return Difference(
        cause=Area.METRICS,
        path=f"metrics.{name}",
        before=before.get("value"),
        after=after.get("value"),
        details=details,
    )


def _area(path: tuple[str, ...]) -> Area:
    if path[0] == "host" and len(path) > 1:
        return _AREA_OF_HOST.get(path[1], Area.HARDWARE)
    if path[0] in _AREA_OF_TOP:
        return _AREA_OF_TOP[path[0]]
    is_resource = path[0] in _RESOURCES or (path[0] == "tasks" and len(path) > 2 and path[2] in _RESOURCES)
    return Area.RESOURCES if is_resource else Area.PARAMETERS
