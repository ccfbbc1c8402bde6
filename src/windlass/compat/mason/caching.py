"""Dataset caches of open-instruct's training scripts, created before any GPU is requested.

mason runs such a script on the local machine with `--cache_dataset_only` before it submits; so does `cache_here`. At
other sites the same command becomes a step of prepared data (docs/concepts/prepared-data.md), built once per content
at the site of the run.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from windlass.compat.mason.rewriting import TRAININGS
from windlass.core.errors import PreconditionError

__all__ = ["CACHE_FLAG", "CACHE_FOLDER_FLAG", "build_words", "cache_here", "caching_words", "script_index"]

CACHE_FLAG, CACHE_FOLDER_FLAG = "--cache_dataset_only", "--dataset_local_cache_dir"
_RUN_ONLY = {
    "--with_tracking": False,
    "--checkpoint_state_freq": True,
    "--checkpoint_state_dir": True,
    "--gs_checkpoint_state_dir": True,
}
"""Options that mason omits, and whether a value follows."""
_NAMES = ("--exp_name", "--run_name", "--wandb_entity", "--wandb_project_name", "--hf_entity")
_OF_THE_RUN = {
    **_RUN_ONLY,
    **dict.fromkeys(("--output_dir", CACHE_FOLDER_FLAG, *_NAMES), True),
    CACHE_FLAG: False,
}
"""Options to omit for a build, because its data does not depend on the run's names."""
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*\Z")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "config.json")
_STDERR = 2
_GSUTIL = ("gsutil", "-o", "GSUtil:parallel_thread_count=1", "-o", "GSUtil:sliced_object_download_threshold=150", "-m")


def script_index(words: Sequence[str]) -> int | None:
    """Return the index of the training script that can cache its dataset, or None if there is none."""
    return next((index for index, word in enumerate(words) if word in TRAININGS), None)


def caching_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that mason would run to cache the dataset, or nothing for other scripts.

    Args:
        command: the words of one command, quotes removed.
    """
    at = script_index(command)
    return () if at is None else ("python", *_without(command[at:], _RUN_ONLY), CACHE_FLAG)


def build_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command for a build that writes the cache to ${out}, or nothing for other scripts."""
    at = script_index(command)
    if at is None:
        return ()
    before = [word for word in command[:at] if word not in ("uv", "run", "--no-sync", "-u")]
    is_plain = len(before) == 1 and _PYTHON.match(before[0])
    start = (*command[:at], *(() if is_plain else ("python",))) if is_plain or not before else ("python",)
    return (*start, *_without(command[at:], _OF_THE_RUN), CACHE_FLAG, CACHE_FOLDER_FLAG, "${out}")


def _without(words: Sequence[str], flags: Mapping[str, bool]) -> list[str]:
    """Return the words without these flags and their values; a word that starts with `--` is not a value."""
    kept, index = [], 0
    while index < len(words):
        flag, equals, _ = words[index].partition("=")
        if flag not in flags:
            kept.append(words[index])
        elif flags[flag] and not equals and index + 1 < len(words) and not words[index + 1].startswith("--"):
            index += 1
        index += 1
    return kept


def cache_here(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    tokenizers: Path,
    log: Callable[[str], None],
) -> bool:
    """Cache a command's dataset on this machine before submission, as mason does; blocks for minutes.

    The script's output goes to standard error.

    Args:
        command: the words of one command, quotes removed.
        environ: the script's variables.
        tokenizers: folder for tokenizers of models that are only in a bucket (`gs://`).

    Returns:
        True if there was something to cache.

    Raises:
        PreconditionError: the script or the download of the tokenizer failed.
    """
    words = caching_words(command)
    if not words:
        return False
    words = _with_local_tokenizer(words, environ, tokenizers, log)
    log(f"caching the dataset first: {shlex.join(words)}")
    _run(words, environ)
    log("the dataset is cached")
    return True


def _with_local_tokenizer(
    words: tuple[str, ...], environ: Mapping[str, str], folder: Path, log: Callable[[str], None]
) -> tuple[str, ...]:
    """Return the command with a local tokenizer in place of a `gs://` model; caching needs only the tokenizer."""
    flag = "--model_name_or_path"
    at = words.index(flag) + 1 if flag in words[:-1] else 0
    model = words[at].rstrip("/") if at else ""
    if not model.startswith("gs://"):
        return words
    there = folder / f"tokenizer_{hashlib.md5(model.encode(), usedforsecurity=False).hexdigest()[:8]}"
    if not there.exists():
        log(f"fetching the tokenizer of {model} into {there}")
        part = there.with_name(f"{there.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        _run((*_GSUTIL, "cp", "-r", *(f"{model}/{name}" for name in _TOKENIZER), f"{part}/"), environ)
        part.rename(there)
    return (*words[:at], f"{there}/", *words[at + 1 :])


def _run(words: Sequence[str], environ: Mapping[str, str]) -> None:
    try:
        code = subprocess.run(words, env=dict(environ), stdout=_STDERR, check=False).returncode
    except OSError as error:
        hint = "install it, or skip the cache: --no_auto_dataset_cache"
        raise PreconditionError(
            f"cannot start `{words[0]}`: {error.strerror}", hint=hint, code="mason-cache-failed"
        ) from error
    if code:
        raise PreconditionError(
            f"`{shlex.join(words)}` exited with {code}; nothing was submitted",
            hint="its output is above; --no_auto_dataset_cache submits without a cache",
            code="mason-cache-failed",
        )
