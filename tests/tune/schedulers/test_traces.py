"""Recorded answers of Ray Tune's schedulers: ours, made from their JSON form alone, give the same without Ray."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.tune.schedulers.differential.our_side import OurSide
from windlass.core.errors import WindlassError
from windlass.tune.schedulers.registry import from_settings

TRACES = sorted((Path(__file__).parent / "traces").glob("*.json"))


def test_there_are_traces() -> None:
    assert len(TRACES) == 8


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_answers_are_those_recorded(path: Path) -> None:
    for stream in json.loads(path.read_text()):
        side = replay(stream)
        assert side.configs() == (stream["configs"] or side.configs())
        assert side.shapes() == stream["shapes"]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_same_calls_give_the_same_and_touch_no_global_generator(path: Path) -> None:
    import numpy as np

    random.seed(1)
    np.random.seed(1)
    before, numpy_before = random.getstate(), repr(np.random.get_state())
    for stream in json.loads(path.read_text()):
        first, second = replay(stream), replay(stream)
        assert first.sweep.acts == second.sweep.acts
        assert [(trial.config, trial.tag, trial.assigned) for trial in first.sweep.trials.values()] == [
            (trial.config, trial.tag, trial.assigned) for trial in second.sweep.trials.values()
        ]
    assert random.getstate() == before
    assert repr(np.random.get_state()) == numpy_before


def replay(stream: dict[str, Any]) -> OurSide:
    scheduler = from_settings(stream["scheduler"])
    assert json.loads(json.dumps(scheduler.settings())) == stream["scheduler"]
    side = OurSide(scheduler, seed=stream["seed"])
    side.sweep.capacity = stream["capacity"]
    for row in stream["events"]:
        name, *arguments = [json.loads(json.dumps(one)) for one in row]
        if arguments[-1] == "refused":
            with pytest.raises(WindlassError):
                getattr(side, name)(*arguments[:-1])
            break
        *arguments, said, statuses = arguments
        if name == "add":
            arguments += [json.loads(json.dumps(stream["config"])), stream["shape"]]
        assert getattr(side, name)(*arguments) == said
        assert side.statuses() == statuses
    return side
