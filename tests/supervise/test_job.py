from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.core.errors import PreconditionError
from windlass.supervise import job as module
from windlass.supervise.job import (
    BeakerRequest,
    ChainConfig,
    JobDocument,
    JobPaths,
    JobSecret,
    Lease,
    ReplicaCommand,
    SiteSettings,
    TaskSettings,
    TaskShape,
)

JOB = JobDocument(
    run="r-1",
    task="train",
    job=2,
    token="t",
    command=ReplicaCommand(("python", "a.py"), {"A": "${rank}"}, cwd="/code", path=("/env/bin",)),
    paths=JobPaths("/runs/r-1", leases="/leases"),
    shape=TaskShape(nodes=3, gpus=2, cpus=1.5, memory_bytes=1 << 30),
    settings=TaskSettings(after=("prep",), secrets=(JobSecret("KEY", is_file=True),), time_s=60.0),
    chain=ChainConfig(submit=("sbatch", "${link}")),
    beaker=BeakerRequest(datasets=({"mountPath": "/weka", "source": {"weka": "main"}},), task={"timeout": None}),
)


def read(tmp_path: Path, **changes: Any) -> JobDocument:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**JOB.to_data(), **changes}))
    return JobDocument.read(path)


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read(tmp_path) == JOB


@pytest.mark.parametrize("schema", [1, 3, "2", None])
def test_a_document_of_another_version_is_refused(tmp_path: Path, schema: object) -> None:
    with pytest.raises(PreconditionError) as caught:
        read(tmp_path, schema=schema)
    assert caught.value.code == "other-version"
    assert caught.value.message == (
        f"{tmp_path}/job.json was made by another version of windlass: its format is `{schema}`, not `2`"
    )
    assert "windlass launch FILE" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"run": 1}, "expected str, not 1"),
        ({"colour": "red"}, "JobDocument has no field `colour`"),
        ({"command": {"argv": "python"}}, "expected a list, not 'python'"),
        ({"command": {}}, "missing 1 required positional argument: 'argv'"),
        ({"shape": {"nodes": "3"}}, "expected int, not '3'"),
        ({"shape": {"gpus": True}}, "expected int, not True"),
        ({"settings": {"time_s": "1h"}}, "expected float, not '1h'"),
        ({"site": {"fencing": []}}, "expected the fields of Fencing, not []"),
        ({"token": ["x" * 1000]}, "expected str, not ['" + "x" * 78),
    ],
)
def test_a_damaged_document_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(PreconditionError) as caught:
        read(tmp_path, **changes)
    assert caught.value.code == "plan-broken"
    assert caught.value.message.startswith(f"{tmp_path}/job.json is not a valid job description: ")
    assert caught.value.message.endswith(problem)


def test_a_file_without_an_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("[]")
    with pytest.raises(PreconditionError, match="is not a valid job description: not an object"):
        JobDocument.read(path)


def test_a_lease_is_for_all_replicas() -> None:
    assert JOB.lease == Lease("/leases", gpus=6, cpus=4.5, memory_bytes=3 << 30)
    assert dataclasses.replace(JOB, paths=JobPaths("/runs/r-1")).lease == Lease()


def test_replicas_are_on_one_machine_unless_they_listen_on_its_network() -> None:
    assert (JOB.num_replicas, JOB.is_on_one_machine) == (3, True)
    assert not dataclasses.replace(JOB, site=SiteSettings(host_address="")).is_on_one_machine


def field_types(cls: type[Any]) -> Iterator[str]:
    for field in dataclasses.fields(cls):
        yield str(field.type)
        inner = getattr(module, str(field.type), None)
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            yield from field_types(inner)


def test_python_39_can_evaluate_the_annotations() -> None:
    found = set(field_types(JobDocument))
    assert "float | None" in found
    assert not [text for text in found if "|" in text.removesuffix(" | None")]
