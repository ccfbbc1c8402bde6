"""Provenance of a run as a graph: its code, environment, image, data, run, attempts, outputs and metrics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError
from windlass.core.json_text import read_json
from windlass.record.state import Attempt, RunFacts, TaskFacts
from windlass.runs import metrics
from windlass.runs.metrics import MetricPoint
from windlass.runs.store import RunFolder
from windlass.supervise.builds.built_data import RECORD

__all__ = [
    "NodeKind",
    "ProvenanceEdge",
    "ProvenanceGraph",
    "ProvenanceNode",
    "built_digest",
    "graph_of",
    "provenance_graph",
]

_MEASURED = "eval/"
"""Beginning of the names of metrics that are results; others describe how training went."""

_MAX_ATTEMPTS = 4
"""Number of attempts of a task with a separate node; earlier attempts share one."""


class NodeKind(StrEnum):
    """Kind of a node; the kinds are in the order of the graph."""

    CODE = "code"
    BASE = "base image"
    IMAGE = "image"
    ENVIRONMENT = "environment"
    SOURCE = "source"
    BUILD = "build"
    DATA = "data"
    PARAMETERS = "parameters"
    RUN = "run"
    TASK = "task"
    ATTEMPT = "attempt"
    CHECKPOINT = "checkpoint"
    OUTPUT = "output"
    METRIC = "metric"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceNode:
    """Node of a provenance graph.

    Attributes:
        id: unique id, such as `code`, `data.prompts` or `attempt.train.1`.
        title: name to display.
        digest: `<what>:<hex>` of its content; empty if it has none (an attempt).
        details: further facts, one line each.
    """

    id: str
    kind: NodeKind
    title: str
    digest: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProvenanceEdge:
    """Edge between node ids: `after` was made from `before`."""

    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceGraph:
    """Acyclic provenance graph of a run; its nodes are sorted by kind."""

    run: str
    nodes: tuple[ProvenanceNode, ...]
    edges: tuple[ProvenanceEdge, ...]

    def to_data(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "nodes": [
                {
                    "id": node.id,
                    "kind": str(node.kind),
                    "title": node.title,
                    "digest": node.digest,
                    "details": list(node.details),
                }
                for node in self.nodes
            ],
            "edges": [[edge.before, edge.after] for edge in self.edges],
        }


def provenance_graph(run: RunFolder) -> ProvenanceGraph:
    """Return a run's graph, made from its plan, provenance record and journal.

    Raises:
        NotFoundError: the run has no plan.
        PreconditionError: a document is damaged.
    """
    try:
        record: Mapping[str, object] = run.provenance()
    except NotFoundError:
        record = {}
    return graph_of(
        run.id,
        run.plan(),
        record,
        run.facts(),
        built=lambda name: built_digest(run, name),
        evaluated=lambda task: _evaluated(run, task),
        measured=lambda task: {
            name: point for name, point in metrics.last(run, task).items() if name.startswith(_MEASURED)
        },
    )


def _evaluated(run: RunFolder, task: str) -> Mapping[str, Sequence[MetricPoint]]:
    """Return all values of the metrics that a task reported, by name."""
    return {name: metrics.series(run, name, task) for name in metrics.names(run, task)}


def built_digest(run: RunFolder, name: str) -> str:
    """Return the digest of data that the run built; empty if unknown."""
    try:
        written = read_json(run.out(f"data.{name}") / RECORD)
    except (OSError, ValueError):
        return ""
    return _text(_mapping(written), "digest")


def graph_of(
    run: str,
    plan: Mapping[str, object],
    record: Mapping[str, object],
    facts: RunFacts,
    *,
    built: Callable[[str], str] = lambda name: "",
    measured: Callable[[str], Mapping[str, MetricPoint]] = lambda task: {},
    evaluated: Callable[[str], Mapping[str, Sequence[MetricPoint]]] = lambda task: {},
) -> ProvenanceGraph:
    """Return the graph that a run's documents describe, omitting missing parts. Pure.

    Args:
        built: returns the digest of data that the run built, given its name.
        measured: returns the last values of a task's evaluation metrics, given its name.
        evaluated: returns all values of the metrics of a task that evaluates checkpoints, given its name.
    """
    draft = _Draft()
    pins = _mapping(plan.get("pins")) or record
    _add_code(draft, _mapping(pins.get("code")))
    _add_environment(draft, _mapping(pins.get("environment")), _mapping(record.get("environment")))
    _add_image(draft, _mapping(pins.get("image")), _mapping(record.get("image")))
    _add_data(draft, pins, _mapping(_mapping(plan.get("experiment")).get("data")), built)
    _add_parameters(draft, _mapping(_mapping(plan.get("experiment")).get("params")))
    _add_run(draft, run, plan, facts)
    planned = {str(_mapping(task).get("name")): _mapping(task) for task in _list(plan.get("tasks"))}
    for name in [*planned, *(name for name in facts.tasks if name not in planned)]:
        _add_task(draft, run, name, planned.get(name, {}), facts)
        task = facts.tasks.get(name)
        if task is None or task.evaluates is None:
            _add_metrics(draft, name, measured(name))
    for name, task in facts.tasks.items():
        if task.evaluates is not None:
            _add_evaluations(draft, name, task, evaluated(name))
    order = list(NodeKind)
    nodes = sorted(draft.nodes.values(), key=lambda node: order.index(node.kind))
    return ProvenanceGraph(run=run, nodes=tuple(nodes), edges=tuple(draft.edges))


@dataclass(slots=True)
class _Draft:
    """Graph under construction."""

    nodes: dict[str, ProvenanceNode] = field(default_factory=dict)
    edges: list[ProvenanceEdge] = field(default_factory=list)

    def add(
        self, node_id: str, kind: NodeKind, title: str, digest: str = "", details: Iterable[str] = (), *before: str
    ) -> None:
        """Add a node, with edges from existing predecessors."""
        kept = tuple(detail for detail in details if detail)
        self.nodes[node_id] = ProvenanceNode(id=node_id, kind=kind, title=title, digest=digest, details=kept)
        for other in before:
            self.link(other, node_id)

    def link(self, before: str, after: str) -> None:
        edge = ProvenanceEdge(before, after)
        if before in self.nodes and after in self.nodes and edge not in self.edges:
            self.edges.append(edge)


def _add_code(draft: _Draft, pin: Mapping[str, object]) -> None:
    kind, commit, tree = _text(pin, "kind"), _text(pin, "commit"), _text(pin, "tree")
    if kind in ("", "none"):
        return
    titles = {
        "commit": f"commit {commit[:12]}",
        "snapshot": f"snapshot {tree[:12]}",
        "in-place": "in place, not pinned",
    }
    branch = f" ({_text(pin, 'branch')})" if _text(pin, "branch") else ""
    dirty = [str(name) for name in _list(pin.get("dirty_files"))]
    base = _text(pin, "base") or (commit if kind == "in-place" else "")
    draft.add(
        "code",
        NodeKind.CODE,
        titles.get(kind, kind) + branch,
        f"tree:{tree}" if tree else "",
        (
            _text(pin, "remote"),
            f"folder {_text(pin, 'subdir')}" if _text(pin, "subdir") else "",
            f"on commit {base[:12]}" if base else "",
            f"differs in {', '.join(dirty[:4])}{', ...' if len(dirty) > 4 else ''}" if dirty else "",
        ),
    )


def _add_environment(draft: _Draft, pin: Mapping[str, object], record: Mapping[str, object]) -> None:
    kind = _text(pin, "kind")
    if kind in ("", "none"):
        return
    packages = _list(record.get("packages")) or _list(pin.get("packages"))
    python = _text(pin, "python_version")
    title = _text(pin, "lock_file") if kind == "uv" else _text(pin, "interpreter")
    draft.add(
        "environment",
        NodeKind.ENVIRONMENT,
        title or kind,
        f"sha256:{_text(pin, 'lock_sha256')}" if _text(pin, "lock_sha256") else "",
        (f"Python {python}" if python else "", _count(len(packages), "package"), _text(pin, "platform")),
        "code",
    )


def _add_image(draft: _Draft, pin: Mapping[str, object], record: Mapping[str, object]) -> None:
    kind = _text(pin, "kind")
    if kind in ("", "none"):
        return
    bases = _mapping(pin.get("bases"))
    for name, digest in bases.items():
        draft.add(f"base.{name}", NodeKind.BASE, str(name), str(digest))
    packages = _list(record.get("packages"))
    built = _text(record, "registry_digest") or _text(record, "image_id")
    key = _text(pin, "key")
    draft.add(
        "image",
        NodeKind.IMAGE,
        _text(pin, "name") or _text(pin, "dockerfile"),
        _text(pin, "digest") or built or (f"key:{key}" if key else ""),
        (
            f"{_text(pin, 'dockerfile')} sha256:{_text(pin, 'dockerfile_sha256')[:12]}" if kind == "built" else "",
            f"key {key[:12]}" if built and key else "",
            _text(pin, "platform"),
            _count(len(packages), "package") if packages else "",
        ),
        *(f"base.{name}" for name in bases),
        *(["code"] if kind == "built" or pin.get("has_own_code") is True else []),
    )


def _add_data(
    draft: _Draft, pins: Mapping[str, object], declared: Mapping[str, object], built: Callable[[str], str]
) -> None:
    """Add sources, the data made from them, and what was built from that data."""
    found = _by_name(pins.get("data"))
    for name, pin in found.items():
        source, digest = _text(pin, "source"), _text(pin, "digest")
        size, num_files = pin.get("size_bytes"), pin.get("num_files")
        details = [_count(num_files, "file") if isinstance(num_files, int) else ""]
        details.append(f"{size:,} bytes" if isinstance(size, int) else "")
        if source:
            draft.add(f"source.{name}", NodeKind.SOURCE, source)
        draft.add(f"data.{name}", NodeKind.DATA, name, f"sha256:{digest}" if digest else "", details, f"source.{name}")
    builds = _by_name(pins.get("builds"))
    for name, pin in builds.items():
        key = _text(pin, "key")
        draft.add(f"build.{name}", NodeKind.BUILD, f"build of {name}", f"key:{key}" if key else "", (), "code")
        if f"data.{name}" not in draft.nodes:
            draft.add(f"data.{name}", NodeKind.DATA, name, _prefixed("sha256:", _text(pin, "digest") or built(name)))
        draft.link(f"build.{name}", f"data.{name}")
        draft.link("environment" if "environment" in draft.nodes else "image", f"build.{name}")
    for name in builds:
        for other in _named_in(_mapping(declared.get(name)), {*found, *builds} - {name}):
            draft.link(f"data.{other}", f"build.{name}")


def _named_in(entry: Mapping[str, object], names: Iterable[str]) -> Iterator[str]:
    """Yield the names of data that a built entry refers to in `from` or in its command."""
    text = json.dumps(entry.get("build"))
    for name in sorted(names):
        if entry.get("from") == name or f"${{data.{name}}}" in text:
            yield name


def _add_parameters(draft: _Draft, params: Mapping[str, object]) -> None:
    if not params:
        return
    shown = ", ".join(f"{name}={_brief(value)}" for name, value in params.items())
    draft.add("parameters", NodeKind.PARAMETERS, _cut(shown, 60), f"sha256:{_digest(params)}")


def _add_run(draft: _Draft, run: str, plan: Mapping[str, object], facts: RunFacts) -> None:
    site = _mapping(plan.get("site"))
    place, backend = _text(site, "name"), _text(site, "backend")
    where = f"on {place}" + (f" ({backend})" if backend != place else "") if place else ""
    plan_hash = facts.plan_hash or _text(plan, "plan_hash")
    overrides = " ".join(str(each) for each in _list(plan.get("overrides")))
    draft.add(
        "run",
        NodeKind.RUN,
        run,
        _prefixed("plan:", plan_hash),
        (str(facts.state) if facts.tasks else "", where, facts.why, _cut(overrides, 60)),
        *("code", "image", "environment", "parameters"),
        *(node.id for node in list(draft.nodes.values()) if node.kind is NodeKind.DATA),
    )


def _add_task(draft: _Draft, run: str, name: str, planned: Mapping[str, object], facts: RunFacts) -> None:
    task = facts.tasks.get(name)
    argv = [str(word) for word in _list(planned.get("argv"))]
    nodes, gpus = (_mapping(planned.get("shape")).get(key) for key in ("nodes", "gpus"))
    shape = _count(nodes, "replica") if isinstance(nodes, int) else ""
    shape += f" with {_count(gpus, 'GPU')} each" if isinstance(gpus, int) and gpus else ""
    command = _cut(" ".join(argv[2:] if planned.get("is_shell") is True else argv), 60)
    before = [str(each) for each in _list(_mapping(planned.get("settings")).get("after"))] or list(
        task.after if task else ()
    )
    digest = f"command:{_digest(argv)}" if argv else ""
    draft.add(f"task.{name}", NodeKind.TASK, name, digest, (command, shape), "run")
    for other in before:
        draft.link(f"output.{other}" if f"output.{other}" in draft.nodes else f"task.{other}", f"task.{name}")
    attempts = _add_attempts(draft, task, name) if task is not None else [f"task.{name}"]
    if name in facts.outputs:
        _, num_files, num_bytes, content = facts.outputs[name]
        details = (_count(num_files, "file"), f"{num_bytes:,} bytes")
        draft.add(f"output.{name}", NodeKind.OUTPUT, f"output of {name}", f"sha256:{content}", details, *attempts)


def _add_metrics(draft: _Draft, task: str, values: Mapping[str, MetricPoint]) -> None:
    """Add the evaluation metrics of a task, made from its output or, without one, from the task."""
    before = f"output.{task}" if f"output.{task}" in draft.nodes else f"task.{task}"
    for name, point in values.items():
        details = (f"{point.value:.6g}", f"at step {point.step}" if point.step >= 0 else "", f"reported by {task}")
        draft.add(f"metric.{task}.{name}", NodeKind.METRIC, name, "", details, before)


def _add_evaluations(draft: _Draft, name: str, task: TaskFacts, values: Mapping[str, Sequence[MetricPoint]]) -> None:
    """Add each evaluated checkpoint with its digest, made by its task, and the values that were measured of it."""
    assert task.evaluates is not None  # checked by the caller
    trained = task.evaluates.of
    makers = [node for node in draft.nodes if node.startswith(f"attempt.{trained}.")] or [f"task.{trained}"]
    for number in sorted(task.attempts):
        attempt = task.attempts[number]
        if not attempt.evaluates.path or attempt.end is None or attempt.end.cause != "ok":
            continue
        step, path = attempt.evaluates
        checkpoint = f"checkpoint.{trained}.{path}"
        title = f"{trained}: step {step}" if step >= 0 else f"{trained}: {path}"
        draft.add(
            checkpoint, NodeKind.CHECKPOINT, title, _prefixed("sha256:", attempt.evaluated_digest), (path,), makers[-1]
        )
        for metric, points in values.items():
            for point in points:
                if point.step == step:
                    details = (f"{point.value:.6g}", f"at step {step}", f"measured by {name}, attempt {number}")
                    draft.add(f"metric.{name}.{metric}.{step}", NodeKind.METRIC, metric, "", details, checkpoint)
                    draft.link(f"attempt.{name}.{number}", f"metric.{name}.{metric}.{step}")


def _add_attempts(draft: _Draft, task: TaskFacts, name: str) -> list[str]:
    """Add a task's attempts in order; return the id of the last one, which wrote the output."""
    numbers, last = sorted(task.attempts), f"task.{name}"
    if len(numbers) > _MAX_ATTEMPTS:
        earlier, numbers = numbers[: 1 - _MAX_ATTEMPTS], numbers[1 - _MAX_ATTEMPTS :]
        causes = sorted({end.cause for number in earlier if (end := task.attempts[number].end) is not None})
        title = f"{name}: attempts {earlier[0]} to {earlier[-1]}"
        draft.add(f"attempt.{name}.earlier", NodeKind.ATTEMPT, title, "", (", ".join(causes),), last)
        last = f"attempt.{name}.earlier"
    for number in numbers:
        details = _attempt_details(task.attempts[number])
        draft.add(f"attempt.{name}.{number}", NodeKind.ATTEMPT, f"{name}: attempt {number}", "", details, last)
        last = f"attempt.{name}.{number}"
    return [last]


def _attempt_details(attempt: Attempt) -> tuple[str, ...]:
    hosts = sorted({replica.host for replica in attempt.replicas.values() if replica.host})
    where = f"on {', '.join(hosts[:3])}" + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "") if hosts else ""
    return where, str(attempt.end.cause) if attempt.end is not None else "not ended"


def _by_name(pins: object) -> Mapping[str, Mapping[str, object]]:
    if isinstance(pins, list):
        return {str(_mapping(pin).get("name")): _mapping(pin) for pin in pins}
    return {str(name): _mapping(pin) for name, pin in _mapping(pins).items()}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _text(values: Mapping[str, object], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


def _prefixed(prefix: str, text: str) -> str:
    return prefix + text if text else ""


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _brief(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
