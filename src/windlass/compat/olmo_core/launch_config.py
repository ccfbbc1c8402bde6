"""`BeakerLaunchConfig`: OLMo-core's launch API, implemented with windlass.

Source: `olmo_core.launch.beaker` of ai2-olmo-core 3.0.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from windlass.compat.gantry.following import FollowOptions
from windlass.compat.gantry.recipe import Recipe
from windlass.compat.olmo_core.config_base import Base
from windlass.compat.olmo_core.git_state import GitRepoState
from windlass.compat.olmo_core.images import default_image, owners
from windlass.compat.olmo_core.jobs import is_running_in_beaker_batch_job
from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, PreconditionError, UsageError, WaitTimeoutError, WindlassError

__all__ = ["BeakerEnvSecret", "BeakerEnvVar", "BeakerLaunchConfig", "BeakerWekaBucket", "StepWatch", "Stuck"]

if TYPE_CHECKING:
    from windlass.backends.beaker.values import ExperimentRef
    from windlass.compat.gantry.account import GantryAccount
    from windlass.compat.gantry.request import GantryRequest


_LAUNCHED_BY = "3.0.0"
"""Version of OLMo-core that is assumed if none is installed."""


@dataclass
class BeakerEnvVar(Base):
    """Variable of the job."""

    name: str
    value: str


@dataclass
class BeakerEnvSecret(Base):
    """Variable of the job whose value is a secret; the secret may be missing unless `required`."""

    name: str
    secret: str
    required: bool = True


@dataclass
class BeakerWekaBucket(Base):
    """Weka bucket and its mount path in the job."""

    bucket: str
    mount: str


@dataclass
class BeakerLaunchConfig(Base):
    """Settings for a launch on Beaker; the fields are OLMo-core's own."""

    name: str
    cmd: list[str]
    torchrun: bool | None = None
    budget: str | None = None
    task_name: str = "train"
    workspace: str | None = None
    description: str | None = None
    beaker_image: str = dataclasses.field(default_factory=default_image)
    num_nodes: int = 1
    num_gpus: int = 8
    shared_memory: str = "10GiB"
    clusters: list[str] = dataclasses.field(default_factory=lambda: ["ai2/jupiter"])
    hostnames: list[str] | None = None
    gpu_types: list[str] | None = None
    tags: list[str] | None = None
    shared_filesystem: bool = False
    priority: str = "normal"
    preemptible: bool = True
    min_runtime: str | None = None
    retries: int | None = None
    env_vars: list[BeakerEnvVar] = dataclasses.field(default_factory=list)
    env_secrets: list[BeakerEnvSecret] = dataclasses.field(default_factory=list)
    google_credentials_secret: str | None = None
    aws_config_secret: str | None = None
    aws_credentials_secret: str | None = None
    weka_buckets: list[BeakerWekaBucket] = dataclasses.field(default_factory=list)
    allow_dirty: bool = False
    host_networking: bool | None = None
    git: GitRepoState = dataclasses.field(default_factory=GitRepoState.from_env)
    result_dir: str = "/results"
    system_python: bool = True
    num_execution_units: int | None = None
    follow: bool = True
    slack_notifications: bool | None = None
    launch_timeout: int | None = None
    step_timeout: int | None = None
    step_soft_timeout: int | None = None
    pre_setup: str | None = None
    post_setup: str | None = None

    @property
    def default_env_vars(self) -> list[tuple[str, str]]:
        """Return the variables that every job gets unless `env_vars` overrides them."""
        found = [
            ("NCCL_DEBUG", "INFO"),
            ("LOG_FILTER_TYPE", "local_rank0_only"),
            ("OMP_NUM_THREADS", "8"),
            ("R2_PROFILE", "R2"),
            ("S3_PROFILE", "S3"),
            ("WEKA_PROFILE", "WEKA"),
            ("NUM_NODES", str(self.num_nodes)),
            ("OLMO_CORE_VERSION", _olmo_core_version()),
            ("FORCE_COLOR", "1"),
            ("TORCH_LOGS", "recompiles,graph_breaks"),
            ("PYTORCH_KERNEL_CACHE_PATH", "/root/.cache/torch/kernels"),
        ]
        return [*found, ("OLMO_SHARED_FS", "1")] if self.shared_filesystem else found

    def build_recipe(
        self,
        account: GantryAccount | None = None,
        *,
        follow: bool | None = None,
        slack_notifications: bool | None = None,
        launch_timeout: int | None = None,
        step_timeout: int | None = None,
        step_soft_timeout: int | None = None,
        torchrun: bool | None = None,
    ) -> tuple[Recipe, dict[str, Any]]:
        """Return the gantry recipe for this configuration, and the options for following its launch.

        Args:
            account: account to look up secrets and images in; without one, they are assumed to exist.

        Raises:
            AccessError: a required secret is not in the workspace.
            UsageError: limits on steps, or Slack, without following.
        """
        follow = self.follow if follow is None else follow
        watching = {
            "show_logs": follow,
            "start_timeout": _first(launch_timeout, self.launch_timeout),
            "inactive_timeout": _first(step_timeout, self.step_timeout),
            "inactive_soft_timeout": _first(step_soft_timeout, self.step_soft_timeout),
        }
        slack = _first(slack_notifications, self.slack_notifications)
        if not follow:
            self._check_unfollowed(slack=slack, watching=watching)
        return self._ganged(self._on_one_node(account, torchrun)), watching

    def _on_one_node(self, account: GantryAccount | None, torchrun: bool | None) -> Recipe:
        """Return the recipe, without the settings for running on several nodes."""
        torchrun = _first(torchrun, self.torchrun)
        if torchrun is None:
            torchrun = self.num_gpus > 1 or (self.num_gpus >= 1 and self.num_nodes > 1)
        return Recipe(
            args=["python", *self.cmd] if self.cmd and self.cmd[0].endswith(".py") else list(self.cmd),
            name=self.name,
            task_name=self.task_name,
            description=self.description,
            workspace=self.workspace,
            budget=self.budget,
            priority=self.priority,
            preemptible=self.preemptible if self.min_runtime is None else None,
            min_runtime=self.min_runtime,
            beaker_image=self._image(account),
            env_vars=self._variables(),
            env_secrets=self._secrets(account),
            google_credentials_secret=self.google_credentials_secret,
            aws_config_secret=self.aws_config_secret,
            aws_credentials_secret=self.aws_credentials_secret,
            weka=[(bucket.bucket, bucket.mount) for bucket in self.weka_buckets],
            results=self.result_dir,
            system_python=self.system_python,
            torchrun=torchrun,
            pre_setup=self.pre_setup,
            post_setup=self.post_setup,
            git_repo=self.git.to_checkout(is_online=account is not None),
            allow_dirty=self.allow_dirty,
            gpus=self.num_gpus,
            shared_memory=self.shared_memory,
            clusters=None if self.hostnames else self.clusters,
            hostnames=self.hostnames,
            gpu_types=None if self.hostnames else self.gpu_types,
            tags=None if self.hostnames else self.tags,
            retries=self.retries,
        )

    def dry_run(self, account: GantryAccount | None = None, **settings: Any) -> GantryRequest:
        """Print the spec that `launch` with the same settings would submit.

        Makes no requests without an account.
        """
        from windlass.compat.gantry.request import prepare, yaml_of  # lazy: imports git

        recipe, _ = self.build_recipe(account, **settings)
        request = prepare(recipe, account=account)
        for note in (*_notes(self, settings), *request.notes):
            sys.stderr.write(f"note: {note}\n")
        sys.stdout.write(f"# {request.name}\n{yaml_of(request.spec)}")
        return request

    def launch(self, **settings: Any) -> ExperimentRef:
        """Submit to Beaker, and follow the experiment unless `follow` is False.

        The settings are described at `build_recipe`.

        Raises:
            WindlassError: the launch is rejected, or the followed experiment failed (`experiment-failed`).
        """
        from windlass.backends.beaker.service import BeakerService  # lazy: the client costs half a second
        from windlass.compat.gantry.online import OnlineAccount
        from windlass.compat.gantry.request import launch
        from windlass.compat.olmo_core.launch_config import StepWatch, Stuck

        service = BeakerService()
        try:
            recipe, watching = self.build_recipe(OnlineAccount(service, self.workspace or ""), **settings)
            for note in _notes(self, settings):
                _tell(f"note: {note}")
            steps = StepWatch(
                timeout_s=watching["inactive_timeout"], soft_s=watching["inactive_soft_timeout"], tell=_tell
            )
            made: list[ExperimentRef] = []
            try:
                launched = launch(
                    recipe,
                    following=FollowOptions.of(
                        **{key if key == "show_logs" else f"{key}_s": value for key, value in watching.items()}
                    ),
                    service=service,
                    on_line=steps.hear,
                    on_pause=steps.look,
                    on_made=lambda request, workload: made.append(workload),
                )
            except Stuck as error:
                service.cancel(made[0].id, error.message)
                raise
        finally:
            service.close()
        job = launched.job
        if job is not None and job.status != "succeeded":
            message = f"{launched.workload.name} did not succeed: {job.status} (exit code {job.exit_code})"
            raise WindlassError(message, hint=f"windlass beaker show {launched.workload.id}", code="experiment-failed")
        return launched.workload

    def _ganged(self, recipe: Recipe) -> Recipe:
        """Return the recipe for several nodes, which fail together and wait up to 90 minutes for one another."""
        is_several = self.num_nodes > 1
        networking = is_several if self.host_networking is None else self.host_networking
        made = dataclasses.replace(recipe, leader_selection=is_several, host_networking=networking)
        if not is_several:
            return made
        return dataclasses.replace(
            made,
            replicas=self.num_nodes,
            propagate_failure=True,
            propagate_preemption=True,
            synchronized_start_timeout="90m",
        )

    def _check_unfollowed(self, *, slack: bool | None, watching: Mapping[str, object]) -> None:
        names = {"inactive_timeout": "step_timeout", "inactive_soft_timeout": "step_soft_timeout"}
        given = [name for key, name in names.items() if watching[key] is not None]
        given += ["slack_notifications"] if slack else []
        if given:
            hint = f"set `follow=True`, or remove `{given[0]}`"
            raise UsageError(
                f"`{given[0]}` applies only while the logs are followed", hint=hint, code="conflicting-options"
            )

    def _variables(self) -> list[tuple[str, str]]:
        given = [(variable.name, variable.value) for variable in self.env_vars]
        names = {name for name, _ in given}
        return given + [(name, value) for name, value in self.default_env_vars if name not in names]

    def _secrets(self, account: GantryAccount | None) -> list[tuple[str, str]]:
        if account is None or is_running_in_beaker_batch_job():  # every rank builds this, so make no requests
            return [(each.name, each.secret) for each in self.env_secrets]
        known = {name.lower() for name in account.secrets()} if self.env_secrets else set()
        found = []
        for each in self.env_secrets:
            if each.secret.lower() in known:
                found.append((each.name, each.secret))
            elif each.required:
                message = f"the workspace {account.workspace} has no secret `{each.secret}`"
                hint = f"windlass beaker secret push {each.secret}, or `required=False`"
                raise AccessError(message, hint=hint, code="beaker-secret-missing")
            else:
                _tell(f"note: the workspace {account.workspace} has no secret `{each.secret}`; {each.name} is not set")
        return found

    def _image(self, account: GantryAccount | None) -> str:
        image = str(self.beaker_image)
        if account is None:
            return image
        names = [image] if "/" in image else [image, *(f"{owner}/{image}" for owner in owners())]
        for name in names:
            if (found := account.image_id(name)) is not None:
                return found
        raise PreconditionError(f"Beaker has no image `{image}`", hint="OWNER/NAME, or an id", code="beaker-not-found")


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _olmo_core_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # lazy: reads the installed packages

    try:
        return version("ai2-olmo-core")
    except PackageNotFoundError:
        return _LAUNCHED_BY


def _notes(config: BeakerLaunchConfig, settings: Mapping[str, Any]) -> list[str]:
    notes = []
    slack = _first(settings.get("slack_notifications"), config.slack_notifications)
    if slack is not False and (slack or "SLACK_WEBHOOK_URL" in os.environ):
        notes.append("slack_notifications: windlass sends nothing to Slack; limits and preemptions are printed here")
    if config.num_execution_units is not None:
        notes.append("num_execution_units: windlass does not choose hosts by location; set `hostnames`")
    return notes


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


_STEP = re.compile(rb"\[olmo_core\.[^\]]+\].*\[[^\]]*step=\d+")
_SETTLING_S, _SOFT_SETTLING_S = 3600.0, 1800.0
"""Limit before the first step, to allow for loading, compiling and a first evaluation."""
_WARN_AGAIN_S = 3600.0


class Stuck(WaitTimeoutError):
    """Error for training that no longer takes steps."""


@dataclass(slots=True, kw_only=True)
class StepWatch:
    """Watchdog that raises `Stuck` after `timeout_s` without a step.

    It warns after `soft_s`, at most once an hour.
    """

    timeout_s: float | None
    soft_s: float | None
    tell: Callable[[str], None]
    began: float | None = None
    stepped: float | None = None
    warned: float = field(default=float("-inf"))

    def hear(self, line: bytes, now: float) -> None:
        """Process a log line; `now` is the monotonic time in seconds."""
        self.began = now if self.began is None else self.began
        if _STEP.search(line):
            self.stepped = now

    def look(self, now: float) -> None:
        """Check the limits, which apply once the first line has arrived."""
        if self.began is None:
            return
        hard, soft = self._silence(now, self.timeout_s, _SETTLING_S), self._silence(now, self.soft_s, _SOFT_SETTLING_S)
        if hard is not None:
            message = f"no step for {hard:.0f} s"
            raise Stuck(message, hint="raise `step_timeout` if the steps are slow", code="experiment-failed")
        if soft is not None and now - self.warned > _WARN_AGAIN_S:
            self.warned = now
            self.tell(f"warning: no step for {soft:.0f} s")

    def _silence(self, now: float, limit_s: float | None, settling_s: float) -> float | None:
        """Return the seconds since the last step if they exceed the limit, else None."""
        if limit_s is None or self.began is None:
            return None
        since = self.began if self.stepped is None else self.stepped
        allowed = max(limit_s, settling_s) if self.stepped is None else limit_s
        return now - since if now - since > allowed else None
