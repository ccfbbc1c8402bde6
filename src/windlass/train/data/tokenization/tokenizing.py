"""One unit of ingestion: some spans of text become one pair of token files. Also what a worker process runs.

A worker is told by lines of JSON on its input and answers by lines on its output; it ends when its input does, so none
outlives the process that began it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
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

__all__ = ["run_unit", "worker"]

_BATCH_CHARACTERS = 1 << 16
"""Of texts that are encoded at once: what `tokenizers` makes of more leaves the processor's cache, and takes 20 % longer."""

_BATCH_DOCUMENTS = 1024


def run_unit(unit: Unit, settings: WorkerSettings, tokenizer: Tokenizer) -> UnitResult:
    """Tokenise a unit; its files appear under their names when they are whole."""
    with TokenWriter(Path(settings.folder), unit.number, settings.dtype) as writer:
        for texts in _batches(unit.spans, settings.text_field):
            writer.add([_marked(ids, tokenizer) for ids in _encode(texts, tokenizer)])
        if writer.max_id >= tokenizer.vocab_size:
            message = f"the tokenizer gave the id {writer.max_id} beyond its vocabulary of {tokenizer.vocab_size}"
            raise TrainingError(message, hint="look at `data.tokenizer`", code="token-outside")
        file = writer.commit(is_durable=False) if writer.num_tokens else None  # synced with the manifest
        return UnitResult(number=unit.number, file=file, max_id=writer.max_id)


def worker() -> None:
    """Run units as they come in, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the keyboard is for the process that waits for this one
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
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
    os._exit(0)  # nobody waits for what is under way; it is made again


def _batches(spans: Sequence[Span], text_field: str) -> Iterator[list[str]]:
    """Texts of all spans, some at a time."""
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
    """Ids of texts; half a surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    try:
        return tokenizer.encode_batch(texts)
    except (UnicodeEncodeError, TypeError):  # tokenizers says TypeError
        return tokenizer.encode_batch([text.encode(errors="replace").decode() for text in texts])


def _marked(ids: Sequence[int], tokenizer: Tokenizer) -> Sequence[int]:
    """A document between its marks; changes lists in place, since nobody else has them."""
    if not len(ids):
        return ids
    found = ids if isinstance(ids, list) else list(ids)
    marks = tokenizer.ids
    if marks.bos_id is not None:
        found.insert(0, marks.bos_id)
    if marks.eos_id is not None:
        found.append(marks.eos_id)
    return found
