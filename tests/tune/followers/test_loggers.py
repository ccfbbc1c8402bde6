from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass.core.errors import UsageError
from windlass.tune.callback import Callback
from windlass.tune.followers.loggers import (
    CSVLoggerCallback,
    JsonLoggerCallback,
    MLflowLoggerCallback,
    TBXLoggerCallback,
    WandbLoggerCallback,
    split_callbacks,
)
from windlass.tune.followers.target import TARGETS, make_target


def test_every_callback_names_a_target_that_takes_its_options() -> None:
    callbacks = [
        CSVLoggerCallback(),
        JsonLoggerCallback(),
        TBXLoggerCallback(),
        WandbLoggerCallback("p"),
        MLflowLoggerCallback(),
    ]
    for callback in callbacks:
        assert make_target(callback.target, callback.options).name == callback.target
    assert {callback.target for callback in callbacks} == set(TARGETS)


def test_followers_and_other_callbacks_are_told_apart() -> None:
    own = Callback()
    followers, others = split_callbacks([CSVLoggerCallback(), own, TBXLoggerCallback()])
    assert [follower.target for follower in followers] == ["csv", "tensorboard"]
    assert others == [own]
    with pytest.raises(UsageError, match="'csv' is given twice"):
        split_callbacks([CSVLoggerCallback(), CSVLoggerCallback()])


@pytest.mark.parametrize("given", [3, object(), Callback, CSVLoggerCallback])
def test_what_is_no_callback_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="invalid callback"):
        split_callbacks([given])


def test_keys_go_through_the_environment_alone(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("abc123\n")
    for callback in (WandbLoggerCallback("p", api_key="abc123"), WandbLoggerCallback("p", api_key_file=str(key))):
        assert callback.environment == {"WANDB_API_KEY": "abc123"}
        assert "abc123" not in repr(callback)
        assert "abc123" not in str(callback.options)
    token = MLflowLoggerCallback(tracking_token="t0ken")
    assert token.environment == {"MLFLOW_TRACKING_TOKEN": "t0ken"}
    assert "t0ken" not in str(token.options)


def test_what_a_follower_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match="both given"):
        WandbLoggerCallback("p", api_key="a", api_key_file="b")
    with pytest.raises(UsageError, match="not supported"):
        WandbLoggerCallback("p", video_kwargs={"fps": 4})
    assert WandbLoggerCallback("p", mode="offline").options["init"] == {"mode": "offline"}
