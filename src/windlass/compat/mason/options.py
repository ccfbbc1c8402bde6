"""Options of a mason command line, as values; the names are mason's own."""

from __future__ import annotations

from windlass.core.dataclass import dataclass

__all__ = ["DatasetMount", "MasonOptions", "OwnOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetMount:
    """`--beaker_datasets PATH:ID`: a dataset of Beaker, and where jobs see it."""

    mount_path: str
    dataset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasonOptions:
    """The options of mason, after their defaults; an empty tuple and None stand for an option that was not given."""

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
    """Names and values, in the order of the command line, each name once."""
    secret: tuple[tuple[str, str], ...] = ()
    """Names of variables and the workspace's secrets they hold."""
    no_host_networking: bool = False
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOptions:
    """Options of `windlass mason` beside mason's own."""

    emit: str = ""
    """`spec`, `beaker`, `plan`, or empty: submit."""
    on: str = ""
    """SITE[/PARTITION] to run on instead of Beaker itself."""
    run_id: str = ""
    """The run to go on with; `auto`: the same one for the same command line; empty: a new one."""
    user: str = ""
    """The user to take instead of asking Beaker."""
    has_secret: tuple[str, ...] = ()
    """Secrets to take the workspace to hold, instead of asking Beaker."""
    is_offline: bool = False
    has_agreed: bool = False
    """`--yes`: ask nothing."""
    overrides: tuple[str, ...] = ()
    """`--set KEY=VALUE`: changes of the experiment that `--on` makes."""
    paths: tuple[tuple[str, str], ...] = ()
    """`--map PATH=FOLDER`: where a folder of Beaker's storage is there."""
    env_uv: str = ""
    env_python: str = ""
    env_image: str = ""
    cache: str = ""
    """`here`, `there` or `none`: where a dataset is cached; empty: here for Beaker, there with `--on`."""
    name: str = ""
    is_split: bool = False
    """`--split-learners`: rewrite `--num_learners_per_node` for smaller nodes."""
    is_snapshot: bool = False
    is_allow_dirty: bool = False
    is_best_effort: bool = False
    is_detached: bool = False
