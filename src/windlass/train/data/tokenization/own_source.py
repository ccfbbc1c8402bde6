"""Documents from the user's own code, tokenized once into cached token files.

The cache key covers the target, its arguments, the file that defines it, and the tokenizer. So a resumed run reads
the same rows; a changed generator creates new ones, and checkpoints of the old ones reject them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.core.files import fsync_directory, lock
from windlass.train.data.config import SourceTarget, TokenizerConfig
from windlass.train.data.manifest import MANIFEST
from windlass.train.data.tokenization.units import cache_folder
from windlass.train.data.tokenizer import load_tokenizer
from windlass.train.errors import TrainingError
from windlass.train.reference import place_of_error
from windlass.train.targets.calling import call_target
from windlass.train.targets.parts import digest_of

__all__ = ["find_own", "make_own"]


def find_own(source: SourceTarget, tokenizer: TokenizerConfig, cache: Path | None = None) -> Path | None:
    """Return the folder that `make_own` creates, if it exists."""
    folder = cache_folder(cache) / _key(source, tokenizer)
    return folder if (folder / MANIFEST).is_file() else None


def make_own(source: SourceTarget, tokenizer: TokenizerConfig, *, vocab_size: int, cache: Path | None = None) -> Path:
    """Return the token files of a source, creating them if missing.

    Blocks, even while another process creates them.

    Args:
        vocab_size: the model's vocabulary size; larger ids are rejected.

    Raises:
        SpecError: the target fails, or yields no documents or invalid ones.
        TrainingError: an id is too large, or the cache cannot be written.
    """
    root = cache_folder(cache)
    folder = root / _key(source, tokenizer)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with lock(root / f"{folder.name}.lock"):
            if not (folder / MANIFEST).is_file():
                _make(source, tokenizer, folder, vocab_size)
    except OSError as error:
        message = f"cannot write tokens to {root}: {error.strerror or error}"
        hint = "free some space or set `data.cache` to another folder"
        raise TrainingError(message, hint=hint, code="not-writable") from error
    return folder


def _key(source: SourceTarget, tokenizer: TokenizerConfig) -> str:
    identity = load_tokenizer(tokenizer).identity if tokenizer.path else ""
    marks = (tokenizer.eos_id, tokenizer.bos_id)
    parts = ("python", source.target, source.args, digest_of(source.target), identity, marks)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _make(source: SourceTarget, tokenizer: TokenizerConfig, folder: Path, vocab_size: int) -> None:
    """Create the token files. The caller holds the lock."""
    from windlass.train.data.tokenization.writing import write_tokens  # lazy: needs numpy, which a plan does not load

    partial = folder.with_name(f"{folder.name}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    words = load_tokenizer(tokenizer) if tokenizer.path else None
    manifest = write_tokens(
        partial,
        _documents(source, tokenizer, vocab_size),
        vocab_size=vocab_size if words is None else words.vocab_size,
        tokenizer="" if words is None else words.identity,
        eos_id=tokenizer.eos_id if words is None else words.ids.eos_id,
        pad_id=tokenizer.pad_id if words is None else words.ids.pad_id,
    )
    if not manifest.files:
        shutil.rmtree(partial, ignore_errors=True)
        message = f"{source.target} yielded no documents"
        raise SpecError([Problem(message, "data-too-small", hint="yield text, or lists of token ids")])
    os.rename(partial, folder)
    fsync_directory(folder.parent)


def _documents(source: SourceTarget, tokenizer: TokenizerConfig, vocab_size: int) -> Iterator[Sequence[int]]:
    """Yield the token ids of each document; text gets begin and end tokens, ids are used unchanged."""
    made = call_target(source, "source", "data.sources")
    if not isinstance(made, Iterable) or isinstance(made, (str, bytes)):
        raise _wrong(source, made, "makes")
    words = load_tokenizer(tokenizer) if tokenizer.path else None
    documents = iter(made)
    while True:
        try:
            document = next(documents)
        except StopIteration:
            return
        except WindlassError:
            raise
        except Exception as error:
            message = f"{source.target} failed: {type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
            place = place_of_error(error, source.target)
            raise SpecError([Problem(message, "user-code-failed", place, "-v shows the traceback")]) from error
        if isinstance(document, str):
            if words is None:
                message = f"{source.target} yields text, but no tokenizer is set"
                raise SpecError([Problem(message, "tokenizer-missing", hint="set `data.tokenizer.path`")])
            begin = [] if words.ids.bos_id is None else [words.ids.bos_id]
            end = [] if words.ids.eos_id is None else [words.ids.eos_id]
            yield [*begin, *words.encode(document), *end]
        elif isinstance(document, Sequence) and not isinstance(document, bytes):
            yield _checked(source, document, vocab_size)
        else:
            raise _wrong(source, document, "gives")


def _checked(source: SourceTarget, document: Sequence[object], vocab_size: int) -> Sequence[int]:
    ids = [token for token in document if isinstance(token, int) and 0 <= token < vocab_size]
    if len(ids) == len(document):
        return ids
    other = next(token for token in document if not (isinstance(token, int) and 0 <= token < vocab_size))
    message = f"{source.target} yields {other!r}, not an id of a vocabulary of {vocab_size}"
    raise TrainingError(
        message, hint="yield integers that are at least 0 and below the vocabulary size", code="tokenizer-mismatch"
    )


def _wrong(source: SourceTarget, found: object, verb: str) -> SpecError:
    message = f"{source.target} {verb} a {type(found).__name__}, not a document"
    return SpecError([Problem(message, "recipe-wrong", hint="yield text, or lists of token ids")])
