"""Configs of a Tuner, using Ray Tune's names, order and defaults.

Unlike other values in windlass, they can be passed by position and changed later, because scripts for Ray Tune do both.
"""

from __future__ import annotations

import datetime as dt
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from windlass.core.errors import UsageError
from windlass.core.phrases import count
from windlass.tune.arguments import refuses_unknown
from windlass.tune.errors import BadValueError

__all__ = ["CheckpointConfig", "FailureConfig", "ResumeConfig", "RunConfig", "SyncConfig", "TuneConfig"]

_MODES = ("min", "max")
_NAME_LIMIT = 200


@refuses_unknown
@dataclass(slots=True)
class TuneConfig:
    """Settings for the search.

    Attributes:
        mode: `min` or `max`; a list for several metrics.
        metric: metric to optimize; a list for several, most important first. Omit it if scheduler or searcher has one.
        search_alg: a searcher, one written for Ray Tune's protocol, or a name such as `tpe`; random and grid by default.
        scheduler: a scheduler or its name; first in, first out by default.
        num_samples: number of samples of the space; with a grid, repetitions of the grid. -1 samples without end.
        max_concurrent_trials: maximum number of running trials; None or 0 for as many as fit.
        time_budget_s: seconds, or a timedelta, after which the sweep ends; time without a head is not counted.
        reuse_actors: True lets a worker take the next trial; False gives each trial a fresh process; None uses `reuse`.
        trial_name_creator: function from a trial to its name in callbacks.
        trial_dirname_creator: has no effect except a note, because folders of trials are named by their ids.
        executor: `local`, `in-process` (one trial at a time in this process, for debuggers), `ray`, or an object.
            None: `ray` if this process is connected to Ray or RAY_ADDRESS is set, else `local`.
        reuse: `auto` (a worker takes the next trial unless GPUs are declared), `always` or `never`.
        preload: modules that workers import before their first trial.
        seed: seed of all random draws; the same seed gives the same trials anywhere.
        detach: workers continue when this process dies, until another head takes over the sweep.
        max_trials: maximum number of suggestions, even if `num_samples` times the grid is larger.
        gpu_hours: limit on GPUs times the hours that trials hold them.
        max_cost: limit on the cost of trials, computed from `prices`.
        prices: price per unit and hour of a resource: `{"GPU": 2.5, "CPU": 0.04}`.
    """

    mode: str | Sequence[str] | None = None
    metric: str | Sequence[str] | None = None
    search_alg: Any = None
    scheduler: Any = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | dt.timedelta | None = None
    reuse_actors: bool | None = None
    trial_name_creator: Callable[[Any], str] | None = None
    trial_dirname_creator: Callable[[Any], str] | None = None
    executor: Any = None
    reuse: str = "auto"
    preload: Sequence[str] = ()
    seed: int = 0
    detach: bool = False
    max_trials: int | None = None
    gpu_hours: float | None = None
    max_cost: float | None = None
    prices: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        self.preload = (self.preload,) if isinstance(self.preload, str) else self.preload
        for metric in self.metrics:
            if not _is_text(metric):
                raise _refusal(f"metric={self.metric!r} is not the name of a metric", "for example metric='loss'")
        for mode in self.modes:
            _check_choice("mode", mode, _MODES)
        _check_choice("reuse", self.reuse, ("auto", "always", "never"))
        if not _is_count(self.num_samples) or (self.num_samples < 1 and self.num_samples != -1):
            message = f"num_samples={self.num_samples!r} is neither a positive number nor -1"
            raise _refusal(message, "-1 samples without end")
        for name in ("max_concurrent_trials", "max_trials"):
            _check_limit(name, getattr(self, name), _is_count, "a number of trials", "None sets no limit")
        if not _is_count(self.seed):
            raise _refusal(f"seed={self.seed!r} is not an integer", "the same seed gives the same trials")
        for name in ("num_samples", "max_concurrent_trials", "max_trials", "seed"):  # NumPy numbers are not JSON
            setattr(self, name, None if getattr(self, name) is None else int(getattr(self, name)))
        for name, value in (
            ("time_budget_s", self.budget_s),
            ("gpu_hours", self.gpu_hours),
            ("max_cost", self.max_cost),
        ):
            _check_limit(name, value, _is_amount, "a number", "None sets no limit")
        if self.max_cost and not self.prices:
            message = f"max_cost={self.max_cost} is never reached without prices"
            raise _refusal(message, "add prices={'GPU': 2.5, 'CPU': 0.04}, per hour")
        for name, price in (self.prices or {}).items():
            _check_limit(f"prices[{name!r}]", price, _is_amount, "a number", "per unit and hour of a resource")
        if len(self.modes) > 1 and len(self.modes) != len(self.metrics):
            raise _refusal(
                f"{count(len(self.metrics), 'metric')} and {count(len(self.modes), 'mode')}", "give one mode per metric"
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that were given."""
        return _as_tuple(self.metric)

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes that were given."""
        return _as_tuple(self.mode)

    @property
    def budget_s(self) -> float | None:
        """Time budget in seconds."""
        is_delta = isinstance(self.time_budget_s, dt.timedelta)
        return self.time_budget_s.total_seconds() if is_delta else self.time_budget_s  # type: ignore[union-attr, return-value]

    @property
    def reuse_policy(self) -> str:
        """Policy for reusing workers: `auto`, `always` or `never`."""
        return self.reuse if self.reuse_actors is None else "always" if self.reuse_actors else "never"


@refuses_unknown
@dataclass(slots=True)
class FailureConfig:
    """Settings for how to handle failures.

    Attributes:
        max_failures: retries of a trial after its own errors; -1 for unlimited. A lost worker or node is not counted,
            and the trial resumes elsewhere.
        fail_fast: True ends the sweep at the first failed trial; with `raise`, `fit` also raises its error.
        max_interruptions: how often a trial may lose its worker or node; -1 for unlimited.
    """

    max_failures: int = 0
    fail_fast: bool | str = False
    max_interruptions: int = 50

    def __post_init__(self) -> None:
        for name in ("max_failures", "max_interruptions"):
            value = getattr(self, name)
            if not _is_count(value) or value < -1:
                raise _refusal(f"{name}={value!r} is neither a count nor -1", "-1 means always")
        if isinstance(self.fail_fast, str):
            _check_choice("fail_fast", self.fail_fast.lower(), ("raise",))
            self.fail_fast = "raise"
        if self.fail_fast and self.max_failures:
            message = f"fail_fast={self.fail_fast!r} and max_failures={self.max_failures} are mutually exclusive"
            raise _refusal(message, "with fail_fast, leave max_failures at 0")


@refuses_unknown
@dataclass(slots=True)
class CheckpointConfig:
    """Settings for saving and keeping checkpoints.

    Attributes:
        num_to_keep: checkpoints kept per trial: the best, and always the newest; None keeps all.
        checkpoint_score_attribute: metric that ranks checkpoints; None ranks newer ones higher.
        checkpoint_score_order: `max` or `min` of that metric.
        checkpoint_frequency: iterations between two checkpoints of a class trainable; 0 saves only on request.
        checkpoint_at_end: whether a class trainable saves at its end; None saves if it can.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None

    def __post_init__(self) -> None:
        _check_choice("checkpoint_score_order", self.checkpoint_score_order, _MODES)
        if self.num_to_keep is not None:
            _check_limit(
                "num_to_keep", self.num_to_keep, _is_count, "a number of checkpoints", "None keeps all of them"
            )
            if self.num_to_keep < 1:
                raise _refusal(f"num_to_keep={self.num_to_keep} is less than 1", "None keeps all checkpoints")
        hint = "0 saves only when asked"
        _check_limit("checkpoint_frequency", self.checkpoint_frequency, _is_count, "a number of iterations", hint)


@refuses_unknown
@dataclass(slots=True)
class SyncConfig:
    """Settings accepted for compatibility; nothing is synced, because all files are written in place.

    Attributes:
        sync_period: has no effect.
        sync_timeout: has no effect.
        sync_artifacts: trials write to the sweep's folder; an error if storage_path is a URL.
        sync_artifacts_on_checkpoint: has no effect.
    """

    sync_period: int = 300
    sync_timeout: int = 1800
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True


@refuses_unknown
@dataclass(slots=True)
class RunConfig:
    """Settings for storage, stop condition and output.

    Attributes:
        name: name of the sweep and its folder; by default the trainable's name and the time.
        storage_path: folder of sweeps; default `<WINDLASS_HOME>/sweeps`. If it is a URL, checkpoints are stored there,
            and the journal stays in the default folder.
        storage_filesystem: not supported; pass a URL as `storage_path`.
        failure_config: handling of failures.
        checkpoint_config: when trials save, and which checkpoints are kept.
        sync_config: see `SyncConfig`.
        verbose: 0 is silent; 1 shows a table; 2 and 3 also show each report.
        stop: `{metric: bound}`, a function of trial id and result, a stopper, or a list of stoppers.
        callbacks: objects with any of the methods of `windlass.tune.Callback`.
        progress_reporter: a `CLIReporter`, which sets columns and interval.
        log_to_file: True writes a trial's output to `stdout` and `stderr` in its folder; names set other files. By
            default both go to `log`.
        local_dir: the old name of `storage_path`.
    """

    name: str | None = None
    storage_path: str | Path | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    sync_config: SyncConfig | None = None
    verbose: int | None = None
    stop: Any = None
    callbacks: Sequence[Any] | None = None
    progress_reporter: Any = None
    log_to_file: bool | str | Sequence[str] = False
    local_dir: str | None = None

    def __post_init__(self) -> None:
        if self.storage_filesystem is not None:
            message = f"storage_filesystem={self.storage_filesystem!r} is not supported"
            raise _refusal(message, "pass a URL: storage_path='s3://bucket/prefix'", "unsupported-setting")
        if self.local_dir is not None and self.storage_path is not None:
            message = f"storage_path={str(self.storage_path)!r} and local_dir={self.local_dir!r} are different folders"
            raise _refusal(message, "local_dir is the old name; remove it")
        self.storage_path = self.storage_path if self.local_dir is None else self.local_dir
        if self.name is not None:
            _check_name(self.name)
        if self.verbose is not None and not isinstance(self.verbose, int):
            raise _refusal(f"verbose={self.verbose!r} is not a number", "0: silent; 1: a table; 2 and 3: each report")
        if self.storage_path is not None and not isinstance(self.storage_path, (str, Path)):
            raise _refusal(f"storage_path={self.storage_path!r} is not a path", "pass a folder, or the URL of a bucket")
        self.failure_config = self.failure_config or FailureConfig()
        self.checkpoint_config = self.checkpoint_config or CheckpointConfig()
        self.sync_config = self.sync_config or SyncConfig()

    @property
    def failures(self) -> FailureConfig:
        """Failure config, or the default one if none was given."""
        return self.failure_config or FailureConfig()

    @property
    def checkpoints(self) -> CheckpointConfig:
        """Checkpoint config, or the default one if none was given."""
        return self.checkpoint_config or CheckpointConfig()


class ResumeType(StrEnum):
    """Action on the trials with a given status when a sweep is restored."""

    RESUME = "resume"  # resume from the newest checkpoint
    RESTART = "restart"  # restart from the beginning
    SKIP = "skip"  # leave unchanged


@refuses_unknown
@dataclass(slots=True)
class ResumeConfig:
    """Actions of `Tuner.restore` on trials, by their status."""

    finished: str = ResumeType.SKIP
    unfinished: str = ResumeType.RESUME
    errored: str = ResumeType.SKIP
    ResumeType: ClassVar = ResumeType

    def __post_init__(self) -> None:
        for name in ("finished", "unfinished", "errored"):
            setattr(self, name, ResumeType(_check_choice(name, str(getattr(self, name)), list(ResumeType))))


def _as_tuple(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)  # type: ignore[return-value]


def _is_count(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_amount(value: Any) -> bool:
    is_bool = isinstance(value, bool)
    return not is_bool and isinstance(value, numbers.Real) and not math.isnan(float(value))


def _check_limit(name: str, value: Any, is_right: Callable[[object], bool], what: str, hint: str) -> None:
    if value is None:
        return
    if not is_right(value):
        raise _refusal(f"{name}={value!r} is not {what}", hint)
    if value < 0:
        raise _refusal(f"{name}={value} is negative", hint)


def _check_name(name: object) -> None:
    """Check that a name is valid for a folder, since a sweep's folder must be directly below its storage."""
    if not isinstance(name, str):
        raise _refusal(f"name={name!r} is not a string", "for example name='digits'")
    is_folder = name not in (".", "..") and "/" not in name and name.isprintable()
    if not is_folder or len(name.encode()) > _NAME_LIMIT:
        message = f"name={name[:80]!r} cannot be the name of a folder"
        hint = f"no slash and no line break, at most {_NAME_LIMIT} bytes; the folder above it is storage_path"
        raise _refusal(message, hint)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise _refusal(f"{name}={value!r} is not one of {', '.join(choices)}", f"for example {name}={choices[0]!r}")
    return value


def _refusal(message: str, hint: str, code: str = "invalid-value") -> UsageError:
    return BadValueError(message, hint=hint, code=code)
