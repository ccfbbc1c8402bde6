"""Tokenization of text into token files: once, in several processes, atomically.

    CACHE/<key>.lock       held by the process that tokenizes
    CACHE/<key>.partial/   finished units, each marked by unit-00007.json, which is written last; resumed after a kill
    CACHE/<key>/           complete: renamed after its manifest was written

The key is a digest of the inputs (path, size, modification time), the tokenizer and the settings.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from windlass.core.errors import Problem, SpecError
from windlass.core.files import fsync_directory, lock, sha256_file, write_json
from windlass.core.json_text import read_json
from windlass.core.phrases import size
from windlass.train.data.config import SourceConfig, TokenizerConfig
from windlass.train.data.manifest import MANIFEST, TokenManifest, dtype_for, remember_seen
from windlass.train.data.tokenization.tokenizing import run_units
from windlass.train.data.tokenization.units import (
    IngestPlan,
    Unit,
    UnitResult,
    WorkerSettings,
    cache_folder,
    identity_of,
)
from windlass.train.errors import TrainingError

__all__ = ["IngestProgress", "Progress", "ingest"]

_NUM_SYNCS = 8

Progress = Callable[[int, int], None]
"""Called with bytes of text tokenized so far, and in total."""


def ingest(
    source: SourceConfig,
    tokenizer: TokenizerConfig,
    *,
    cache: Path | None = None,
    num_workers: int | None = None,
    on_progress: Progress | None = None,
) -> Path:
    """Tokenize a source's text unless it is cached. Blocks, even while another process does the work.

    Idempotent. After a kill, the next call resumes after the last finished unit (1 to 32 MB of text).

    Args:
        cache: folder for the result; if None, a folder in the user's cache.
        num_workers: number of processes; if None, one per CPU.

    Returns:
        The folder with the token files.

    Raises:
        SpecError: no data, or no tokenizer.
        TrainingError: an input is invalid (`text-broken`), or changed while being read (`input-changed`).
    """
    root = cache_folder(cache)
    plan = IngestPlan.make(source, tokenizer, root)
    folder = root / plan.key
    if (folder / MANIFEST).is_file():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with lock(root / f"{plan.key}.lock"):
            if not (folder / MANIFEST).is_file():
                _make(plan, folder, num_workers or num_processors(), on_progress)
    except OSError as error:
        message = f"cannot write tokens to {root}: {error.strerror or error}"
        hint = "free some space or set `data.cache` to another folder; finished files are kept"
        raise TrainingError(message, hint=hint, code="not-writable") from error
    return folder


def num_processors() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make(plan: IngestPlan, folder: Path, num_workers: int, on_progress: Progress | None) -> None:
    """Tokenize all remaining units and commit the result. The caller holds the lock."""
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(exist_ok=True)
    if folder.exists():  # no manifest: incomplete
        shutil.rmtree(folder)
    dtype = dtype_for(plan.tokenizer.vocab_size)
    settings = WorkerSettings(
        folder=str(partial), dtype=dtype, text_field=plan.source.text_field, tokenizer=plan.tokenizer_config
    )
    units = plan.units()
    done = {unit.number: result for unit in units if (result := _done(partial, unit)) is not None}
    open_units = [unit for unit in units if unit.number not in done]
    progress = _Counter(units, done, on_progress)
    for result in run_units(open_units, settings, plan.tokenizer, num_workers=num_workers):
        write_json(partial / f"unit-{result.number:05}.json", asdict(result), is_durable=False)
        done[result.number] = result
        progress.add(result.number)
    _check_inputs(plan)
    _commit(plan, [done[unit.number] for unit in units], partial, folder)


def _commit(plan: IngestPlan, results: Sequence[UnitResult], partial: Path, folder: Path) -> None:
    files = tuple(result.file for result in results if result.file is not None)
    if not files:
        hint = f"look at {plan.source.path[0]}"
        raise SpecError([Problem(f"{plan.source.path[0]} has no text", "data-too-small", hint=hint)])
    manifest = TokenManifest(
        dtype=dtype_for(plan.tokenizer.vocab_size),
        files=files,
        max_id=max(result.max_id for result in results),
        vocab_size=plan.tokenizer.vocab_size,
        tokenizer=plan.tokenizer.identity,
        eos_id=plan.tokenizer.ids.eos_id,
        pad_id=plan.tokenizer.ids.pad_id,
        made_from={"paths": list(plan.source.path), "tokenizer": plan.tokenizer_config.path},
    )
    with ThreadPoolExecutor(_NUM_SYNCS) as threads:
        list(threads.map(_sync, [partial / name for file in files for name in (file.name, file.ends_name)]))
    fsync_directory(partial)
    remember_seen(partial, manifest)  # the digests were computed while writing
    manifest.write(partial)
    os.rename(partial, folder)
    fsync_directory(folder.parent)
    for leftover in (*folder.glob("unit-*.json"), *folder.glob(".*.tmp")):
        leftover.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _done(partial: Path, unit: Unit) -> UnitResult | None:
    """Return the result of a unit if it is finished and its files are intact.

    A power failure may have damaged them.
    """
    try:
        result = UnitResult.from_data(cast("dict[str, Any]", read_json(partial / f"unit-{unit.number:05}.json")))
        if result.file is None:
            return result
        file = result.file
        digests = ((file.name, file.sha256), (file.ends_name, file.ends_sha256))
        return result if all(sha256_file(partial / name) == sha256 for name, sha256 in digests) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _Counter:
    """Counter that reports progress."""

    def __init__(self, units: Sequence[Unit], done: Iterable[int], tell: Progress | None) -> None:
        self._sizes = {unit.number: sum(span.num_bytes for span in unit.spans) for unit in units}
        self._all = sum(self._sizes.values())
        self._so_far = sum(self._sizes[number] for number in done)
        self._tell = tell

    def add(self, number: int) -> None:
        self._so_far += self._sizes[number]
        if self._tell is not None:
            self._tell(self._so_far, self._all)


def _check_inputs(plan: IngestPlan) -> None:
    """Reject inputs that changed while they were being read."""
    for before, now in zip(plan.identity, identity_of(plan.files), strict=True):
        if before != now:
            hint = "wait until it is complete, then try again"
            raise TrainingError(f"{before[0]} changed while it was being read", hint=hint, code="input-changed")


_EVERY_S = 10.0


class IngestProgress:
    """Progress report that prints a line at intervals, unless ingestion takes only a few seconds.

    Only the tokenizing process reports progress; other processes wait for it.
    """

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        *,
        every_s: float = _EVERY_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every_s, self._now = write or sys.stderr.write, every_s, now
        self._last_at = now()

    def __call__(self, num_done: int, num_bytes: int) -> None:
        """Report how many bytes of text have been tokenized, and the total."""
        if self._now() - self._last_at < self._every_s:
            return
        self._last_at = self._now()
        self._write(f"tokenizing: {size(num_done)} of {size(num_bytes)}\n")
