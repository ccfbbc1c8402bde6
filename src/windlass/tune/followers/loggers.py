"""Ray Tune's logger callbacks, which only name followers and their settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.tune.errors import BadValueError

__all__ = [
    "CSVLoggerCallback",
    "FollowerCallback",
    "JsonLoggerCallback",
    "MLflowLoggerCallback",
    "TBXLoggerCallback",
    "WandbLoggerCallback",
    "split_callbacks",
]


class FollowerCallback:
    """Callback that runs in a separate process, given by the target, options and secrets of a follower.

    Attributes:
        target: a name of `windlass.tune.followers.target.TARGETS`.
        options: JSON arguments of the target.
        environment: variables for the follower's process only; secrets are passed here, never in files or arguments.
    """

    target = ""

    def __init__(self, options: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.options = dict(options or {})
        self.environment = dict(environment or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options})"


class CSVLoggerCallback(FollowerCallback):
    """Callback that writes `trials/<id>/progress.csv`."""

    target = "csv"


class JsonLoggerCallback(FollowerCallback):
    """Callback that writes `trials/<id>/result.json` and `params.json`."""

    target = "json"


class TBXLoggerCallback(FollowerCallback):
    """Callback that writes TensorBoard event files to `trials/<id>/`."""

    target = "tensorboard"


class WandbLoggerCallback(FollowerCallback):
    """Callback for Weights & Biases, with Ray Tune's arguments; others are passed to `wandb.init`.

    Raises:
        UsageError: two keys are given (`invalid-value`), or arguments for images and videos, which reports cannot
            contain (`unsupported-setting`).
    """

    target = "wandb"

    def __init__(  # noqa: PLR0917 - Ray's form
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        save_checkpoints: bool = False,
        upload_timeout: int | None = None,
        video_kwargs: Mapping[str, Any] | None = None,
        image_kwargs: Mapping[str, Any] | None = None,
        **init: Any,
    ) -> None:
        if api_key_file and api_key:
            raise BadValueError(
                "api_key and api_key_file are both given", hint="give one of them", code="invalid-value"
            )
        if video_kwargs or image_kwargs:
            raise BadValueError(
                "video_kwargs and image_kwargs are not supported: reports can only contain numbers, text and lists",
                hint="log media in the trial itself with wandb",
                code="unsupported-setting",
            )
        key = Path(api_key_file).expanduser().read_text().strip() if api_key_file else api_key
        options = {
            "project": project or "",
            "group": group or "",
            "excludes": list(excludes or ()),
            "log_config": log_config,
            "upload_checkpoints": upload_checkpoints or save_checkpoints,
            "init": init,
        }
        super().__init__(options, {"WANDB_API_KEY": key} if key else {})
        self.upload_timeout_s = upload_timeout


class MLflowLoggerCallback(FollowerCallback):
    """Callback for MLflow, with Ray Tune's arguments."""

    target = "mlflow"

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
    ) -> None:
        options = {
            "tracking_uri": tracking_uri,
            "registry_uri": registry_uri,
            "experiment_name": experiment_name or "",
            "tags": dict(tags or {}),
            "save_artifact": save_artifact,
            "log_params_on_trial_end": log_params_on_trial_end,
        }
        super().__init__(options, {"MLFLOW_TRACKING_TOKEN": tracking_token} if tracking_token else {})


def split_callbacks(callbacks: Iterable[Any]) -> tuple[list[FollowerCallback], list[Any]]:
    """Separate callbacks into those that run as followers and those that run in the head.

    Raises:
        UsageError: a target is given twice, or an object is not a callback (`invalid-value`).
    """
    given = list(callbacks)
    for callback in given:
        is_one = any(name.startswith("on_") or name in ("setup", "target") for name in dir(callback))
        if isinstance(callback, type) or not is_one:
            hint = f"make one: {callback.__name__}()" if isinstance(callback, type) else "see windlass.tune.Callback"
            raise BadValueError(f"invalid callback: {callback!r:.80}", hint=hint, code="invalid-value")
    followers = [callback for callback in given if isinstance(callback, FollowerCallback)]
    targets = [callback.target for callback in followers]
    twice = next((target for target in targets if targets.count(target) > 1), "")
    if twice:
        raise BadValueError(f"the follower {twice!r} is given twice", hint="leave one out", code="invalid-value")
    return followers, [callback for callback in given if not isinstance(callback, FollowerCallback)]


def environment_of(callback: FollowerCallback) -> dict[str, str]:
    """Return the environment for a follower's process."""
    return {**os.environ, **callback.environment}
