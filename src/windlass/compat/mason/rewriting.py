"""Changes that mason makes to a command before submission.

Each rule is a function of the words; they apply in mason's order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from windlass.compat.mason.clusters import Clusters
from windlass.compat.mason.options import MasonOptions
from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError

__all__ = [
    "RESUMABLE",
    "TRAININGS",
    "Situation",
    "for_nodes",
    "is_training",
    "rewrite",
    "training_of",
    "with_defaults",
    "without",
]

TRAININGS = (
    "open_instruct/finetune.py",
    "open_instruct/dpo.py",
    "open_instruct/dpo_tune_cache.py",
    "open_instruct/grpo.py",
    "open_instruct/grpo_fast.py",
    "open_instruct/reward_modeling.py",
)
"""Training scripts that mason knows; a command that contains one of these words runs that training."""

RESUMABLE = ("open_instruct/grpo.py", "open_instruct/grpo_fast.py")
"""Training scripts that resume from their checkpoints automatically."""

_TRACKER = ("WANDB_TAGS", "WANDB_PROJECT", "WANDB_ENTITY")
_NO_EVALUATION = (
    ("--try_launch_beaker_eval_jobs", "False"),
    ("--try_launch_beaker_eval_jobs_on_weka", "False"),
    ("--no_try_launch_beaker_eval_jobs",),
    ("--no_try_launch_beaker_eval_jobs_on_weka",),
)
_PROCESSES = re.compile(r"--num_processes(?: +|=)(\d{1,9})(?!\d)")
_GIVEN = re.compile(r"--num_processes(?:[ =]+\S+)?")
_PORT = 29400


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Information that the rules need besides the command itself."""

    options: MasonOptions
    clusters: Clusters
    environ: Mapping[str, str]
    user: str
    is_external: bool


def is_training(words: Sequence[str]) -> bool:
    """Return True if a command runs a training script that mason knows."""
    return bool(training_of(words))


def training_of(words: Sequence[str]) -> str:
    """Return the training script in a command, or an empty string."""
    return next((script for script in TRAININGS if script in words), "")


def rewrite(words: Sequence[str], situation: Situation, *, checkpoint_folder: str) -> tuple[str, ...]:
    """Return the command's words after all rules except quoting.

    Args:
        words: words as typed.
        situation: options, clusters, variables and user.
        checkpoint_folder: name of the folder for the run's checkpoints.

    Raises:
        UsageError: a training on Weka starts evaluations, but `--auto_output_dir_path` is empty.
    """
    made = _tracker(situation.environ) + list(words)
    if is_training(made):
        made = with_defaults(made)
        made = _with_checkpoint_folder(made, situation, checkpoint_folder)
        made = _with_output_folder(made, situation)
        made = _with_bucket(made, situation)
    return tuple(made)


def _tracker(environ: Mapping[str, str]) -> list[str]:
    """Return the launch's tracker variables as `NAME=VALUE` words."""
    return [f"{name}={environ[name]}" for name in _TRACKER if name in environ]


def with_defaults(words: Sequence[str]) -> list[str]:
    """Return the words with the entities that mason fills in, the only change it makes to cache a dataset."""
    made = list(words)
    for flag, value in (("hf_entity", "allenai"), ("wandb_entity", "ai2-llm")):
        if not any(flag in word for word in made):
            made += [f"--{flag}", value]
    return made


def without(words: Sequence[str], flag: str) -> list[str]:
    """Return the words without a flag and its value; a word that begins with `--` is not a value."""
    kept: list[str] = []
    position = 0
    while position < len(words):
        if words[position] == flag:
            position += 1 + (position + 1 < len(words) and not words[position + 1].startswith("--"))
        else:
            kept.append(words[position])
            position += 1
    return kept


def _with_checkpoint_folder(words: list[str], situation: Situation, folder: str) -> list[str]:
    """Move the checkpoints of GRPO training to a separate folder on Weka, unless they are already there."""
    base = situation.options.auto_checkpoint_state_dir
    flag = "--checkpoint_state_dir"
    if not base or situation.is_external or not any(script in words for script in RESUMABLE):
        return words
    values = _values(words, flag)
    if values and situation.clusters.weka.root in values[-1]:
        return words
    path = _under(base, situation, folder)
    return [*without(words, flag), flag, str(path)]


def _with_output_folder(words: list[str], situation: Situation) -> list[str]:
    """On clusters with Weka, move the output of training to the user's folder on Weka, unless it is already there."""
    flag, base, weka = "--output_dir", situation.options.auto_output_dir_path, situation.clusters.weka.root
    if not situation.clusters.may_have_weka(situation.options.cluster):
        return words
    is_on_weka = any(weka in value for value in _values(words, flag))
    if not base:
        if not is_on_weka and not _starts_no_evaluation(words):
            raise _needs_output(words)
        return words
    if is_on_weka or situation.is_external:
        return words
    return [*without(words, flag), flag, f"{_under(base, situation)}/"]


def _under(base: str, situation: Situation, *folders: str) -> PurePosixPath:
    ttl = situation.options.artifact_ttl
    return PurePosixPath(base, situation.user, *folders, *([f"tmp-{ttl}"] if ttl else []))


def _values(words: Sequence[str], flag: str) -> list[str]:
    """Return all values of a flag, one for each occurrence."""
    return [value for word, value in zip(words, [*words[1:], ""], strict=True) if word == flag]


def _starts_no_evaluation(words: Sequence[str]) -> bool:
    pairs = list(zip(words, [*words[1:], ""], strict=True))
    return any(" ".join(said) in words or said in pairs for said in _NO_EVALUATION)


def _needs_output(words: Sequence[str]) -> UsageError:
    message = (
        f"{training_of(words)} starts evaluations, which need its output on Weka, but `--auto_output_dir_path` is empty"
    )
    hint = "set a path, or give the training `--output_dir /weka/...` or `--no_try_launch_beaker_eval_jobs`"
    return UsageError(message, hint=hint, code="mason-usage")


def _with_bucket(words: list[str], situation: Situation) -> list[str]:
    """On Google Cloud, write a training's results to the bucket; copy a model from a bucket to the local disk first."""
    google = situation.clusters.google
    if situation.is_external or not situation.clusters.is_google(situation.options.cluster):
        return words
    made = list(words)
    if not any("gs_bucket_path" in word for word in made):
        made += ["--gs_bucket_path", google.bucket]
    at = made.index("--model_name_or_path") + 1 if "--model_name_or_path" in made else len(made)
    if at < len(made) and made[at].startswith("gs://"):
        source = made[at].rstrip("/")
        copy = source.replace("gs://", google.local, 1)
        made[at] = copy
        made = [*_bring(source, copy), *made]
    return made


def _bring(source: str, copy: str) -> list[str]:
    """Return the words that copy a folder from a bucket to the job's disk."""
    parent = str(PurePosixPath(copy).parent)
    return ["mkdir", "-p", copy, "&&", "gsutil", "-m", "cp", "-r", source, parent, "&&"]


def for_nodes(text: str, num_nodes: int) -> str:
    """Return the text for a launch on several nodes, with accelerate's total process count and leader address.

    Raises:
        UsageError: accelerate without `--num_processes`.
    """
    if num_nodes == 1:
        return text
    if "accelerate" in text and not _PROCESSES.search(text):
        said = _GIVEN.search(text)
        found = f" with a number, not `{said.group()[:80]}`" if said else ""
        message = f"accelerate on {num_nodes} nodes needs `--num_processes`{found}"
        hint = "pass the number of processes per node: `accelerate launch --num_processes 8 ...`"
        raise UsageError(message, hint=hint, code="mason-usage")
    return _PROCESSES.sub(lambda match: _all_processes(int(match.group(1)), num_nodes), text)


def _all_processes(of_node: int, num_nodes: int) -> str:
    return (
        f"--num_processes {of_node * num_nodes} --num_machines {num_nodes} --machine_rank $BEAKER_REPLICA_RANK"
        f" --main_process_ip $BEAKER_LEADER_REPLICA_HOSTNAME --main_process_port {_PORT} "
    )
