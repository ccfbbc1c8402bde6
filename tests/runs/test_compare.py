from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tests.runs.journals import RunScript, home_in
from windlass.core.errors import NotFoundError
from windlass.record import events
from windlass.runs.compare import diff, diff_documents
from windlass.runs.store import RunFolder

PLAN: dict[str, object] = {
    "plan_hash": "1",
    "experiment": {
        "name": "exp",
        "why": "x",
        "params": {"lr": 0.1, "layers": [1, 2]},
        "tasks": {"train": {"run": "python t.py", "nodes": 1}},
    },
    "pins": {
        "code": {"kind": "commit", "commit": "aaa", "ref": "refs/a"},
        "environment": {"kind": "uv", "lock_sha256": "l1", "interpreter": "/usr/bin/python", "key": "k1"},
        "data": {"prompts": {"digest": "d1"}},
    },
    "tasks": [{"name": "train", "argv": ["python t.py"]}],
}
PROVENANCE: dict[str, object] = {
    "run": "exp-aaaaaaaa",
    "environment": {"packages": ["numpy==1.0", "torch==2.13"]},
    "host": {"hostname": "h", "cpu_model": "c1", "python_version": "3.11.7", "collected_at": "now"},
}
DOCUMENTS: dict[str, object] = {"plan": PLAN, "provenance": PROVENANCE, "outputs": {"train": {"digest": "o1"}}}


def changed(path: str, value: object) -> dict[str, object]:
    documents = copy.deepcopy(DOCUMENTS)
    *parents, key = path.split("/")
    place: object = documents
    for parent in parents:
        assert isinstance(place, dict)
        place = place[parent]
    assert isinstance(place, dict)
    place[key] = value
    return documents


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("plan/pins/code/commit", "bbb", ["code code.commit: aaa -> bbb"]),
        ("plan/pins/environment/lock_sha256", "l2", ["environment environment.lock_sha256: l1 -> l2"]),
        (
            "provenance/environment/packages",
            ["numpy==1.1", "torch==2.13"],
            ["environment environment.packages.numpy: 1.0 -> 1.1"],
        ),
        ("provenance/host/python_version", "3.12.0", ["environment host.python_version: 3.11.7 -> 3.12.0"]),
        ("plan/pins/data/prompts/digest", "d2", ["data data.prompts.digest: d1 -> d2"]),
        ("plan/experiment/params/lr", 0.2, ["parameters params.lr: 0.1 -> 0.2"]),
        ("plan/experiment/params/new", 1, ["parameters params.new: None -> 1"]),
        ("plan/experiment/params/layers", [1, 3], ["parameters params.layers.1: 2 -> 3"]),
        ("plan/experiment/params/nodes", 4, ["parameters params.nodes: None -> 4"]),
        ("plan/experiment/tasks/train/nodes", 2, ["resources tasks.train.nodes: 1 -> 2"]),
        ("plan/experiment/tasks/train/run", "x", ["parameters tasks.train.run: python t.py -> x"]),
        ("provenance/host/cpu_model", "c2", ["hardware host.cpu_model: c1 -> c2"]),
        ("outputs/train/digest", "o2", ["outputs outputs.train.digest: o1 -> o2"]),
        ("plan/plan_hash", "2", []),
        ("plan/pins/code/ref", "refs/b", []),
        ("plan/experiment/why", "y", []),
        ("provenance/host/collected_at", "later", []),
        ("provenance/run", "exp-bbbbbbbb", []),
        ("plan/tasks", [], []),
    ],
)
def test_a_change_is_told_once_with_its_cause(path: str, value: object, told: list[str]) -> None:
    found = diff_documents(DOCUMENTS, changed(path, value))
    assert [f"{item.cause} {item.path}: {item.before} -> {item.after}" for item in found] == told


def test_differences_are_sorted_by_cause(tmp_path: Path) -> None:
    other = changed("plan/pins/code/commit", "bbb")
    other["outputs"] = {}
    assert [str(item.cause) for item in diff_documents(DOCUMENTS, other)] == ["code", "outputs"]


def test_two_runs_on_disk(tmp_path: Path) -> None:
    runs = []
    for number, lr in enumerate((0.1, 0.2)):
        script = RunScript(home_in(tmp_path), f"exp-{number:08d}")
        plan = copy.deepcopy(PLAN)
        plan["experiment"]["params"]["lr"] = lr  # type: ignore[index]
        (script.run.path / "plan.json").write_text(json.dumps(plan))
        script.job.append(events.OUTPUTS, task="train", attempt=1, num_files=1, bytes=5 + number, digest=f"d{number}")
        runs.append(script.close())
    told = [(str(item.cause), item.path) for item in diff(runs[0], runs[1])]
    assert told == [
        ("parameters", "params.lr"),
        ("outputs", "outputs.train.bytes"),
        ("outputs", "outputs.train.digest"),
    ]
    assert diff(runs[0], runs[0]) == []


def test_a_run_without_a_plan(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"has no plan\.json"):
        diff(RunFolder(tmp_path / "a-00000000"), RunFolder(tmp_path / "b-00000000"))
