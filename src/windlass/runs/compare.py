"""What is different between two runs, by cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from windlass.core.errors import NotFoundError
from windlass.record.state import RunFacts
from windlass.runs.store import RunFolder

__all__ = ["Area", "Difference", "diff", "diff_documents"]


class Area(StrEnum):
    """What a difference belongs to, in the order shown."""

    CODE = "code"
    ENVIRONMENT = "environment"
    DATA = "data"
    PARAMETERS = "parameters"
    RESOURCES = "resources"
    HARDWARE = "hardware"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that is not the same; None where a side has none.

    Attributes:
        cause: the area it belongs to.
        path: dotted, from the document's top.
    """

    cause: Area
    path: str
    before: object
    after: object


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
        "site",
    ]
)
_AREA_OF_TOP = {
    "code": Area.CODE,
    "environment": Area.ENVIRONMENT,
    "env": Area.ENVIRONMENT,
    "data": Area.DATA,
    "host": Area.HARDWARE,
    "outputs": Area.OUTPUTS,
}
_AREA_OF_HOST = dict.fromkeys(("os", "libc", "python", "python_version", "windlass_version"), Area.ENVIRONMENT)
_IGNORED = frozenset(
    {
        "why",
        "code.ref",
        "environment.interpreter",
        "host.collected_at",
        "host.python",
        "environment.key",
        "environment.lock_file",
    }
)


def diff(run_a: RunFolder, run_b: RunFolder) -> list[Difference]:
    """Everything that is different between two runs' plans, provenance and outputs, sorted by cause and path.

    Raises:
        NotFoundError: a run has no plan.
        PreconditionError: a document is damaged.
    """
    return diff_documents(_documents(run_a), _documents(run_b))


def _documents(run: RunFolder) -> dict[str, object]:
    try:
        provenance = run.provenance()
    except NotFoundError:
        provenance = {}
    return {"plan": run.plan(), "provenance": provenance, "outputs": _outputs(run.facts())}


def _outputs(facts: RunFacts) -> dict[str, object]:
    return {
        task: {"num_files": num_files, "bytes": size, "digest": digest}
        for task, (_, num_files, size, digest) in facts.outputs.items()
    }


def diff_documents(before: Mapping[str, object], after: Mapping[str, object]) -> list[Difference]:
    """The differences of two runs, each given as `{"plan": ..., "provenance": ..., "outputs": ...}` of plain values.

    A change is told once, where it was made: a parameter is not told again as part of a command line. What differs in
    any two runs (ids, times, where things lie on a machine) is left out.
    """
    order = list(Area)
    found = list(_walk(_tree(before), _tree(after), ()))
    return sorted(found, key=lambda difference: (order.index(difference.cause), difference.path))


def _tree(documents: Mapping[str, object]) -> dict[str, object]:
    """What was declared, with pins in place of code and data, and what was measured."""
    plan, provenance = _mapping(documents.get("plan")), _mapping(documents.get("provenance"))
    pins = _mapping(plan.get("pins")) or provenance
    tree = dict(_mapping(plan.get("experiment")) or _mapping(provenance.get("spec")))
    tree["code"] = pins.get("code")
    tree["environment"] = _environment(_mapping(pins.get("environment")), _mapping(provenance.get("environment")))
    tree["data"] = _by_name(pins.get("data"))
    tree["site"] = _mapping(plan.get("site"))
    tree["host"] = provenance.get("host")
    tree["outputs"] = documents.get("outputs")
    return tree


def _environment(pin: Mapping[str, object], recorded: Mapping[str, object]) -> dict[str, object]:
    """The pin, with the packages that were really there by name."""
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
    if before == after or ".".join(path) in _IGNORED:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}, key=str):
            yield from _walk(before.get(key), after.get(key), (*path, str(key)))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from _walk(left, right, (*path, str(number)))
    else:
        yield Difference(cause=_area(path), path=".".join(path), before=before, after=after)


def _area(path: tuple[str, ...]) -> Area:
    if path[0] == "host" and len(path) > 1:
        return _AREA_OF_HOST.get(path[1], Area.HARDWARE)
    if path[0] in _AREA_OF_TOP:
        return _AREA_OF_TOP[path[0]]
    is_resource = path[0] in _RESOURCES or (path[0] == "tasks" and len(path) > 2 and path[2] in _RESOURCES)
    return Area.RESOURCES if is_resource else Area.PARAMETERS
