from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tests.runs.journals import RunScript, home_in
from windlass.core.errors import NotFoundError
from windlass.record import events
from windlass.runs.compare.run_differences import Area, Difference, diff, diff_documents, difference_text
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
DOCUMENTS: dict[str, object] = {
    "plan": PLAN,
    "provenance": PROVENANCE,
    "outputs": {"train": {"digest": "o1"}},
    "hosts": {"train": ["n1"]},
}
IMAGE = {"kind": "named", "name": "base:1", "digest": "sha256:1"}


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
        ("plan/pins/code/commit", "aaa", []),
        ("plan/pins/code/branch", "other", []),
        ("plan/pins/environment/manifest_sha256", "m2", ["environment environment.manifest_sha256: None -> m2"]),
        ("plan/pins/image", IMAGE, ["environment image.kind: None -> named", "environment image.name: None -> base:1"]),
        ("plan/site", {"name": "docker", "backend": "docker"}, ["resources site.name: None -> docker"]),
        ("hosts", {"train": ["n2"]}, ["hardware hosts.train.0: n1 -> n2"]),
        ("hosts", {"other": ["n2"]}, []),
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


def both(path: str, before: object, after: object) -> list[str]:
    """What is told of two runs that differ in one place, which the sample does not have."""
    found = diff_documents(changed(path, before), changed(path, after))
    return [f"{item.path}: {item.before} -> {item.after}" for item in found]


def test_one_tree_is_one_code() -> None:
    commit, again = {"kind": "commit", "commit": "a", "tree": "t"}, {"kind": "snapshot", "commit": "b", "tree": "t"}
    assert both("plan/pins/code", commit, again) == []
    assert both("plan/pins/code", commit, {**again, "tree": "u"}) == [
        "code.commit: a -> b",
        "code.kind: commit -> snapshot",
    ]


def test_an_image_differs_by_what_it_was_made_from() -> None:
    image = {"kind": "built", "key": "k1", "dockerfile_sha256": "d1", "context_sha256": "c1", "bases": {"b": "1"}}
    assert both("plan/pins/image", image, {**image, "key": "k2", "bases": {"b": "2"}}) == ["image.bases.b: 1 -> 2"]
    assert both("plan/pins/image", image, {**image, "key": "k2", "dockerfile_sha256": "d2"}) == [
        "image.dockerfile_sha256: d1 -> d2"
    ]
    assert both("plan/pins/image", IMAGE, {**IMAGE, "digest": "sha256:2"}) == ["image.digest: sha256:1 -> sha256:2"]
    assert both("plan/pins/image", IMAGE, {**IMAGE, "name": "base:2", "digest": "sha256:2"}) == [
        "image.name: base:1 -> base:2"
    ]


def test_packages_stand_for_their_lock_file() -> None:
    documents = changed("plan/pins/environment/lock_sha256", "l2")
    documents["provenance"]["environment"]["packages"] = ["numpy==1.0", "jax==1", "torch==2.13"]  # type: ignore[index]
    assert [(item.path, item.after) for item in diff_documents(DOCUMENTS, documents)] == [
        ("environment.packages.jax", "1")
    ]


def test_data_is_told_by_its_digest_alone() -> None:
    pin = {"source": "file:a", "digest": "d1", "size_bytes": 1, "num_files": 1}
    assert both("plan/pins/data/x", pin, {**pin, "source": "file:b"}) == []
    assert both("plan/pins/data/x", pin, {**pin, "digest": "d2", "size_bytes": 2}) == ["data.x.digest: d1 -> d2"]


def prepared(key: str, build: str = "prep a", **more: object) -> dict[str, object]:
    """Documents of a run that built its data, with the file that the build wrote."""
    documents = copy.deepcopy(DOCUMENTS)
    plan = documents["plan"]
    assert isinstance(plan, dict)
    plan["experiment"]["data"] = {"tokens": {"from": "prompts", "build": build}}
    plan["pins"]["builds"] = {"tokens": {"name": "tokens", "key": key, "code": "c1", **more}}
    documents["outputs"] = {"data.tokens": {"digest": key, "files": {"built.json": key}}}
    return documents


def told(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return [f"{item.path}: {item.before} -> {item.after}" for item in diff_documents(before, after)]


def test_prepared_data_is_told_by_what_was_changed_and_not_by_its_key() -> None:
    assert told(prepared("k1"), prepared("k2", "prep b")) == ["builds.tokens.build: prep a -> prep b"]
    other = prepared("k2")
    other["plan"]["pins"]["data"] = {"prompts": {"digest": "d2"}}  # type: ignore[index]
    assert told(prepared("k1"), other) == ["data.prompts.digest: d1 -> d2"]


def test_a_key_that_nothing_else_explains_is_told() -> None:
    assert told(prepared("k1"), prepared("k2")) == ["builds.tokens.key: k1 -> k2"]
    in_place = prepared("k2", code="c2")
    in_place["plan"]["experiment"]["params"] = {"lr": 0.1, "layers": []}  # type: ignore[index]
    assert told(prepared("k1"), in_place) == ["builds.tokens.key: k1 -> k2", "params.layers: [1, 2] -> []"]


def test_data_that_only_one_of_two_runs_had_to_build_is_no_difference() -> None:
    found = prepared("k1")
    found["outputs"] = {}
    assert told(prepared("k1"), found) == []


def test_outputs_file_by_file() -> None:
    before = {"digest": "o1", "files": {"a": "1", "b": "1"}}
    assert both("outputs/train", before, {"digest": "o2", "files": {"a": "2", "c": "1"}}) == [
        "outputs.train.a: 1 -> 2", "outputs.train.b: 1 -> None", "outputs.train.c: None -> 1",
    ]  # fmt: skip
    assert both("outputs/train", before, {"digest": "o2"}) == ["outputs.train.digest: o1 -> o2"]


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (Difference(cause=Area.PARAMETERS, path="params.lr", before=1, after=None), "- params.lr: 1"),
        (
            Difference(cause=Area.DATA, path="data.x.digest", before="0" * 64, after="1" * 64),
            "~ x: 000000000000 -> 111111111111",
        ),
        (Difference(cause=Area.ENVIRONMENT, path="environment.packages.jax", before=None, after="1"), "+ jax: 1"),
    ],
)
def test_a_difference_in_one_line(difference: Difference, text: str) -> None:
    assert difference_text(difference) == text


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
        ("outputs", "outputs.train.digest"),
    ]
    assert diff(runs[0], runs[0]) == []


def test_a_run_without_a_plan(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"has no plan\.json"):
        diff(RunFolder(tmp_path / "a-00000000"), RunFolder(tmp_path / "b-00000000"))


def test_metrics_are_compared_by_their_newest_values() -> None:
    before = {"loss": {"value": 0.5, "step": 10}, "gone": {"value": 0, "step": 1}, "same": {"value": 1, "step": 10}}
    after = {"loss": {"value": 0.25, "step": 20}, "same": {"value": 1, "step": 10}}
    found = diff_documents({**DOCUMENTS, "metrics": before}, {**DOCUMENTS, "metrics": after})
    assert [(difference_text(each), each.details) for each in found] == [
        ("- gone: 0", ()),
        ("~ loss: 0.5 -> 0.25", ("newest step 10 -> 20",)),
    ]


def test_an_environment_is_told_in_the_words_of_the_file() -> None:
    before = {"plan": {"experiment": {"env": {"uv": "."}}, "pins": {"environment": {"kind": "uv", "lock_sha256": "l"}}}}
    after = {"plan": {"experiment": {}, "pins": {"environment": {"kind": "none"}}}}
    assert [difference_text(each) for each in diff_documents(before, after)] == ["- env.uv: ."]


def test_a_variable_is_told_by_its_name() -> None:
    before = {"plan": {"experiment": {"tasks": {"train": {"run": "true"}}}}}
    after = {"plan": {"experiment": {"tasks": {"train": {"run": "true", "vars": {"A": 1}}}, "env": {}}}}
    assert [difference_text(each) for each in diff_documents(before, after)] == ["+ tasks.train.vars.A: 1"]
