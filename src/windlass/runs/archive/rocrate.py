"""RO-Crate 1.1 metadata for an archive, following the Process Run Crate profile.

Sources: RO-Crate Metadata Specification 1.1 (https://w3id.org/ro/crate/1.1), "Root data entity", "Data entities",
"Provenance"; Process Run Crate 0.5 (https://w3id.org/ro/wfrun/process/0.5). The metadata
has no licence, because the author of the run has not stated one.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from windlass.core.clock import format_time
from windlass.core.version import VERSION
from windlass.record.state import RunFacts, State, TaskFacts
from windlass.runs.archive.contents import ROCRATE, Item

__all__ = ["CRATE", "PROFILE", "metadata"]

CRATE = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_RUN_TERMS = "https://w3id.org/ro/terms/workflow-run#"
_CONTEXT = [
    f"{CRATE}/context",
    {
        "sha256": "http://schema.org/sha256",
        **{term: f"{_RUN_TERMS}{term}" for term in ("ContainerImage", "containerImage", "registry", "tag")},
    },
]
_PLAN = "run/plan.json"
_ENGINE = "#windlass"
_STATUS = {
    State.SUCCEEDED: "http://schema.org/CompletedActionStatus",
    State.FAILED: "http://schema.org/FailedActionStatus",
    State.STOPPED: "http://schema.org/FailedActionStatus",
}
_FORMATS = {".json": "application/json", ".log": "text/plain", ".txt": "text/plain", ".csv": "text/csv"}
_FORMATS |= {".yaml": "application/yaml", ".py": "text/x-python", ".png": "image/png", ".md": "text/markdown"}

Entity = dict[str, Any]


def metadata(
    facts: RunFacts, plan: Mapping[str, Any], provenance: Mapping[str, Any], items: Iterable[Item], author: str = ""
) -> bytes:
    """Return the content of `ro-crate-metadata.json`, which is deterministic.

    Args:
        plan, provenance: the run's documents; `provenance` may be empty.
        author: author of the code in git; omitted if empty.
    """
    files = [_file(item) for item in items if not item.link]
    software = list(_software(provenance))
    data = list(_data(plan, [each["@id"] for each in files]))
    code = list(_code(plan, author))
    image = list(_image(provenance))
    actions = list(_actions(facts, plan, [each["@id"] for each in files], [each["@id"] for each in (*data, *code)]))
    for each in actions if image else ():
        if each["@type"] == "CreateAction":
            each["containerImage"] = {"@id": image[0]["@id"]}
    instruments = [each for each in actions if each["@type"] == "SoftwareApplication"]
    for each in instruments:
        each.update(_refs("softwareRequirements", [entity["@id"] for entity in software]))
    run = _run(facts, [each["@id"] for each in (*data, *code)], [each["@id"] for each in files], author)
    for each in files:
        if each["@id"] == _PLAN:
            each.update(_workflow(facts, [entity["@id"] for entity in instruments]))
    root = _root(facts, files, [each["@id"] for each in (run, *actions) if each["@type"] == "CreateAction"])
    known = [*_head(facts), root, *files, run, *actions, *data, *code, *image, *software, *_person(author)]
    text = json.dumps({"@context": _CONTEXT, "@graph": known}, indent=1, sort_keys=True, ensure_ascii=True)
    return text.encode("ascii") + b"\n"


def _head(facts: RunFacts) -> Iterator[Entity]:
    yield {
        "@id": ROCRATE,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": CRATE},
    }
    yield {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
    yield {
        "@id": _ENGINE,
        "@type": "SoftwareApplication",
        "name": "windlass",
        "softwareVersion": VERSION,
        "description": f"planned and ran {facts.run}",
    }
    yield {"@id": "#plan-language", "@type": "ComputerLanguage", "name": "windlass plan", "version": "1"}


def _root(facts: RunFacts, files: list[Entity], actions: list[str]) -> Entity:
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Run {facts.run}",
        "identifier": facts.run,
        "description": facts.why or f"A run of the experiment {facts.name} that {facts.state}.",
        "datePublished": format_time(facts.ended_at),
        "conformsTo": {"@id": PROFILE},
        "mainEntity": {"@id": _PLAN},
        **_refs("hasPart", [each["@id"] for each in files]),
        **_refs("mentions", [*actions, _ENGINE]),
    }


def _refs(name: str, ids: Iterable[str]) -> Entity:
    """Return a property that refers to entities; empty if there are none."""
    found = [{"@id": each} for each in ids]
    return {name: found} if found else {}


def _file(item: Item) -> Entity:
    name = item.path.rpartition("/")[2]
    kind = _FORMATS.get("." + name.rpartition(".")[2])
    return {
        "@id": _id(item.path),
        "@type": "File",
        "name": name,
        "contentSize": str(item.size),
        "sha256": item.sha256,
        "dateModified": format_time(item.mtime),
        **({"encodingFormat": kind} if kind else {}),
    }


def _id(path: str) -> str:
    """Convert a path to a relative reference (RFC 3986)."""
    return quote(path.encode("utf-8", "surrogateescape"), safe="/-._~")


def _workflow(facts: RunFacts, steps: list[str]) -> Entity:
    return {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
        "name": f"plan of {facts.name}",
        "programmingLanguage": {"@id": "#plan-language"},
        "version": facts.plan_hash,
        **_refs("hasPart", steps),
    }


def _run(facts: RunFacts, used: list[str], files: list[str], author: str) -> Entity:
    return {
        "@id": f"#run-{facts.run}",
        "@type": "CreateAction",
        "name": f"Run {facts.run}",
        "instrument": {"@id": _PLAN},
        "startTime": format_time(facts.created_at),
        "endTime": format_time(facts.ended_at),
        **_status(facts.state, facts.cause),
        **_refs("object", used),
        **_refs("result", [each for each in files if each.startswith("run/out/")]),
        **({"agent": {"@id": "#author"}} if author else {}),
    }


def _status(state: State, cause: str) -> Entity:
    status = {"actionStatus": {"@id": _STATUS.get(state, _STATUS[State.FAILED])}}
    return status if state is State.SUCCEEDED else {**status, "error": cause or str(state)}


def _actions(facts: RunFacts, plan: Mapping[str, Any], files: list[str], used: list[str]) -> Iterator[Entity]:
    """Yield entities for each task's command and execution."""
    stated = {str(task.get("name")): task for task in plan.get("tasks", ()) if isinstance(task, dict)}
    commit = _commit(plan)
    for name, task in sorted(facts.tasks.items()):
        argv = [str(word) for word in stated.get(name, {}).get("argv", ())]
        yield {
            "@id": f"#command-{_id(name)}",
            "@type": "SoftwareApplication",
            "name": name,
            "description": shlex.join(argv),
            **({"softwareVersion": commit} if commit else {}),
        }
        upstream = [each for other in task.after for each in files if each.startswith(f"run/out/{_id(other)}/")]
        results = [each for each in files if each.startswith(f"run/out/{_id(name)}/")]
        yield {
            "@id": f"#task-{_id(name)}",
            "@type": "CreateAction",
            "name": f"task {name} of {facts.run}",
            "instrument": {"@id": f"#command-{_id(name)}"},
            **_times(task),
            **_status(task.state, task.end[1] if task.end else ""),
            **_refs("object", [*used, *upstream]),
            **_refs("result", results),
        }


def _times(task: TaskFacts) -> Entity:
    started = min((each.started_at for each in task.attempts.values() if each.started_at), default=0.0)
    times = {"startTime": format_time(started)} if started else {}
    return {**times, **({"endTime": format_time(task.end[3])} if task.end else {})}


def _commit(plan: Mapping[str, Any]) -> str:
    code = plan.get("pins", {}).get("code", {})
    return str(code.get("commit", ""))


def _code(plan: Mapping[str, Any], author: str) -> Iterator[Entity]:
    code = plan.get("pins", {}).get("code", {})
    if not code.get("commit"):
        return
    yield {
        "@id": "#code",
        "@type": "SoftwareSourceCode",
        "name": f"code of {plan.get('name', '')}",
        "version": code["commit"],
        **({"codeRepository": code["remote"]} if code.get("remote") else {}),
        **({"author": {"@id": "#author"}} if author else {}),
    }


def _person(author: str) -> Iterator[Entity]:
    if author:
        yield {"@id": "#author", "@type": "Person", "name": author}


def _data(plan: Mapping[str, Any], files: list[str]) -> Iterator[Entity]:
    for name, pin in sorted(plan.get("pins", {}).get("data", {}).items()):
        parts = [each for each in files if each.startswith(f"data/{_id(name)}/")]
        yield {
            "@id": f"#data-{_id(name)}",
            "@type": "Dataset",
            "name": name,
            "description": str(pin.get("source", "")),
            "identifier": f"sha256:{pin.get('digest', '')}",
            "size": str(pin.get("size_bytes", "")),
            **_refs("hasPart", parts),
        }


def _has_image(provenance: Mapping[str, Any]) -> bool:
    return bool(provenance.get("image", {}).get("kind", "none") != "none")


def _image(provenance: Mapping[str, Any]) -> Iterator[Entity]:
    """Yield an entity for the tasks' image in the profile's terms: registry, name, tag and digest, if known."""
    if not _has_image(provenance):
        return
    image = provenance["image"]
    full = str(image.get("registry") or image.get("name", ""))
    host, _, below = full.partition("/")
    registry = host if below and ({".", ":"} & set(host) or host == "localhost") else ""
    name, _, tag = (below if registry else full).partition(":")
    digest = str(image.get("registry_digest") or image.get("digest") or image.get("image_id") or "")
    yield {
        "@id": "#image",
        "@type": "ContainerImage",
        "additionalType": {"@id": f"{_RUN_TERMS}DockerImage"},
        "name": name,
        **({"registry": registry} if registry else {}),
        **({"tag": tag} if tag else {}),
        **({"sha256": digest.removeprefix("sha256:")} if digest else {}),
    }


def _software(provenance: Mapping[str, Any]) -> Iterator[Entity]:
    environment, host = provenance.get("environment", {}), provenance.get("host", {})
    image = provenance.get("image", {})
    if host.get("python_version") and not _has_image(provenance):
        yield _application("python", str(environment.get("python_version") or host["python_version"]))
    if host.get("os"):
        yield _application(str(host["os"]), str(host.get("kernel", "")), kind="OperatingSystem")
    for package in (*environment.get("packages", ()), *image.get("packages", ())):
        name, _, version = str(package).partition("==" if "==" in str(package) else "=")
        yield _application(name, version, kind="package")


def _application(name: str, version: str, kind: str = "interpreter") -> Entity:
    found = {"@id": f"#{kind.lower()}-{_id(name)}", "@type": "SoftwareApplication", "name": name}
    return {**found, "softwareVersion": version} if version else found
