"""Connection to Ray, made only if the process has none; a user's connection is not changed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from windlass.core.errors import PreconditionError, UnreachableError, UsageError

__all__ = ["RayConnection", "import_ray"]

_LIMITS = {"CPU": "num_cpus", "GPU": "num_gpus"}


def import_ray() -> Any:
    """Import `ray`. No other code in this package does.

    Raises:
        PreconditionError: Ray is not installed.
    """
    try:
        return importlib.import_module("ray")  # lazy: ray costs a second
    except ImportError as error:
        raise PreconditionError(
            f"trials on Ray need the package `{error.name or 'ray'}`, which is not installed",
            hint="run `pip install 'windlass[ray,tune]'`",
            code="extra-missing",
        ) from error


class RayConnection:
    """Connection of this process to a Ray cluster.

    If the process is already connected (the user called `ray.init`), that connection is used and never closed.
    """

    def __init__(
        self,
        address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        init: Mapping[str, Any] | None = None,
    ) -> None:
        self.address = address
        self._env = dict(runtime_env or {})
        self.is_ours = False
        self.is_own_cluster = False
        self._init = dict(init or {})

    @property
    def actor_env(self) -> dict[str, Any]:
        """Return the runtime environment for actors, which is empty if the connection already has it."""
        return {} if self.is_ours else dict(self._env)

    def open(self, limits: Mapping[str, float] | None = None) -> Any:
        """Connect, or start Ray on this machine if there is no address, and return the module. Blocks for seconds.

        Args:
            limits: the `CPU` and `GPU` of this machine that a Ray started here may use.

        Raises:
            PreconditionError: Ray is not installed.
            UnreachableError: cannot connect to Ray at the address.
            UsageError: the process is already connected to a different address; the runtime environment is invalid;
                or limits are given for a Ray that is already running.
        """
        ray = import_ray()
        if ray.is_initialized():
            self._check_same(ray)
            self._check_env()
            _refuse_limits(limits)
            return ray
        named = self.address or os.environ.get("RAY_ADDRESS", "")
        settings = {"log_to_driver": False, "logging_level": "ERROR", **self._init}
        if self._env:
            settings["runtime_env"] = self._env
        if named and named != "local":
            _refuse_limits(limits)
            settings = {**settings, "address": named}
        else:
            stated = {_LIMITS[name]: amount for name, amount in (limits or {}).items()}
            settings = {"include_dashboard": False, **stated, **settings, "address": "local"}
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(**settings)
        except (ValueError, TypeError) as error:
            raise _refusal(self._env, error) from error
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            raise UnreachableError(
                f"cannot connect to Ray at `{settings['address']}`: {_first_line(error)}",
                hint="start one with `ray start --head`, pass its `address=`, or omit the address to "
                "use Ray on this machine",
                code="ray-unreachable",
            ) from error
        self.is_ours, self.is_own_cluster = True, settings["address"] == "local"
        return ray

    def close(self) -> None:
        """Close the connection if it was made here, with a cluster that was started for it. Idempotent."""
        if self.is_ours:
            self.is_ours = False
            import_ray().shutdown()

    def _check_same(self, ray: Any) -> None:
        found = str(ray.get_runtime_context().gcs_address)
        if self.address in (None, "", "auto", "local", found):
            return
        raise UsageError(
            f"this process is already connected to Ray at `{found}`, not to `{self.address}`",
            hint="omit `address`, or call `ray.shutdown()` first",
            code="ray-options",
        )

    def _check_env(self) -> None:
        if not self._env:
            return
        try:
            importlib.import_module("ray.runtime_env").RuntimeEnv(**self._env)
        except (ValueError, TypeError) as error:
            raise _refusal(self._env, error) from error


def _refuse_limits(limits: Mapping[str, float] | None) -> None:
    if limits:
        given = ", ".join(f"{name} {amount:g}" for name, amount in limits.items())
        raise UsageError(
            f"{given} cannot limit a Ray cluster that is already running",
            hint="leave out num_cpus and num_gpus of `windlass.tune.ray.init`; `num_slots` limits trials",
            code="ray-options",
        )


def _refusal(env: Mapping[str, Any], error: Exception) -> UsageError:
    return UsageError(
        f"Ray rejects the runtime environment {env!r:.200}: {_first_line(error)}",
        hint="see Ray's documentation of `runtime_env`; a local folder only works if windlass makes the connection",
        code="ray-options",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
