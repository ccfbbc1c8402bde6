from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runs.journals import RunScript, home_in
from windlass.core.errors import UsageError
from windlass.runs.compare.outputs import compare_files
from windlass.runs.compare.tolerance import apart, compare_metrics, parse_tolerance, unmatched
from windlass.runs.outputs import Manifest, write_manifest

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("text", "before", "after", "holds"),
    [
        ("loss=1e-3", 1.0, 1.001, True),
        ("loss=1e-3", 1.0, 1.0011, False),
        ("loss=0", 1.0, 1.0, True),
        ("loss=0", 1.0, 1.0000001, False),
        ("loss=1%", 200.0, 201.9, True),
        ("loss=1%", 200.0, 202.1, False),
        ("loss=1%", -200.0, -198.5, True),
        ("loss=1+1%", 200.0, 202.9, True),
        ("loss=1+1%", 200.0, 203.1, False),
        ("loss=1", NAN, NAN, True),
        ("loss=1", NAN, 1.0, False),
        ("loss=1", 1.0, NAN, False),
        ("loss=1", INF, INF, True),
        ("loss=100%", INF, 1.0, False),
        ("loss=100%", INF, -INF, False),
    ],
)
def test_near_enough(text: str, before: float, after: float, holds: bool) -> None:
    assert parse_tolerance(text).holds(before, after) is holds


@pytest.mark.parametrize("text", ["loss", "loss=", "=1", "loss=x", "loss=-1", "loss=1%%", "loss=1%+1"])
def test_what_is_no_tolerance(text: str) -> None:
    with pytest.raises(UsageError, match="invalid tolerance") as caught:
        parse_tolerance(text)
    assert (caught.value.code, caught.value.exit_code) == ("invalid-value", 2)


def test_a_tolerance_speaks_of_a_key_or_of_its_path() -> None:
    before = {"eval": {"loss": 1.0, "acc": [0.5, 0.6]}, "steps": 10, "name": "a"}
    after = {"eval": {"loss": 1.1, "acc": [0.5, 0.6]}, "steps": 10, "name": "a"}
    assert list(apart(before, after, [parse_tolerance("loss=0.2")])) == []
    assert list(apart(before, after, [parse_tolerance("eval.loss=0.2")])) == []
    assert list(apart(before, after, [parse_tolerance("*=0.2")])) == []
    assert list(apart(before, after, [parse_tolerance("acc=1")])) == ["eval.loss: 1 -> 1.1"]
    assert list(apart(before, after, [parse_tolerance("loss=0.01")])) == ["eval.loss: 1 -> 1.1 (allowed: loss=0.01)"]


def test_what_is_no_number_must_be_the_same() -> None:
    any_number = [parse_tolerance("*=100")]
    assert list(apart({"a": "x", "b": True}, {"a": "y", "b": 1}, any_number)) == ["a: 'x' -> 'y'", "b: True -> 1"]
    assert list(apart({"a": [1, 2]}, {"a": [1]}, any_number)) == ["a has 1 entries instead of 2"]
    assert list(apart({"a": 1}, {"b": 1}, any_number)) == ["a is missing", "b is new"]


def test_a_name_that_fits_nothing_is_a_mistake() -> None:
    assert unmatched([parse_tolerance("loss=1")], ["eval.loss"]) is None
    problem = unmatched([parse_tolerance("lss=1")], ["loss", "acc"])
    assert problem is not None
    assert (problem.code, problem.hint) == ("unknown-metric", "did you mean `loss`?")


def output(folder: Path, **files: str) -> tuple[Path, Manifest]:
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder, write_manifest(folder)


def test_files_by_their_bytes_and_json_within_a_tolerance(tmp_path: Path) -> None:
    before = output(tmp_path / "a", m__bin="x", v__json='{"loss": 1.0}', l__jsonl='{"loss": 1}\n', gone="1")
    after = output(tmp_path / "b", m__bin="y", v__json='{"loss":1.01}', l__jsonl='{"loss": 2}\n', new="1")
    assert dict(compare_files(before, after)).keys() == {"m.bin", "v.json", "l.jsonl", "gone", "new"}
    near = dict(compare_files(before, after, [parse_tolerance("loss=0.1")], ignored=["new", "g*"]))
    assert near.keys() == {"m.bin", "l.jsonl"}
    assert near["l.jsonl"] == "loss: 1 -> 2 (allowed: loss=0.1)"
    assert near["m.bin"].startswith("has different content (sha256:")
    assert compare_files(before, before) == []


def test_a_recorded_file_that_was_changed_is_not_compared_by_value(tmp_path: Path) -> None:
    before, after = output(tmp_path / "a", v__json='{"loss": 1.0}'), output(tmp_path / "b", v__json='{"loss": 1.1}')
    (before[0] / "v.json").write_text('{"loss": 1.1}')
    found = dict(compare_files(before, after, [parse_tolerance("loss=1")]))
    assert "the recorded file is missing or changed" in found["v.json"]


def test_metrics_step_by_step(tmp_path: Path) -> None:
    runs = []
    for number, values in enumerate(([1.0, 0.5], [1.0, 0.6])):
        script = RunScript(home_in(tmp_path), f"exp-{number:08d}")
        for step, value in enumerate(values):
            script.metric("loss", step, value).metric("speed", step, value * number)
        runs.append(script.close())
    assert list(compare_metrics(runs[0], runs[1], [parse_tolerance("loss=0.2")])) == [("loss", "")]
    ((name, problem),) = compare_metrics(runs[0], runs[1], [parse_tolerance("loss=0.01")])
    assert (name, problem) == ("loss", "step 1: 0.5 -> 0.6 (allowed: loss=0.01)")
    assert json.dumps(list(compare_metrics(runs[0], runs[1], []))) == "[]"
