"""All options of the mason command line: mason's own, its retired ones, and windlass's."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from windlass.compat.mason import values
from windlass.core.dataclass import dataclass

__all__ = ["FLAGS", "OWN", "RETIRED", "MasonFlag", "Takes"]


class Takes(Enum):
    """Number of values of an option."""

    NONE = "no value"
    ONE = "one value"
    EACH = "one value each time, and it may be given again"
    SOME = "one value or more"
    ANY = "any number of values"


def _text(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class MasonFlag:
    """Option of mason: its spelling, its values, the field that it sets, its help."""

    name: str
    """As typed: `--num_nodes`."""
    field: str = ""
    """The field of `MasonOptions` or `OwnOptions`; empty for one that does nothing."""
    takes: Takes = Takes.ONE
    metavar: str = "TEXT"
    read: Callable[[str], Any] = _text
    help: str
    note: str = ""
    """Note to print when it is given."""
    may_be_cut: bool = True
    """Permission to abbreviate it; not set for options added to mason after August 2026, which would break old scripts."""


def _switch(name: str, help_line: str, *, field: str = "", note: str = "") -> MasonFlag:
    field = field or ("" if note else name.lstrip("-").replace("-", "_"))
    return MasonFlag(name=name, field=field, takes=Takes.NONE, metavar="", help=help_line, note=note)


FLAGS: tuple[MasonFlag, ...] = (
    MasonFlag(
        name="--cluster",
        field="cluster",
        takes=Takes.SOME,
        metavar="CLUSTER...",
        read=values.listed,
        help="Clusters that the job may run on; repeatable. Required.",
    ),
    MasonFlag(
        name="--hostname",
        field="hostname",
        takes=Takes.SOME,
        metavar="HOST...",
        read=values.listed,
        help="Hosts on which the job may run, instead of clusters.",
    ),
    MasonFlag(
        name="--max_retries",
        field="max_retries",
        metavar="N",
        read=values.retries,
        help="Number of times that Beaker retries a failed task. [0]",
    ),
    MasonFlag(name="--budget", field="budget", metavar="ORG/NAME", help="The budget. [the workspace's]"),
    MasonFlag(name="--gpus", field="gpus", metavar="N", read=values.natural, help="GPUs per node. [0]"),
    MasonFlag(
        name="--shared_memory",
        field="shared_memory",
        metavar="SIZE",
        read=values.size,
        help="Size of /dev/shm. [10.24gb]",
    ),
    MasonFlag(name="--num_nodes", field="num_nodes", metavar="N", read=values.count, help="Nodes of a task. [1]"),
    MasonFlag(name="--image", field="image", metavar="IMAGE", read=values.filled, help="Beaker image to run in."),
    MasonFlag(
        name="--workspace", field="workspace", metavar="ORG/NAME", help="The workspace. [the one in your Beaker config]"
    ),
    MasonFlag(
        name="--beaker_datasets",
        field="beaker_datasets",
        takes=Takes.ANY,
        metavar="PATH:ID...",
        read=values.dataset_mount,
        help="Datasets of Beaker and their mount paths; repeatable.",
    ),
    MasonFlag(
        name="--extra_weka_buckets",
        field="extra_weka_buckets",
        takes=Takes.SOME,
        metavar="BUCKET...",
        read=values.bucket,
        help="More Weka buckets, mounted at /weka/BUCKET on clusters with Weka.",
        may_be_cut=False,
    ),
    MasonFlag(
        name="--description",
        field="description",
        help="Description of the experiment. [the variable RUN_NAME, or `Beaker-Mason job.`]",
    ),
    MasonFlag(
        name="--task_name",
        field="task_name",
        metavar="NAME",
        read=values.filled,
        help="Name of the tasks. [beaker_mason]",
    ),
    MasonFlag(
        name="--priority",
        field="priority",
        metavar="WORD",
        read=values.priority,
        help=f"{', '.join(values.PRIORITIES)}. [normal]",
    ),
    _switch("--preemptible", "Let Beaker preempt the job. Deprecated; use --min_runtime 0."),
    MasonFlag(
        name="--min_runtime",
        field="min_runtime_ns",
        metavar="TIME",
        read=values.duration_ns,
        help="How long a job is protected from preemption, such as 30m.",
    ),
    MasonFlag(
        name="--no_auto_resume",
        field="no_auto_resume",
        takes=Takes.NONE,
        metavar="",
        help="Do not restart the job after a preemption.",
        may_be_cut=False,
    ),
    _switch("--pure_docker_mode", "Run in the image's folder with its PATH, not in this folder with your PATH."),
    _switch("--mount_docker_socket", "Mount the host's Docker socket."),
    _switch("--no_hf_cache_env", "Has no effect any more.", note="--no_hf_cache_env has no effect any more"),
    _switch("--no_mount_nfs", "Has no effect any more.", note="--no_mount_nfs has no effect any more"),
    _switch("--non_resumable", "Do not set a tracker run id for a run that could be resumed."),
    _switch("--no_auto_dataset_cache", "Do not prepare the dataset before the launch."),
    MasonFlag(
        name="--auto_output_dir_path",
        field="auto_output_dir_path",
        metavar="PATH",
        help="Where --output_dir of a training is moved to on Weka clusters; empty: leave it.",
    ),
    MasonFlag(
        name="--auto_checkpoint_state_dir",
        field="auto_checkpoint_state_dir",
        metavar="PATH",
        help="Where --checkpoint_state_dir of a GRPO training is moved to; empty: leave it.",
    ),
    MasonFlag(
        name="--artifact_ttl",
        field="artifact_ttl",
        metavar="TIME",
        help="Append a folder `tmp-TIME` to both, which a cleaner may remove after that time.",
    ),
    MasonFlag(
        name="--env",
        field="env",
        takes=Takes.EACH,
        metavar="NAME=VALUE",
        read=values.variable,
        help="A variable of the job; repeatable.",
    ),
    MasonFlag(
        name="--secret",
        field="secret",
        takes=Takes.EACH,
        metavar="NAME=SECRET",
        read=values.secret,
        help="A variable from a secret of the workspace; repeatable.",
    ),
    _switch("--no-host-networking", "Do not use the host's network."),
    MasonFlag(
        name="--timeout",
        field="timeout_ns",
        metavar="TIME",
        read=values.duration_ns,
        help="Time after which Beaker ends a job, such as 15m or 2h30m.",
    ),
)
"""mason's options in its order; they may be abbreviated if unambiguous."""

RETIRED: tuple[MasonFlag, ...] = (
    MasonFlag(
        name="--gs_model_name",
        metavar="NAME",
        help="Retired.",
        note="--gs_model_name has no effect any more: mason copies no models to buckets",
    ),
    _switch("--resumable", "Retired.", note="--resumable is retired: GRPO trainings are always resumable"),
)
"""Options of older versions, accepted with a note so that old scripts still work."""

OWN: tuple[MasonFlag, ...] = (
    MasonFlag(
        name="--emit",
        field="emit",
        metavar="spec|beaker|plan",
        read=values.filled,
        help="Print windlass's experiment, Beaker's spec, or what would happen; submit nothing.",
    ),
    MasonFlag(
        name="--on",
        field="on",
        metavar="SITE[/PARTITION]",
        read=values.filled,
        help="Run at this site instead of on Beaker.",
    ),
    MasonFlag(
        name="--run-id",
        field="run_id",
        metavar="ID",
        read=values.run_id,
        help="Continue that run with its checkpoints and tracker page; `auto`: an id per command line.",
    ),
    MasonFlag(
        name="--user",
        field="user",
        metavar="NAME",
        read=values.filled,
        help="Your name at Beaker, instead of asking Beaker.",
    ),
    MasonFlag(
        name="--has-secret",
        field="has_secret",
        takes=Takes.EACH,
        metavar="NAME",
        help="A secret of the workspace, instead of asking Beaker; repeatable.",
    ),
    _switch("--offline", "Make no request to Beaker (with --emit).", field="is_offline"),
    _switch("--yes", "Answer yes to all questions.", field="has_agreed"),
    MasonFlag(
        name="--set",
        field="overrides",
        takes=Takes.EACH,
        metavar="KEY=VALUE",
        help="With --on: change the experiment, such as tasks.main.gpus=4; repeatable.",
    ),
    MasonFlag(
        name="--map",
        field="paths",
        takes=Takes.EACH,
        metavar="PATH=FOLDER",
        read=values.variable,
        help="With --on: path of a folder of Beaker's storage at the site; repeatable.",
    ),
    MasonFlag(name="--env-uv", field="env_uv", metavar="DIR", help="With --on: project folder with the lock file."),
    MasonFlag(name="--env-python", field="env_python", metavar="PATH", help="With --on: interpreter to use unchanged."),
    MasonFlag(name="--env-image", field="env_image", metavar="IMAGE", help="With --on: container image."),
    MasonFlag(
        name="--cache",
        field="cache",
        metavar="here|there|none",
        read=values.cache,
        help="Where a training's dataset is cached: here before the launch, or there as a step of the run (with --on).",
    ),
    MasonFlag(name="--name", field="name", metavar="NAME", help="With --on: name of the experiment."),
    _switch(
        "--split-learners",
        "With --on: split --num_learners_per_node to fit the site's nodes, such as `8` to `4 4`.",
        field="is_split",
    ),
    _switch("--snapshot", "With --on: snapshot a dirty tree, and run the snapshot.", field="is_snapshot"),
    _switch("--allow-dirty", "With --on: run a dirty tree in place.", field="is_allow_dirty"),
    _switch("--best-effort", "With --on: note settings that the site does not support.", field="is_best_effort"),
    _switch("--detach", "With --on: return at once; the run continues in the background.", field="is_detached"),
)
"""Options of windlass, which cannot be abbreviated."""
