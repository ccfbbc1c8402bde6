"""Tokenization of units (spans of text) into pairs of token files, in this process or in workers.

A worker reads lines of JSON and writes result lines; it exits when its input closes, so that none
outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_json
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenization.readers import Span, documents
from windlass.train.data.tokenization.units import Unit, UnitResult, WorkerSettings
from windlass.train.data.tokenization.writing import TokenWriter
from windlass.train.data.tokenizer import Tokenizer, load_tokenizer
from windlass.train.errors import TrainingError

__all__ = ["run_unit", "run_units", "worker"]

_BATCH_CHARACTERS = 1 << 16
"""Characters to encode at once: with more, the results of `tokenizers` no longer fit in the CPU's cache."""

_BATCH_DOCUMENTS = 1024


def run_unit(unit: Unit, settings: WorkerSettings, tokenizer: Tokenizer) -> UnitResult:
    """Tokenize a unit; its files get their final names when they are complete."""
    with TokenWriter(Path(settings.folder), unit.number, settings.dtype) as writer:
        for texts in _batches(unit.spans, settings.text_field):
            writer.add([_marked(ids, tokenizer) for ids in _encode(texts, tokenizer)])
        if writer.max_id >= tokenizer.vocab_size:
            message = f"the tokenizer returned the id {writer.max_id}; its vocabulary has {tokenizer.vocab_size}"
            raise TrainingError(message, hint="check `data.tokenizer`", code="tokenizer-mismatch")
        file = writer.commit(is_durable=False) if writer.num_tokens else None  # synced with the manifest
        return UnitResult(number=unit.number, file=file, max_id=writer.max_id)


def worker() -> None:
    """Run units as they arrive, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent process
    answers, sys.stdout = sys.stdout, sys.stderr  # library output must not mix with results
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    first = decode_json(sys.stdin.readline())
    settings = WorkerSettings(**{**first, "tokenizer": TokenizerConfig(**first["tokenizer"])})
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    tokenizer = load_tokenizer(settings.tokenizer)
    while True:
        data = decode_json(lines.get())
        unit = Unit(number=data["number"], spans=tuple(Span(**span) for span in data["spans"]))
        try:
            answer: dict[str, Any] = {"result": asdict(run_unit(unit, settings, tokenizer))}
        except WindlassError as error:
            answer = {"error": {"message": error.message, "hint": error.hint, "code": error.code}}
        except OSError as error:
            answer = {"os_error": [error.errno, error.strerror, error.filename]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _listen(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # unfinished work is repeated later


def _batches(spans: Sequence[Span], text_field: str) -> Iterator[list[str]]:
    """Yield the texts of all spans in batches."""
    texts: list[str] = []
    size = 0
    for span in spans:
        for text in documents(span, text_field):
            if text:
                texts.append(text)
                size += len(text)
            if size >= _BATCH_CHARACTERS or len(texts) >= _BATCH_DOCUMENTS:
                yield texts
                texts, size = [], 0
    if texts:
        yield texts


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> Sequence[Sequence[int]]:
    """Encode texts.

    An unpaired surrogate, which JSON allows but UTF-8 does not, becomes a question mark.
    """
    try:
        return tokenizer.encode_batch(texts)
    except (UnicodeEncodeError, TypeError):  # tokenizers raises TypeError
        return tokenizer.encode_batch([text.encode(errors="replace").decode() for text in texts])


def _marked(ids: Sequence[int], tokenizer: Tokenizer) -> Sequence[int]:
    """Add a document's begin and end tokens; lists are changed in place, since they are not shared."""
    if not len(ids):
        return ids
    found = ids if isinstance(ids, list) else list(ids)
    marks = tokenizer.ids
    if marks.bos_id is not None:
        found.insert(0, marks.bos_id)
    if marks.eos_id is not None:
        found.append(marks.eos_id)
    return found


_PROGRAM = "from windlass.train.data.tokenization.tokenizing import worker; worker()"
_ALONE_BYTES = 1 << 21
"""Bytes of text that take less time to tokenise than to start a process."""


def run_units(
    units: Sequence[Unit], settings: WorkerSettings, tokenizer: Tokenizer, *, num_workers: int
) -> Iterator[UnitResult]:
    """Yield results as units complete, in any order; closing the generator stops all workers.

    Raises:
        TrainingError: a worker raised it, or a worker died (`worker-failed`).
        OSError: a worker raised it, such as for a full disk.
    """
    num_workers = min(num_workers, len(units))
    if num_workers <= 1 or sum(span.num_bytes for unit in units for span in unit.spans) < _ALONE_BYTES:
        for unit in units:
            yield run_unit(unit, settings, tokenizer)
        return
    largest_first = sorted(units, key=lambda unit: -sum(span.num_bytes for span in unit.spans))
    todo: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    for unit in largest_first:
        todo.put(unit)
    answers: queue.SimpleQueue[UnitResult | Exception] = queue.SimpleQueue()
    workers = [_Worker(settings) for _ in range(num_workers)]
    threads = [threading.Thread(target=worker.serve, args=(todo, answers), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        for _ in units:
            answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        for worker in workers:
            worker.end()
        for thread in threads:
            thread.join()


class _Worker:
    """Worker process, with the connection to it."""

    def __init__(self, settings: WorkerSettings) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
        )
        self._settings = json.dumps(asdict(settings))

    def serve(self, todo: queue.SimpleQueue[Unit], answers: queue.SimpleQueue[UnitResult | Exception]) -> None:
        """Send units to the child until there are none left or one fails."""
        try:
            self._tell(self._settings)
            while True:
                unit = todo.get_nowait()
                answers.put(self._ask(unit))
        except queue.Empty:
            return
        except Exception as error:  # noqa: BLE001  (raised by the thread that collects the results)
            answers.put(error)

    def end(self) -> None:
        """Kill the child; its current unit is repeated later."""
        self._child.kill()
        self._child.wait()

    def _ask(self, unit: Unit) -> UnitResult:
        self._tell(json.dumps(asdict(unit)))
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            code = self._child.wait()
            message = f"a tokenizing process of {unit.spans[0].path} exited with code {code}"
            hint = "code -9 often means out of memory: lower `data.num_workers`; finished files are kept"
            raise TrainingError(message, hint=hint, code="worker-failed")
        answer: dict[str, Any] = decode_json(line)
        if "error" in answer:
            raise TrainingError(answer["error"]["message"], hint=answer["error"]["hint"], code=answer["error"]["code"])
        if "os_error" in answer:
            raise OSError(*answer["os_error"])
        return UnitResult.from_data(answer["result"])

    def _tell(self, line: str) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(line + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return  # the worker died: detected at the next request
