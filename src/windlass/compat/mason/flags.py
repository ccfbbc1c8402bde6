"""All options of the mason command line: mason's own, retired ones, and windlass's."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from windlass.compat.mason import values
from windlass.core.dataclass import dataclass

__all__ = ["FLAGS", "OWN", "RETIRED", "MasonFlag", "Takes"]


class Takes(Enum):
    """Number of values that an option takes."""

    NONE = "no value"
    ONE = "one value"
    EACH = "one value; repeatable"
    SOME = "one value or more"
    ANY = "any number of values"


def _text(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class MasonFlag:
    """Option of mason: how it is spelt, what values it takes, which field it sets, its help text."""

    name: str
    """Name as typed, such as `--num_nodes`."""
    field: str = ""
    """Field of `MasonOptions` or `OwnOptions`; empty for an option without effect."""
    takes: Takes = Takes.ONE
    metavar: str = "TEXT"
    read: Callable[[str], Any] = _text
    help: str
    note: str = ""
    """Note that is printed when the option is given."""
    may_be_cut: bool = True
    """Permission to abbreviate it; False for options added after August 2026, which would make old abbreviations ambiguous."""


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
        help="Time for which a job is protected from preemption, such as 30m.",
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
    _switch("--no_hf_cache_env", "No longer has an effect.", note="--no_hf_cache_env no longer has an effect"),
    _switch("--no_mount_nfs", "No longer has an effect.", note="--no_mount_nfs no longer has an effect"),
    _switch("--non_resumable", "Do not set a tracker run id for a resumable run."),
    _switch("--no_auto_dataset_cache", "Do not prepare the dataset before the launch."),
    MasonFlag(
        name="--auto_output_dir_path",
        field="auto_output_dir_path",
        metavar="PATH",
        help="Folder that replaces --output_dir on Weka clusters; empty: keep --output_dir.",
    ),
    MasonFlag(
        name="--auto_checkpoint_state_dir",
        field="auto_checkpoint_state_dir",
        metavar="PATH",
        help="Folder that replaces --checkpoint_state_dir of GRPO; empty: keep it.",
    ),
    MasonFlag(
        name="--artifact_ttl",
        field="artifact_ttl",
        metavar="TIME",
        help="Append a folder `tmp-TIME` to both, for a cleaner to remove after that time.",
    ),
    MasonFlag(
        name="--env",
        field="env",
        takes=Takes.EACH,
        metavar="NAME=VALUE",
        read=values.variable,
        help="Variable of the job; repeatable.",
    ),
    MasonFlag(
        name="--secret",
        field="secret",
        takes=Takes.EACH,
        metavar="NAME=SECRET",
        read=values.secret,
        help="Variable set to a secret of the workspace; repeatable.",
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
        note="--gs_model_name no longer has an effect: mason copies no models to buckets",
    ),
    _switch("--resumable", "Retired.", note="--resumable is retired: GRPO runs are always resumable"),
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
        help="Continue this run, with its checkpoints and tracker page; `auto`: one id per command line.",
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
        help="Name of a workspace secret, instead of asking Beaker; repeatable.",
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
        help="With --on: path at the site for a folder of Beaker's storage; repeatable.",
    ),
    MasonFlag(name="--env-uv", field="env_uv", metavar="DIR", help="With --on: project folder with the lock file."),
    MasonFlag(name="--env-python", field="env_python", metavar="PATH", help="With --on: interpreter to use unchanged."),
    MasonFlag(name="--env-image", field="env_image", metavar="IMAGE", help="With --on: container image."),
    MasonFlag(
        name="--cache",
        field="cache",
        metavar="here|there|none",
        read=values.cache,
        help="Where to cache the dataset: `here` before the launch, or `there` as a step of the run (with --on).",
    ),
    MasonFlag(name="--name", field="name", metavar="NAME", help="With --on: name of the experiment."),
    _switch(
        "--split-learners",
        "With --on: split --num_learners_per_node to fit the site's nodes; `8` becomes `4 4`, for example.",
        field="is_split",
    ),
    _switch("--snapshot", "With --on: snapshot a dirty tree and run the snapshot.", field="is_snapshot"),
    _switch("--allow-dirty", "With --on: run a dirty tree in place.", field="is_allow_dirty"),
    _switch(
        "--best-effort",
        "With --on: print a note for settings that the site does not support, instead of failing.",
        field="is_best_effort",
    ),
    _switch("--detach", "With --on: return immediately; the run continues in the background.", field="is_detached"),
)
"""Options of windlass, which cannot be abbreviated."""
