"""Worker processes that tokenise units; plain children with lines of JSON, no pickles and no second `__main__`."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from windlass.core.json_text import decode_json
from windlass.train.data.tokenization.tokenizing import run_unit
from windlass.train.data.tokenization.units import Unit, UnitResult, WorkerSettings
from windlass.train.data.tokenizer import Tokenizer
from windlass.train.errors import TrainingError

__all__ = ["run_units"]

_PROGRAM = "from windlass.train.data.tokenization.tokenizing import worker; worker()"
_ALONE_BYTES = 1 << 21
"""Text that is tokenised sooner than a process starts."""


def run_units(
    units: Sequence[Unit], settings: WorkerSettings, tokenizer: Tokenizer, *, num_workers: int
) -> Iterator[UnitResult]:
    """Results as they come, in any order; a generator that is closed ends all workers.

    Raises:
        TrainingError: what a worker raised, or a worker died (`worker-died`).
        OSError: what a worker met, such as a full disk.
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
    """One child and the talk with it."""

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
        """Give the child one unit after another, until none is left or something is wrong."""
        try:
            self._tell(self._settings)
            while True:
                unit = todo.get_nowait()
                answers.put(self._ask(unit))
        except queue.Empty:
            return
        except Exception as error:  # noqa: BLE001  (raised where the answers are taken)
            answers.put(error)

    def end(self) -> None:
        """Kill the child; what it was at is made again another time."""
        self._child.kill()
        self._child.wait()

    def _ask(self, unit: Unit) -> UnitResult:
        self._tell(json.dumps(asdict(unit)))
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            code = self._child.wait()
            message = f"a process that made tokens of {unit.spans[0].path} ended with code {code}"
            hint = "code -9 is often too little memory: try fewer `data.num_workers`; what is done is kept"
            raise TrainingError(message, hint=hint, code="worker-died")
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
            return  # it died: seen when it is asked
