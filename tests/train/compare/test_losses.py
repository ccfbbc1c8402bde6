"""The first step at which two runs part."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError, UsageError
from windlass.train.compare.losses import compare_losses, read_metrics


def write(path: Path, records: Sequence[Mapping[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run(path: Path, losses: Sequence[float], *, first: int = 1) -> Path:
    return write(path, [{"step": first + place, "train/loss": loss} for place, loss in enumerate(losses)])


def test_equal_runs(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a.jsonl", [3.0, 2.0, 1.0]), run(tmp_path / "b.jsonl", [3.0, 2.0, 1.0])
    found = compare_losses(a, b)
    assert found.is_equal
    assert str(found) == f"- {a}\n+ {b}\ntrain/loss: equal over 3 steps, largest difference 0"


def test_the_first_step_that_differs(tmp_path: Path) -> None:
    a = run(tmp_path / "a.jsonl", [3.0, 2.0, 1.0, 0.5])
    b = run(tmp_path / "b.jsonl", [3.0, 2.0, 1.25, 0.0])
    found = compare_losses(a, b)
    assert found.first_step == 3
    assert (
        str(found.metrics[0])
        == "train/loss: differs from step 3: 1.0 and 1.25; largest difference 0.5 at step 4, of 4 steps"
    )
    assert compare_losses(a, b, tolerance=0.3).first_step == 4
    assert compare_losses(a, b, tolerance=0.5).is_equal


def test_what_is_no_number(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a.jsonl", [1.0, math.nan]), run(tmp_path / "b.jsonl", [1.0, math.nan])
    assert compare_losses(a, b).is_equal
    c = run(tmp_path / "c.jsonl", [1.0, 2.0])
    found = compare_losses(a, c, tolerance=10)
    assert (found.first_step, found.metrics[0].largest) == (2, math.inf)
    assert json.loads(json.dumps(found.to_data(), allow_nan=False))["metrics"][0]["largest"] == "inf"


def test_other_metrics_and_which_parts_first(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [{"step": s, "metrics": {"train/loss": 1.0, "optim/lr": 0.1}} for s in (1, 2)])
    b = write(tmp_path / "b.jsonl", [{"step": s, "train/loss": float(s), "optim/lr": 0.1 * s} for s in (1, 2)])
    write(tmp_path / "c.jsonl", [{"step": 1, "train/loss": 1.0, "optim/lr": 0.2}])
    found = compare_losses(a, b, names=("*",))
    assert [(metric.name, metric.first_step) for metric in found.metrics] == [("optim/lr", 2), ("train/loss", 2)]
    found = compare_losses(a, tmp_path / "c.jsonl", names=("*",))
    assert [(metric.name, metric.first_step) for metric in found.metrics] == [("optim/lr", 1), ("train/loss", None)]


def test_steps_that_one_run_has_alone(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a.jsonl", [1.0] * 5), run(tmp_path / "b.jsonl", [1.0] * 5, first=3)
    found = compare_losses(a, b)
    assert (found.only_a, found.only_b) == (((1, 2),), ((6, 7),))
    assert str(found).splitlines()[-2:] == [f"only {a} has steps 1 to 2", f"only {b} has steps 6 to 7"]


def test_later_lines_win_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = run(tmp_path / "a.jsonl", [1.0, 2.0])
    path.write_text(path.read_text() + '{"step": 2, "train/loss": 5.0}\n{"step": 3, "train/lo')
    assert read_metrics(path) == {1: {"train/loss": 1.0}, 2: {"train/loss": 5.0}}


def test_folders_and_checkpoints_beside_a_log(tmp_path: Path) -> None:
    path = run(tmp_path / "run" / "metrics.jsonl", [1.0])
    (tmp_path / "run" / "step-1").mkdir()
    run(tmp_path / "launched" / "out" / "train" / "metrics.jsonl", [1.0])
    for place in (path, tmp_path / "run", tmp_path / "run" / "step-1", tmp_path / "launched"):
        assert read_metrics(place) == {1: {"train/loss": 1.0}}


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    a = run(tmp_path / "a.jsonl", [1.0])
    with pytest.raises(NotFoundError) as missing:
        compare_losses(a, tmp_path / "nowhere")
    assert missing.value.code == "file-not-found"
    with pytest.raises(UsageError, match="no step in common") as apart:
        compare_losses(a, run(tmp_path / "b.jsonl", [1.0], first=9))
    assert apart.value.code == "nothing-to-compare"
    with pytest.raises(UsageError, match="no metric eval/"):
        compare_losses(a, a, names=("eval/*",))
    (tmp_path / "c.jsonl").write_text("nonsense\n{}\n")
    with pytest.raises(UsageError, match=r"c\.jsonl:1: not a step record"):
        compare_losses(a, tmp_path / "c.jsonl")


def test_what_json_lacks_is_compared_as_the_callback_writes_it(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [{"step": 1, "train/loss": 1.0}, {"step": 2, "train/loss": "nan"}])
    b = run(tmp_path / "b.jsonl", [1.0, 2.0])
    assert compare_losses(a, b, tolerance=10).first_step == 2
    assert compare_losses(a, a).is_equal
    assert compare_losses(a, a).metrics[0].num_steps == 2
