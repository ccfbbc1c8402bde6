"""Table of the options of `gantry run`: names, field of the recipe, kind of value, effect.

Source: `gantry run --help` of beaker-gantry 3.7.0 (90 options).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from windlass.core.dataclass import dataclass

__all__ = ["OPTIONS", "SECTIONS", "GantryOption", "Kind", "names"]

Kind = Literal["text", "whole", "number", "many", "flag", "switch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GantryOption:
    """Command-line option that `names` set and `off_names` turn off; `note` is printed if it has no effect."""

    names: tuple[str, ...]
    field: str
    kind: Kind
    help: str
    off_names: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    metavar: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """Return the long name or, if the option only turns something off, the long off-name."""
        return next((name for name in self.names if name.startswith("--")), "") or self.off_names[0]


def _text(names: str, field: str, help: str, metavar: str = "TEXT", *choices: str, note: str = "") -> GantryOption:  # noqa: A002
    return GantryOption(
        names=tuple(names.split()), field=field, kind="text", help=help, metavar=metavar, choices=choices, note=note
    )


def _many(names: str, field: str, help: str, metavar: str = "TEXT", note: str = "") -> GantryOption:  # noqa: A002
    return GantryOption(names=tuple(names.split()), field=field, kind="many", help=help, metavar=metavar, note=note)


def _whole(names: str, field: str, help: str) -> GantryOption:  # noqa: A002
    return GantryOption(names=tuple(names.split()), field=field, kind="whole", help=help, metavar="N")


def _flag(names: str, field: str, help: str, note: str = "") -> GantryOption:  # noqa: A002
    return GantryOption(names=tuple(names.split()), field=field, kind="flag", help=help, note=note)


def _switch(on: str, off: str, field: str, help: str) -> GantryOption:  # noqa: A002
    return GantryOption(names=tuple(on.split()), off_names=tuple(off.split()), field=field, kind="switch", help=help)


_FOLLOWING = "windlass does not run it; follow the job with `windlass beaker logs`"
_NO_CALLBACKS = "gantry's callbacks are not run; `windlass beaker show` has the job's state"

SECTIONS: dict[str, tuple[GantryOption, ...]] = {
    "Workload": (
        _text("-n --name", "name", "Name of the experiment. Default: made from the repository and the command."),
        _text("-d --description", "description", "Description of the experiment."),
        _text("-w --workspace", "workspace", "Beaker workspace. Default: [tool.gantry], then Beaker's settings."),
        _text("-b --budget", "budget", "Budget account. Default: [tool.gantry], then the workspace's."),
        _many("--group", "group_names", "Group the experiment belongs to; several allowed."),
    ),
    "Launch": (
        _switch("--show-logs", "--no-logs", "show_logs", "Print the logs until the experiment ends."),
        _text("--timeout", "timeout", "Maximum time to wait for the end: a duration, -1 for no limit, or 0 to not wait."),
        _text("--start-timeout", "start_timeout", "Cancel if it does not start within this time.", "TIME"),
        _text("--inactive-timeout", "inactive_timeout", "Cancel if the logs are silent for this time.", "TIME"),
        _text("--inactive-soft-timeout", "inactive_soft_timeout", "Warn if the logs are silent for this time.", "TIME"),
        _flag("--allow-dirty", "allow_dirty", "Launch despite uncommitted changes, which are not included."),
        _flag("-y --yes", "yes", "Do not prompt."),
        _flag("--dry-run", "dry_run", "Print what would be sent; write nothing, make no request."),
        _text("--save-spec", "save_spec", "Write the Beaker spec to this file.", "FILE"),
    ),
    "Callbacks (accepted with a note, not run)": (
        _many("--callback-module", "callback_modules", "Python module with callbacks.", note=_NO_CALLBACKS),
        _many("--callback", "callback_configs", "Callback by name or settings.", note=_NO_CALLBACKS),
        _text("--slack-webhook-url", "slack_webhook_url", "Where to send reports.", "URL", note=_FOLLOWING),
    ),
    "Placement": (
        _many("-c --cluster", "clusters", "Cluster, or a pattern such as 'ai2/*-h100'; several allowed."),
        _many("--gpu-type", "gpu_types", "Clusters with this GPU, such as h100."),
        _text("--interconnect", "interconnect", "Clusters with this interconnect.", "KIND", "ib", "tcpxo"),
        _many("--tag", "tags", "Clusters that have all of these tags."),
        _many("--hostname", "hostnames", "Only these hosts; excludes the other placement options."),
    ),
    "Resources (of each replica)": (
        GantryOption(names=("--cpus",), field="cpus", kind="number", help="CPU cores.", metavar="N"),
        _whole("--gpus", "gpus", "GPUs."),
        _text("--memory", "memory", "Memory, such as 2.5GiB.", "SIZE"),
        _text("--shared-memory", "shared_memory", "Size of /dev/shm.", "SIZE"),
    ),
    "Inputs": (
        _text("--beaker-image", "beaker_image", "Beaker image. Default: gantry's own image.", "NAME"),
        _text("--docker-image", "docker_image", "Public Docker image.", "NAME"),
        _many("--dataset", "datasets", "Dataset and its mount path.", "NAME[:SUB/PATH]:/MOUNT"),
        _many("-m --mount", "mounts", "Folder on the host and its mount path.", "HOST:/MOUNT"),
        _many("--weka", "weka", "Weka bucket and its mount path; restricts the job to clusters with Weka.", "BUCKET:/MOUNT"),
        _many("-u --upload", "uploads", "Local file or folder to upload, and its mount path.", "PATH:/MOUNT"),
        _many("--env", "env_vars", "Variable; without a value, it is taken from this shell.", "NAME[=VALUE]"),
        _many("--env-secret --secret-env", "env_secrets", "Variable set to a secret of the workspace.", "NAME[=SECRET]"),
        _many("--dataset-secret", "dataset_secrets", "Secret mounted as a file.", "SECRET:/MOUNT"),
        _text("--ref", "ref", "Commit to run. Default: the last one."),
        _text("--branch", "branch", "Branch to record. Default: the current branch."),
        _text("--remote", "remote", "GitHub repository to run without a checkout: account/name.", "REPO"),
        _text("--gh-token-secret", "gh_token_secret", "Secret with a GitHub token, for a private repository.", "NAME"),
        _text("--aws-config-secret", "aws_config_secret", "Secret with an AWS config file.", "NAME"),
        _text("--aws-credentials-secret", "aws_credentials_secret", "Secret with an AWS credentials file.", "NAME"),
        _text("--google-credentials-secret", "google_credentials_secret", "Secret with Google credentials.", "NAME"),
    ),
    "Outputs": (_text("--results", "results", "Folder of the results. Default: /results.", "PATH"),),
    "Task": (
        _text("-t --task-name", "task_name", "Name of the task. Default: main."),
        _text("--priority", "priority", "Priority.", "LEVEL", "low", "normal", "high", "urgent", "immediate"),
        _text("--task-timeout", "task_timeout", "Maximum run time of a job.", "TIME"),
        _text("--min-runtime", "min_runtime", "Minimum time before the job may be preempted.", "TIME"),
        GantryOption(
            names=(),
            off_names=("--no-auto-resume",),
            field="auto_resume",
            kind="switch",
            help="Do not restart after a preemption.",
        ),
        _switch("--preemptible", "--not-preemptible", "preemptible", "Old form of --min-runtime and --no-auto-resume."),
        _whole("--retries", "retries", "Number of times that Beaker retries a failed task."),
    ),
    "Several nodes": (
        _whole("--replicas", "replicas", "Replicas of the task."),
        _switch("--leader-selection", "--no-leader-selection", "leader_selection", "Make the first replica the leader."),
        _switch("--host-networking", "--no-host-networking", "host_networking", "Use the host's network."),
        _switch("--propagate-failure", "--no-propagate-failure", "propagate_failure", "Stop all replicas when one fails."),
        _switch("--propagate-preemption", "--no-propagate-preemption", "propagate_preemption", "Preempt all replicas when one is preempted."),
        _text("--synchronized-start-timeout", "synchronized_start_timeout", "Time within which all replicas must start.", "TIME"),
        _flag("--skip-tcpxo-setup", "skip_tcpxo_setup", "Old name of --skip-nccl-setup."),
        _flag("--skip-nccl-setup", "skip_nccl_setup", "Do not set NCCL variables."),
    ),
    "Runtime": (
        _text("--runtime-dir", "runtime_dir", "Folder of the checkout in the job. Default: /gantry-runtime.", "PATH"),
        _text("--exec-method", "exec_method", "How the command is executed. Default: exec.", "HOW", "exec", "bash"),
        _flag("--torchrun", "torchrun", "Start the command with torchrun on all replicas."),
        _text("--pre-setup", "pre_setup", "Command, or *.sh to source, to run first.", "COMMAND"),
        _text("--post-setup", "post_setup", "Command, or *.sh to source, to run just before the command.", "COMMAND"),
    ),
    "Python": (
        _text("--python-manager", "python_manager", "Tool that creates the environment.", "TOOL", "uv", "conda"),
        _text("--default-python-version", "default_python_version", "Python version of a new environment.", "VERSION"),
        _flag("--system-python", "system_python", "Install into the image's own Python."),
        _text("--install", "install", "Command, or *.sh to source, that installs the project.", "COMMAND"),
        _flag("--no-python", "no_python", "Do not create a Python environment."),
        _text("--uv-venv", "uv_venv", "Existing virtual environment in the image.", "PATH"),
        _many("--uv-extra", "uv_extras", "Extra of the project. Default: all extras.", "NAME"),
        _switch("--uv-all-extras", "--uv-no-extras", "uv_all_extras", "All extras, or none."),
        _text("--uv-torch-backend", "uv_torch_backend", "PyTorch build that uv installs: auto, cpu, cu128.", "NAME"),
        _text("--uv-cache-dir", "uv_cache_dir", "Cache folder of uv.", "PATH"),
        _text("--conda-file", "conda_file", "Conda environment file.", "FILE"),
        _text("--conda-env", "conda_env", "Existing conda environment in the image.", "NAME"),
    ),
    "windlass": (
        _text("--emit", "emit", "Print the experiment, Beaker's spec or the plan, and exit.", "WHAT", "spec", "beaker", "plan"),
        _text("--on", "on", "Run at this windlass site instead of submitting to Beaker.", "SITE"),
        _flag("--online", "is_online", "With --dry-run or --emit: contact Beaker to resolve names; still write nothing."),
    ),
}  # fmt: skip
"""Options in the order of the help page."""

OPTIONS: tuple[GantryOption, ...] = tuple(option for options in SECTIONS.values() for option in options)


def names() -> Iterator[tuple[str, GantryOption, bool]]:
    """Yield every name with its option, and with True if the name turns the option on."""
    for option in OPTIONS:
        yield from ((name, option, True) for name in option.names)
        yield from ((name, option, False) for name in option.off_names)
