"""Rendering of a windlass job as a Beaker experiment: one task with a replica for each node."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from windlass.core.merge_patch import merge
from windlass.supervise.job import BeakerRequest, JobDocument, TaskShape
from windlass.supervise.slurm.job_listing import mark_of

__all__ = [
    "BUNDLE_PATH",
    "SETUP_FAILED_CODE",
    "SETUP_NOTE",
    "beaker_name",
    "command_of",
    "experiment_name",
    "experiment_spec",
    "fresh_name",
    "work_of",
]

_MAX_NAME = 120
_NS = 1_000_000_000
_LONGEST_START_S = 48 * 3600.0
"""Largest `synchronizedStartTimeout` that Beaker accepts."""


def experiment_name(document: JobDocument) -> str:
    """Return the name for a job's experiment, which is deterministic and unique."""
    mark = mark_of(document.token)[:12]
    told = f"{document.run}-{document.task}-{document.job}"
    return f"{beaker_name(told, _MAX_NAME - len(mark) - 1)}-{mark}"


def experiment_spec(document: JobDocument, folder: PurePath, archive: PurePath) -> dict[str, Any]:
    """Return the spec to send, including the user's own keys. Pure.

    Args:
        folder: the job's folder as the job sees it.
        archive: the zipapp as the job sees it.
    """
    ask = document.beaker
    spec: dict[str, Any] = {
        "version": "v2",
        "description": ask.description or f"windlass: {document.run}, {document.task}, job {document.job}",
        **({"budget": ask.budget} if ask.budget else {}),
        **({"groups": list(ask.groups)} if ask.groups else {}),
        "retry": {"allowedTaskRetries": 0},
        "tasks": [merge(_task(document, folder, archive), ask.task)],
    }
    merged = merge(spec, ask.experiment)
    assert isinstance(merged, dict)
    return merged


def _task(document: JobDocument, folder: PurePath, archive: PurePath) -> dict[str, Any]:
    ask, kind = document.beaker, document.beaker.image.partition(":")
    task: dict[str, Any] = {
        "name": document.task,
        "image": {kind[0]: kind[2]},
        "command": command_of(document, folder, archive),
        "envVars": [{"name": name, "secret": secret} for name, secret in sorted(ask.secrets.items())],
        "datasets": [*map(dict, ask.datasets), *_bundle(ask)],
        "result": {"path": ask.results},
        "resources": _resources(document.shape),
        "context": _context(document),
        "constraints": _constraints(ask),
        **_gang(document),
    }
    if document.settings.per_job_s:
        task["timeout"] = math.ceil(document.settings.per_job_s) * _NS
    return {key: value for key, value in task.items() if value not in ([], {})}


def _bundle(ask: BeakerRequest) -> list[dict[str, Any]]:
    return [{"mountPath": BUNDLE_PATH, "source": {"beaker": ask.bundle}}] if ask.bundle else []


def _resources(shape: TaskShape) -> dict[str, Any]:
    found = {
        "gpuCount": shape.gpus,
        "cpuCount": shape.cpus,
        "memory": _size(shape.memory_bytes),
        "sharedMemory": _size(shape.shared_memory_bytes),
    }
    return {key: value for key, value in found.items() if value}


def _size(num_bytes: int) -> str:
    """Format a size for Beaker, rounded up to a MiB."""
    if not num_bytes:
        return ""
    if num_bytes % (1 << 30) == 0:
        return f"{num_bytes >> 30}GiB"
    return f"{math.ceil(num_bytes / (1 << 20))}MiB"


def _context(document: JobDocument) -> dict[str, Any]:
    """Return the keys for priority and preemption, without the old key `preemptible`, which Beaker rejects beside them.

    A task that must not be preempted is protected for as long as it may run; if that is not known, Beaker's default
    applies. A task that may start only once is not requeued, which its supervisor would only reject.
    """
    ask = document.beaker
    found: dict[str, Any] = {"priority": ask.priority, "autoResume": document.chain.num_links != 1}
    protected_s = 0.0 if ask.is_preemptible else document.settings.per_job_s or document.settings.time_s
    return found if protected_s is None else {**found, "minRuntime": math.ceil(protected_s) * _NS}


def _constraints(ask: BeakerRequest) -> dict[str, Any]:
    found = {"cluster": list(ask.clusters), "hostname": list(ask.hostnames)}
    return {key: value for key, value in found.items() if value}


def _gang(document: JobDocument) -> dict[str, Any]:
    """Return the keys that make Beaker treat the replicas as one gang."""
    if document.num_replicas == 1:
        return {}
    start_s = min(_LONGEST_START_S, max(1.0, document.settings.ready_timeout_s))
    return {
        "replicas": document.num_replicas,
        "leaderSelection": True,
        "hostNetworking": True,
        "propagateFailure": True,
        "propagatePreemption": True,
        "synchronizedStartTimeout": math.ceil(start_s) * _NS,
    }


SETUP_FAILED_CODE = 76
"""Exit code of the script that searches for a Python if it finds none."""

SETUP_NOTE = "setup-failed.txt"
"""File beside job.json that says why no supervisor could run."""

BUNDLE_PATH = "/windlass-bundle"
"""Path at which a job sees the dataset with its folder."""

_BOOTSTRAP = rf"""
archive=$1 folder=$2 wanted=$3 results=$4 bundle=$5
failed() {{
  printf 'windlass: %s\n' "$1" >&2
  for place in "$folder" "$results"; do
    [ -d "$place" ] && printf '%s\n' "$1" >"$place/{SETUP_NOTE}"
  done
  exit {SETUP_FAILED_CODE}
}}
is_new_enough='import sys; sys.exit(sys.version_info < (3, 9))'
python=
for candidate in "$wanted" python3 python /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python; do
  command -v "$candidate" >/dev/null 2>&1 || continue
  "$candidate" -I -S -c "$is_new_enough" >/dev/null 2>&1 && python=$candidate && break
done
[ -n "$python" ] || failed "the image has no Python 3.9 or newer on its PATH ($PATH), which the supervisor needs"
if [ -n "$bundle" ]; then
  exec "$python" -I -S "$bundle/windlass.pyz" beaker-bundle "$bundle" "$folder" "$results"
fi
[ -f "$folder/job.json" ] || failed "missing $folder: do this cluster's machines have the storage mounted?"
[ -f "$archive" ] || failed "missing $archive: do this cluster's machines have the storage mounted?"
exec "$python" -I -S "$archive" beaker "$folder"
"""


def command_of(document: JobDocument, folder: PurePath, archive: PurePath) -> list[str]:
    """Return the command of a Beaker task.

    Args:
        folder: the job's folder as the job sees it.
        archive: the zipapp as the job sees it.
    """
    ask = document.beaker
    bundle = BUNDLE_PATH if ask.bundle else ""
    words = [str(archive), str(folder), document.queue.python, ask.results, bundle]
    return ["/bin/sh", "-c", _BOOTSTRAP.strip(), "windlass", *words]


_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


def fresh_name(spec: Mapping[str, Any]) -> str:
    """Return a unique name, derived from its tasks' names, for an experiment without one."""
    tasks = [task for task in spec.get("tasks") or () if isinstance(task, Mapping)]
    told = str(tasks[0].get("name") or "experiment") if tasks else "experiment"
    return f"{beaker_name(told, 80)}-{secrets.token_hex(4)}"


def beaker_name(text: str, longest: int) -> str:
    """Convert a string to a valid Beaker name: letters, digits, `.`, `_` and `-`, no leading `-`."""
    return _NO_NAME.sub("-", text).lstrip("-")[:longest] or "x"


def work_of(spec: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a spec that define the work, without values that a server may format differently."""
    return [
        (
            str(task.get("name") or ""),
            [str(word) for word in task.get("command") or ()],
            [str(word) for word in task.get("arguments") or ()],
            sorted((str(one.get("name")), str(one.get("value") or "")) for one in task.get("envVars") or ()),
        )
        for task in spec.get("tasks") or ()
        if isinstance(task, Mapping)
    ]
