"""Refusals of `evaluate:` in an experiment file."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.config.loading import from_data
from windlass.core.errors import SpecError
from windlass.spec import BestCheckpoint, Experiment


def spec(evaluate: Any, train: dict[str, Any] | None = None, **quality: Any) -> Experiment:
    tasks = {"train": {"run": "a", **(train or {})}, "quality": {"run": "b", "evaluate": evaluate, **quality}}
    return from_data(Experiment, {"name": "x", "tasks": tasks}, source="x.yaml")


def test_the_short_form_of_best() -> None:
    evaluate = spec({"of": "train", "best": "eval/loss"}).tasks["quality"].evaluate
    assert evaluate is not None
    assert evaluate.best == BestCheckpoint(metric="eval/loss", mode="min")


@pytest.mark.parametrize(
    ("evaluate", "tasks", "message"),
    [
        ({"of": "train"}, {}, "`evaluate` selects no checkpoint"),
        ({"of": "trian", "every": 1}, {}, "unknown task `trian` in tasks.quality.evaluate.of"),
        ({"of": "quality", "every": 1}, {}, "task `quality` publishes no checkpoints"),
        ({"of": "train", "every": 1}, {"after": "train"}, "task `quality` has both `after` and `evaluate`"),
        (
            {"of": "train", "every": 1},
            {"train": {"after": "quality"}},
            "task `train` waits for `quality`, which evaluates",
        ),
    ],
)
def test_what_is_refused(evaluate: dict[str, Any], tasks: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        spec(evaluate, **tasks)
    assert any(problem.message.startswith(message) for problem in raised.value.problems), raised.value.problems
