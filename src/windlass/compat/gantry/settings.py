"""Settings of a gantry launch: the fields of its Python API, checked before any request is made."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, Self

from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError

if TYPE_CHECKING:
    from windlass.compat.gantry.checkout import Checkout

__all__ = ["DEFAULT_TOKEN_SECRET", "Pair", "RecipeSettings", "python_version"]

DEFAULT_TOKEN_SECRET = "GITHUB_TOKEN"  # noqa: S105 - a name
Pair = str | tuple[str, str]


def python_version() -> str:
    """Return the major and minor version of this Python, for creating an environment in the job."""
    return ".".join(platform.python_version_tuple()[:2])


@dataclass(frozen=True, slots=True)
class RecipeSettings:
    """Settings of a workload, with the same fields as gantry's `Recipe`; `args` is the command."""

    args: Sequence[str]
    name: str | None = None
    description: str | None = None
    workspace: str | None = None
    budget: str | None = None
    group_names: Sequence[str] | None = None
    allow_dirty: bool = False
    yes: bool | None = None
    save_spec: str | None = None
    callbacks: Sequence[object] | None = None
    clusters: Sequence[str] | None = None
    gpu_types: Sequence[str] | None = None
    interconnect: Literal["ib", "tcpxo"] | None = None
    tags: Sequence[str] | None = None
    hostnames: Sequence[str] | None = None
    cpus: float | None = None
    gpus: int | None = None
    memory: str | None = None
    shared_memory: str | None = None
    beaker_image: str | None = None
    docker_image: str | None = None
    datasets: Sequence[str] | None = None
    env_vars: Sequence[Pair] | None = None
    env_secrets: Sequence[Pair] | None = None
    dataset_secrets: Sequence[Pair] | None = None
    mounts: Sequence[Pair] | None = None
    weka: Sequence[Pair] | None = None
    uploads: Sequence[Pair] | None = None
    ref: str | None = None
    branch: str | None = None
    remote: str | None = None
    git_repo: Checkout | None = None
    gh_token_secret: str = DEFAULT_TOKEN_SECRET
    aws_config_secret: str | None = None
    aws_credentials_secret: str | None = None
    google_credentials_secret: str | None = None
    results: str = "/results"
    task_name: str = "main"
    priority: str | None = None
    task_timeout: str | None = None
    preemptible: bool | None = None
    min_runtime: str | None = None
    auto_resume: bool | None = None
    retries: int | None = None
    replicas: int | None = None
    leader_selection: bool | None = None
    host_networking: bool | None = None
    propagate_failure: bool | None = None
    propagate_preemption: bool | None = None
    synchronized_start_timeout: str | None = None
    skip_tcpxo_setup: bool = False
    skip_nccl_setup: bool = False
    runtime_dir: str = "/gantry-runtime"
    exec_method: Literal["exec", "bash"] = "exec"
    torchrun: bool = False
    pre_setup: str | None = None
    post_setup: str | None = None
    python_manager: Literal["uv", "conda"] | None = None
    default_python_version: str = dataclasses.field(default_factory=python_version)
    system_python: bool = False
    install: str | None = None
    no_python: bool = False
    uv_venv: str | None = None
    uv_extras: Sequence[str] | None = None
    uv_all_extras: bool | None = None
    uv_torch_backend: str | None = None
    uv_cache_dir: str | None = None
    conda_file: str | None = None
    conda_env: str | None = None

    @classmethod
    def multi_node_torchrun(
        cls,
        cmd: Sequence[str],
        gpus_per_node: int,
        num_nodes: int,
        shared_memory: str | None = "10GiB",
        **settings: object,
    ) -> Self:
        """Return settings for a command that torchrun starts on several nodes."""
        made = cls(args=cmd, gpus=gpus_per_node, replicas=num_nodes, shared_memory=shared_memory, torchrun=True)
        return dataclasses.replace(made, **settings)  # type: ignore[arg-type]

    def with_replicas(
        self,
        replicas: int,
        leader_selection: bool = True,
        host_networking: bool = True,
        propagate_failure: bool = True,
        propagate_preemption: bool = True,
        synchronized_start_timeout: str = "5m",
        skip_nccl_setup: bool = False,
    ) -> Self:
        """Return a copy with several replicas, which by default have a leader.

        Raises:
            UsageError: fewer than two replicas.
        """
        if replicas < 2:
            raise UsageError(
                f"{replicas} replicas are too few for a gang", hint="write 2 or more", code="invalid-value"
            )
        return dataclasses.replace(
            self,
            replicas=replicas,
            leader_selection=leader_selection,
            host_networking=host_networking,
            propagate_failure=propagate_failure,
            propagate_preemption=propagate_preemption,
            synchronized_start_timeout=synchronized_start_timeout,
            skip_nccl_setup=skip_nccl_setup,
        )

    @property
    def num_replicas(self) -> int | None:
        """Return the number of replicas if there are several, else None."""
        return self.replicas if self.replicas is not None and self.replicas > 1 else None

    @property
    def is_led(self) -> bool:
        """Return True if the first replica leads."""
        if self.leader_selection is None:
            return bool(self.num_replicas and self.torchrun and self.host_networking is not False)
        return self.leader_selection

    def check(self) -> None:
        """Raise UsageError for contradictory options.

        Raises:
            UsageError: the message names both options.
        """
        if isinstance(self.args, str):
            raise UsageError(
                f"the command `{self.args}` is a single string", hint="give a list of words", code="invalid-value"
            )
        if not self.args:
            raise UsageError("no command", hint="give a list of words", code="missing-argument")
        for left, right, hint in self._conflicts():
            raise UsageError(f"`{left}` conflicts with `{right}`", hint=hint, code="conflicting-options")
        if self.torchrun and not self.gpus:
            raise UsageError("`--torchrun` without `--gpus`", hint="add `--gpus 8`", code="missing-argument")
        if self.replicas is not None and self.replicas < 1:
            message = f"`--replicas {self.replicas}`: at least 1 is required"
            raise UsageError(message, hint="write `--replicas 2`", code="invalid-value")
        for option, path in (("--results", self.results), ("--runtime-dir", self.runtime_dir)):
            if not PurePosixPath(path).is_absolute():
                raise UsageError(
                    f"`{option} {path}` is not an absolute path", hint=f"write `/{path}`", code="invalid-value"
                )
        if not self.task_name:
            raise UsageError("`--task-name` is empty", hint="write `--task-name main`", code="invalid-value")

    def _conflicts(self) -> list[tuple[str, str, str]]:
        """Return (option, conflicting option, remedy) for each conflict among the given options."""
        is_uv, is_conda = self.python_manager == "uv", self.python_manager == "conda"
        uv = (
            ("--uv-venv", self.uv_venv),
            ("--uv-extra", self.uv_extras),
            ("--uv-all-extras/--uv-no-extras", self.uv_all_extras is not None),
            ("--uv-torch-backend", self.uv_torch_backend),
        )
        conda = (("--conda-env", self.conda_env), ("--conda-file", self.conda_file))
        python = (("--python-manager", self.python_manager), ("--system-python", self.system_python), *uv, *conda)
        places = (
            ("--cluster", self.clusters),
            ("--gpu-type", self.gpu_types),
            ("--tag", self.tags),
            ("--interconnect", self.interconnect),
        )
        new = (("--min-runtime", self.min_runtime), ("--no-auto-resume", self.auto_resume is not None))
        conda_given = next((name for name, is_given in conda if is_given), "--python-manager conda")
        candidates = [
            (self.beaker_image, "--beaker-image", (("--docker-image", self.docker_image),), "keep one image"),
            (self.preemptible is not None, "--preemptible", new, "keep the newer options"),
            (self.hostnames, "--hostname", places, "a host belongs to one cluster: give hosts or clusters, not both"),
            (self.no_python, "--no-python", python, "keep one of them"),
            (is_uv, "--python-manager uv", conda, "write `--python-manager conda`"),
            (
                is_conda or self.conda_env or self.conda_file,
                conda_given,
                uv,
                "keep the uv options or the conda options",
            ),
            (self.system_python, "--system-python", (uv[0], conda[0]), "keep one of them"),
            (self.uv_extras, "--uv-extra", uv[2:3], "keep one of them"),
        ]
        return [
            (left, right, hint)
            for is_given, left, others, hint in candidates
            if is_given
            for right, is_right in others
            if is_right
        ]
