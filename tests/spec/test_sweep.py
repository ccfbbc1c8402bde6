from __future__ import annotations

from typing import Any

import pytest

from windlass.config.encode import to_data
from windlass.config.loading import from_data, load_config
from windlass.core.errors import SpecError
from windlass.spec import Experiment, Sweep

_HEAD = "name: x\nrun: python t.py --lr ${params.lr}\nparams: {lr: 0.1}\n"
_SWEEP: dict[str, Any] = {"metric": "loss", "mode": "min", "space": {"lr": {"uniform": [0, 1]}}}


def load(text: str) -> Sweep:
    found = load_config(Experiment, _HEAD + text, source="exp.yaml").value.sweep
    assert found is not None
    return found


def refused(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(text)
    return [str(problem) for problem in caught.value.problems]


def test_a_short_sweep() -> None:
    sweep = load("sweep:\n  metric: loss\n  mode: min\n  samples: 8\n  space: {lr: {loguniform: [1e-5, 1e-1]}}\n")
    assert (sweep.metric, sweep.mode, sweep.samples, sweep.scheduler) == (("loss",), ("min",), 8, "fifo")
    assert sweep.space == {"lr": {"loguniform": [1e-5, 1e-1]}}


def test_what_was_written_comes_back() -> None:
    sweep = load(
        "sweep:\n  metric: [acc, cost]\n  mode: [max, min]\n  space: {tasks.main.gpus: {grid: [1, 2]}}\n"
        "  scheduler: {asha: {max_t: 81}}\n  search: {tpe: {multivariate: true}}\n  stop: {training_iteration: 100}\n"
        "  limits: {time: 2h, gpu_hours: 8, cost: 40, prices: {GPU: 2.5}}\n  keep: {best: 2, by: -cost}\n  first: {lr: 0.1}\n"
    )
    assert from_data(Sweep, to_data(sweep)) == sweep
    assert sweep.limits.time == 7200
    assert sweep.first == ({"lr": 0.1},)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"metrik": "a"}, "did you mean `metric`"),
        ({"mode": "maximum"}, "`max`"),
        ({"mode": ["min", "max"]}, "1 metrics and 2 modes"),
        ({"metric": ""}, "`metric` is empty"),
        ({"space": {}}, "`space` is empty"),
        ({"samples": 0}, "`samples` is 0"),
        ({"samples": -1}, "never ends without a limit"),
        ({"scheduler": {"asha": {}, "pbt": {}}}, "neither a name nor one name"),
        ({"search": {"tpe": 3}}, "neither a name nor one name"),
        ({"stop": {"loss": "low"}}, "`stop.loss` is not a number"),
        ({"slots": 4}, "no effect without `trainable`"),
        ({"keep": {"by": "-loss"}}, "`keep.by` has no effect without `keep.best`"),
        ({"trainable": "train.Trainer"}, "`MODULE:NAME`"),
        ({"failures": -2}, "failures"),
        ({"limits": {"cost": 5}}, "`limits.cost` needs `limits.prices`"),
        ({"limits": {"prices": {"GPU": 2.5}}}, "no effect without `limits.cost`"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_bad_input_is_refused_at_its_place(change: dict[str, Any], says: str) -> None:
    import json

    problems = refused("sweep: " + json.dumps({**_SWEEP, **change}))
    assert any(says in problem for problem in problems), problems
    assert all("exp.yaml:4:" in problem for problem in problems)


def test_a_missing_goal_is_named() -> None:
    problems = refused("sweep: {space: {lr: 1}}")
    assert [problem for problem in problems if "missing key `metric`" in problem]
    assert [problem for problem in problems if "missing key `mode`" in problem]


def test_an_endless_sweep_with_a_limit_is_fine() -> None:
    text = "sweep: {metric: a, mode: max, samples: -1, space: {lr: {uniform: [0, 1]}}, limits: {time: 1h}}"
    assert load(text).samples == -1
