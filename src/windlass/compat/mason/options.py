"""Options of a mason command line as values, under mason's names."""

from __future__ import annotations

from windlass.core.dataclass import dataclass

__all__ = ["DatasetMount", "MasonOptions", "OwnOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetMount:
    """Value of `--beaker_datasets PATH:ID`: a Beaker dataset and its mount path."""

    mount_path: str
    dataset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasonOptions:
    """mason's options after applying defaults; an empty tuple or None means that an option was not given."""

    cluster: tuple[str, ...]
    hostname: tuple[str, ...] = ()
    max_retries: int = 0
    budget: str | None = None
    gpus: int = 0
    shared_memory: str = "10.24gb"
    num_nodes: int = 1
    image: str = "ai2/cuda11.8-cudnn8-dev-ubuntu20.04"
    workspace: str | None = None
    beaker_datasets: tuple[DatasetMount, ...] = ()
    extra_weka_buckets: tuple[str, ...] = ()
    description: str = "Beaker-Mason job."
    task_name: str = "beaker_mason"
    priority: str = "normal"
    preemptible: bool = False
    min_runtime_ns: int | None = None
    no_auto_resume: bool = False
    pure_docker_mode: bool = False
    mount_docker_socket: bool = False
    non_resumable: bool = False
    no_auto_dataset_cache: bool = False
    auto_output_dir_path: str = "/weka/oe-adapt-default/allennlp/deletable_checkpoint"
    auto_checkpoint_state_dir: str = "/weka/oe-adapt-default/allennlp/deletable_checkpoint_states"
    artifact_ttl: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    """Names and values in the order of the command line; each name occurs once."""
    secret: tuple[tuple[str, str], ...] = ()
    """Names of variables and of the workspace secrets that they contain."""
    no_host_networking: bool = False
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOptions:
    """Options of `windlass mason` that mason does not have."""

    emit: str = ""
    """`spec`, `beaker` or `plan`; empty to submit."""
    on: str = ""
    """SITE[/PARTITION] to run on instead of Beaker itself."""
    run_id: str = ""
    """Run to continue: `auto` for the same run with the same command line, or empty for a new run."""
    user: str = ""
    """User name, instead of asking Beaker."""
    has_secret: tuple[str, ...] = ()
    """Names of the workspace's secrets, instead of asking Beaker."""
    is_offline: bool = False
    has_agreed: bool = False
    """`--yes`: do not prompt."""
    overrides: tuple[str, ...] = ()
    """`--set KEY=VALUE`: changes to the converted experiment, with `--on`."""
    paths: tuple[tuple[str, str], ...] = ()
    """`--map PATH=FOLDER`: folder at the site for a path of Beaker's storage."""
    env_uv: str = ""
    env_python: str = ""
    env_image: str = ""
    cache: str = ""
    """Place where a dataset is cached: `here`, `there` or `none`; if empty, `here` for Beaker and `there` with `--on`."""
    name: str = ""
    is_split: bool = False
    """`--split-learners`: rewrite `--num_learners_per_node` for smaller nodes."""
    is_snapshot: bool = False
    is_allow_dirty: bool = False
    is_best_effort: bool = False
    is_detached: bool = False
