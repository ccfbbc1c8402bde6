from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs.journals import RunScript, home_in
from windlass.runs.archive.contents import Item
from windlass.runs.archive.rocrate import CRATE, PROFILE, metadata

PLAN = {
    "name": "exp",
    "pins": {
        "code": {"kind": "commit", "commit": "c0ffee", "remote": "https://example.org/code.git"},
        "data": {"text": {"source": "file:d.txt", "digest": "ab", "size_bytes": 3}},
    },
    "tasks": [{"name": "train", "argv": ["python", "train.py", "a b"]}],
}
PROVENANCE = {
    "environment": {"packages": ["numpy==2.1.0", "torch==2.9.0"]},
    "host": {"python_version": "3.11.7", "os": "Debian GNU/Linux 12", "kernel": "Linux 6.1"},
}
ITEMS = [
    Item(path="run/plan.json", size=10, sha256="p" * 64),
    Item(path="run/out/train/result 1.json", size=2, sha256="r" * 64),
    Item(path="run/out/train/latest", size=0, sha256="l" * 64, link="result 1.json"),
    Item(path="data/text/d.txt", size=3, sha256="d" * 64),
]


def crate(tmp_path: Path, verdict: str = "succeeded", author: str = "", **more: Any) -> dict[str, Any]:
    cause = "ok" if verdict == "succeeded" else "user-error"
    run = RunScript(home_in(tmp_path), "exp-00000001").submit().start().end(verdict, cause).close()
    found = json.loads(metadata(run.facts(), more.get("plan", PLAN), more.get("provenance", PROVENANCE), ITEMS, author))
    check(found)
    return {entity["@id"]: entity for entity in found["@graph"]}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if set(value) == {"@id"}:
            yield value["@id"]
        else:
            for inner in value.values():
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def check(found: dict[str, Any]) -> None:
    """What RO-Crate 1.1 and the profile ask for, as far as a graph alone can show it."""
    graph = found["@graph"]
    ids = [entity["@id"] for entity in graph]
    assert len(set(ids)) == len(ids)
    assert found["@context"][0] == f"{CRATE}/context"
    assert all(entity.get("@type") for entity in graph)
    assert all(" " not in each and not each.startswith("/") for each in ids)
    for entity in graph:
        for ref in references(list(entity.values())):
            assert ref in ids or ref.startswith(("https://w3id.org/", "http://schema.org/")), ref
    entities = {entity["@id"]: entity for entity in graph}
    head, root = entities["ro-crate-metadata.json"], entities["./"]
    assert head["conformsTo"] == {"@id": CRATE}
    assert head["about"] == {"@id": "./"}
    assert root["@type"] == "Dataset"
    assert {"name", "description", "datePublished"} <= set(root)
    assert root["conformsTo"] == {"@id": PROFILE}
    parts = set(references(root["hasPart"]))
    files = {each for each, entity in entities.items() if "File" in entity["@type"]}
    assert files <= parts
    actions = {each for each, entity in entities.items() if entity["@type"] == "CreateAction"}
    assert actions <= set(references(root["mentions"]))
    for each in actions:
        kind = entities[entities[each]["instrument"]["@id"]]["@type"]
        assert kind == "SoftwareApplication" or "ComputationalWorkflow" in kind


def test_files_have_sizes_and_digests_and_links_are_no_files(tmp_path: Path) -> None:
    found = crate(tmp_path)
    assert found["run/out/train/result%201.json"]["sha256"] == "r" * 64
    assert found["run/out/train/result%201.json"]["contentSize"] == "2"
    assert found["run/out/train/result%201.json"]["encodingFormat"] == "application/json"
    assert "run/out/train/latest" not in found


def test_a_task_made_its_outputs_from_code_and_data(tmp_path: Path) -> None:
    found = crate(tmp_path)
    action = found["#task-train"]
    assert action["actionStatus"] == {"@id": "http://schema.org/CompletedActionStatus"}
    assert action["result"] == [{"@id": "run/out/train/result%201.json"}]
    assert action["object"] == [{"@id": "#data-text"}, {"@id": "#code"}]
    assert action["startTime"].endswith("Z")
    assert found["#command-train"]["description"] == "python train.py 'a b'"
    assert found["#command-train"]["softwareVersion"] == "c0ffee"
    assert {"@id": "#package-numpy"} in found["#command-train"]["softwareRequirements"]
    assert found["#package-numpy"]["softwareVersion"] == "2.1.0"
    assert found["#data-text"]["identifier"] == "sha256:ab"
    assert found["#data-text"]["hasPart"] == [{"@id": "data/text/d.txt"}]
    assert found["#code"]["codeRepository"] == "https://example.org/code.git"


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (
            {"kind": "named", "name": "ghcr.io/lab/x:2", "digest": "sha256:ab"},
            {"registry": "ghcr.io", "name": "lab/x", "tag": "2", "sha256": "ab"},
        ),
        (
            {"kind": "built", "name": "windlass/p-main", "image_id": "sha256:cd"},
            {"name": "windlass/p-main", "sha256": "cd"},
        ),
        (
            {
                "kind": "built",
                "name": "windlass/p-main",
                "registry": "127.0.0.1:5000/p",
                "registry_digest": "sha256:ef",
            },
            {"registry": "127.0.0.1:5000", "name": "p", "sha256": "ef"},
        ),
    ],
)
def test_the_image_and_what_is_in_it_are_named(tmp_path: Path, image: dict[str, Any], told: dict[str, str]) -> None:
    recorded = {**image, "packages": ["numpy==2.1.0", "deb:bash=5.2.15"]}
    found = crate(tmp_path, provenance={**PROVENANCE, "environment": {}, "image": recorded})
    assert found["#task-train"]["containerImage"] == {"@id": "#image"}
    assert {key: value for key, value in found["#image"].items() if not key.startswith("@")} == {
        "additionalType": {"@id": "https://w3id.org/ro/terms/workflow-run#DockerImage"},
        **told,
    }
    assert found["#package-deb%3Abash"]["softwareVersion"] == "5.2.15"
    assert "#interpreter-python" not in found


def test_a_run_without_an_image_names_none(tmp_path: Path) -> None:
    found = crate(tmp_path, provenance={**PROVENANCE, "image": {"kind": "none"}})
    assert "#image" not in found
    assert "containerImage" not in found["#task-train"]


def test_the_plan_is_the_workflow_of_the_run(tmp_path: Path) -> None:
    found = crate(tmp_path)
    assert found["./"]["mainEntity"] == {"@id": "run/plan.json"}
    assert "ComputationalWorkflow" in found["run/plan.json"]["@type"]
    assert found["run/plan.json"]["hasPart"] == [{"@id": "#command-train"}]
    assert found["#run-exp-00000001"]["instrument"] == {"@id": "run/plan.json"}


def test_a_failure_is_said(tmp_path: Path) -> None:
    action = crate(tmp_path, "failed")["#task-train"]
    assert action["actionStatus"] == {"@id": "http://schema.org/FailedActionStatus"}
    assert action["error"] == "user-error"


def test_nobody_and_no_licence_is_made_up(tmp_path: Path) -> None:
    found = crate(tmp_path)
    assert "license" not in found["./"]
    assert not [each for each in found.values() if each["@type"] == "Person"]
    assert "agent" not in found["#run-exp-00000001"]


def test_the_author_that_git_names_is_named(tmp_path: Path) -> None:
    found = crate(tmp_path, author="A. Person")
    assert found["#author"] == {"@id": "#author", "@type": "Person", "name": "A. Person"}
    assert found["#code"]["author"] == found["#run-exp-00000001"]["agent"] == {"@id": "#author"}


@pytest.mark.parametrize("plan", [{}, {"pins": {"code": {"kind": "none"}}}])
def test_a_run_of_little_gives_a_crate_too(tmp_path: Path, plan: dict[str, Any]) -> None:
    found = crate(tmp_path, plan=plan, provenance={})
    assert "#code" not in found
