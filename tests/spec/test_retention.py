from __future__ import annotations

import pytest

from windlass.config.loading import from_data
from windlass.core.errors import SpecError
from windlass.spec import Best, Experiment, KeptCheckpoints, Retain


def read(retain: object) -> Retain:
    return from_data(Experiment, {"name": "x", "run": "true", "retain": retain}, source="x.yaml").retain


def test_every_rule_is_read() -> None:
    text = {"ttl": "30d", "checkpoints": {"last": 3, "best": {"metric": "loss", "mode": "max", "keep": 2}}}
    best = Best(metric="loss", mode="max", keep=2)
    assert read(text) == Retain(ttl=30 * 86400.0, checkpoints=KeptCheckpoints(last=3, best=best))


def test_without_rules_nothing_is_said() -> None:
    assert read({}) == Retain()


@pytest.mark.parametrize(
    ("retain", "code", "hint"),
    [
        ({"checkpoints": {"last": 0}}, "invalid-value", "it must be at least 1"),
        ({"checkpoints": {"best": {"mode": "min"}}}, "missing-key", "add `metric:`"),
        ({"checkpoints": {"best": {"metric": ""}}}, "invalid-value", "write the name of a metric, such as `loss`"),
        ({"checkpoints": {"lst": 3}}, "unknown-key", "did you mean `last`?"),
        ({"ttl": "soon"}, "invalid-value", "a duration is a number with a unit"),
    ],
)
def test_wrong_rules_are_refused(retain: object, code: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(retain)
    assert caught.value.problems[0].code == code
    assert caught.value.problems[0].hint.startswith(hint)
