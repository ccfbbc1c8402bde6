"""What is different between two runs, by cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from windlass.core.errors import NotFoundError
from windlass.record.state import RunFacts
from windlass.runs.store import RunFolder

__all__ = ["Area", "Difference", "diff", "diff_documents"]


class Area(str, Enum):
    """What a difference belongs to, in the order shown."""

    CODE = "code"
    ENVIRONMENT = "environment"
    DATA = "data"
    PARAMETERS = "parameters"
    RESOURCES = "resources"
    HARDWARE = "hardware"
    OUTPUTS = "outputs"

    def __str__(self) -> str:
        return self.value


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


_AREAS: tuple[tuple[Area, frozenset[str]], ...] = (
    (Area.HARDWARE, frozenset({"hardware", "host", "hosts", "gpu_model", "driver", "cpu_model", "kernel"})),
    (Area.DATA, frozenset({"data", "data_digests", "datasets"})),
    (Area.CODE, frozenset({"code", "commit", "snapshot", "tree"})),
    (
        Area.ENVIRONMENT,
        frozenset(
            {"env", "environment", "packages", "lock", "lock_hash", "python", "image", "vars", "windlass_version"}
        ),
    ),
    (
        Area.RESOURCES,
        frozenset(
            {
                "nodes",
                "gpus",
                "total_gpus",
                "cpus",
                "memory",
                "memory_bytes",
                "resources",
                "where",
                "site",
                "replicas",
                "placement",
                "limit",
                "lease",
            }
        ),
    ),
    (Area.OUTPUTS, frozenset({"outputs"})),
)
_VOLATILE = frozenset({"run", "id", "created_at", "at", "token", "plan_hash", "hash", "path", "run_dir", "home"})


def diff(run_a: RunFolder, run_b: RunFolder) -> list[Difference]:
    """Everything that is different between two runs' plans, provenance and outputs, sorted by cause and path.

    Raises:
        NotFoundError: a run has no plan.
        PreconditionError: a document is damaged.
    """
    return diff_documents(_documents(run_a), _documents(run_b))


def _documents(run: RunFolder) -> dict[str, object]:
    documents: dict[str, object] = {"plan": run.plan(), "outputs": _outputs(run.facts())}
    try:
        documents["provenance"] = run.provenance()
    except NotFoundError:
        documents["provenance"] = {}
    return documents


def _outputs(facts: RunFacts) -> dict[str, object]:
    return {
        task: {"num_files": num_files, "bytes": size, "digest": digest}
        for task, (_, num_files, size, digest) in facts.outputs.items()
    }


def diff_documents(before: Mapping[str, object], after: Mapping[str, object]) -> list[Difference]:
    """The differences of two trees of plain values.

    What differs in any two runs (ids, times, tokens, own folders) is left out. A value's cause is that of the
    innermost key on its way that names one; the rest are parameters.
    """
    order = list(Area)
    found = list(_walk(before, after, ()))
    return sorted(found, key=lambda difference: (order.index(difference.cause), difference.path))


def _walk(before: object, after: object, path: tuple[str, ...]) -> Iterator[Difference]:
    if path and path[-1] in _VOLATILE:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}, key=str):
            yield from _walk(before.get(key), after.get(key), (*path, str(key)))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from _walk(left, right, (*path, str(number)))
    elif before != after:
        yield Difference(cause=_area(path), path=".".join(path), before=before, after=after)


def _area(path: tuple[str, ...]) -> Area:
    for key in reversed(path):
        if key == "params":
            return Area.PARAMETERS
        for area, keys in _AREAS:
            if key in keys:
                return area
    return Area.PARAMETERS
