"""What trials call outside of one, and how trainables get to workers."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.core.errors import UsageError
from windlass.testing.sample_trainables import Counter, act
from windlass.tune.trainable import session
from windlass.tune.trainable.serialization import deserialize, serialize
from windlass.tune.trainable.session import get_checkpoint, get_context, report


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: report({"a": 1}), "tune.report"),
        (get_checkpoint, "tune.get_checkpoint"),
        (get_context, "tune.get_context"),
    ],
)
def test_outside_of_a_trial_is_an_error(call: Any, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} was called outside of a trial") as refused:
        call()
    assert refused.value.code == "invalid-call"


def module_function(config: dict[str, Any]) -> None:
    """A function of this module."""


def test_what_is_importable_travels_by_name() -> None:
    assert serialize(act) == {"import": "windlass.testing.sample_trainables:act"}
    assert deserialize(serialize(Counter)) is Counter
    assert serialize(module_function)["import"].endswith("test_session:module_function")


def test_what_is_not_importable_travels_as_it_is() -> None:
    factor = 3
    found: Any = deserialize(json.loads(json.dumps(serialize(lambda config: config["x"] * factor))))
    assert found({"x": 2}) == 6

    class Local(Counter):
        pass

    made: Any = deserialize(serialize(Local))
    assert made.__name__ == "Local"
    partial: Any = deserialize(serialize(functools.partial(act, {"num": 0})))
    assert partial.func is act


def test_functions_of_scripts_travel_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(config): return helper(config)\ndef helper(config): return config['x'] + 1", names)
    monkeypatch.setitem(vars(sys.modules["__main__"]), "f", names["f"])
    assert "pickle" in serialize(names["f"])
    found: Any = deserialize(serialize(names["f"]))
    assert found({"x": 1}) == 2


def test_what_cannot_travel_says_why(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as file, pytest.raises(UsageError) as refused:
        serialize(lambda config: file.write("x"))
    assert refused.value.code == "not-serialisable"


def test_a_checkpoint_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_current", object())
    with pytest.raises(UsageError) as refused:
        report({"a": 1}, checkpoint="/tmp")  # type: ignore[arg-type]
    assert "tune.report(checkpoint='/tmp') is a str" in str(refused.value)
    assert "Checkpoint.from_directory" in refused.value.hint
