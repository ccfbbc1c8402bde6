"""Writer of token files, document by document, committed with a manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from windlass.train.data.manifest import DType, TokenFile, TokenManifest, dtype_for
from windlass.train.errors import TrainingError

__all__ = ["TokenWriter", "write_tokens"]

_FILE_TOKENS = 1 << 28


class TokenWriter:
    """Writer of one pair of files, the tokens and the ends of documents, under hidden names until `commit`."""

    def __init__(self, folder: Path, number: int, dtype: DType) -> None:
        self._folder, self._dtype = folder, np.dtype(dtype).newbyteorder("<")
        self._names = (f"tokens-{number:05}.bin", f"documents-{number:05}.bin")
        self._hidden = folder / f".{self._names[0]}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        self._file = open(self._hidden, "wb")  # noqa: SIM115  (closed by commit or exit)
        self._digest = hashlib.sha256()
        self._ends: list[np.ndarray] = []
        self.num_tokens = self.num_documents = 0
        self.max_id = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._hidden.unlink(missing_ok=True)

    def add(self, documents: Sequence[Sequence[int]]) -> None:
        """Append documents; empty ones are dropped."""
        kept = [document for document in documents if len(document)]
        if not kept:
            return
        try:
            tokens_T = np.concatenate([np.array(document, dtype=self._dtype) for document in kept])
        except OverflowError as error:
            message = f"{self._folder / self._names[0]}: an id does not fit into {self._dtype.name}: {error}"
            raise TrainingError(message, hint="set the vocabulary's actual size", code="tokenizer-mismatch") from error
        self._ends.append(self.num_tokens + np.cumsum([len(document) for document in kept], dtype=np.int64))
        self.num_tokens += len(tokens_T)
        self.num_documents += len(kept)
        self.max_id = max(self.max_id, int(tokens_T.max()))
        content = tokens_T.tobytes()
        self._digest.update(content)
        self._file.write(content)

    def commit(self, *, is_durable: bool = True) -> TokenFile:
        """Rename both files to their final names.

        Args:
            is_durable: whether to survive a power failure once the folder is synced; costs two fsyncs.
        """
        _flush(self._file, is_durable)
        os.replace(self._hidden, self._folder / self._names[0])
        ends_D = np.concatenate([np.zeros(0, dtype=np.int64), *self._ends])
        content = ends_D.astype("<u4" if self.num_tokens < 1 << 32 else "<u8").tobytes()
        with open(self._hidden, "wb") as file:
            file.write(content)
            _flush(file, is_durable)
        os.replace(self._hidden, self._folder / self._names[1])
        return TokenFile(
            name=self._names[0],
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            sha256=self._digest.hexdigest(),
            ends_name=self._names[1],
            ends_sha256=hashlib.sha256(content).hexdigest(),
        )


def write_tokens(
    folder: Path,
    documents: Iterable[Sequence[int]],
    *,
    vocab_size: int,
    tokenizer: str = "",
    eos_id: int | None = None,
    pad_id: int | None = None,
    file_tokens: int = _FILE_TOKENS,
) -> TokenManifest:
    """Write documents, given as ids, to a folder of token files, each followed by its end token.

    Args:
        file_tokens: a new file begins after the document that exceeds this number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dtype, files, max_id = dtype_for(vocab_size), list[TokenFile](), -1
    pending = iter(documents)
    is_over = False
    while not is_over:
        with TokenWriter(folder, len(files), dtype) as writer:
            is_over = True
            for document in pending:
                writer.add([document])
                if writer.num_tokens >= file_tokens:
                    is_over = False
                    break
            if writer.num_tokens:
                files.append(writer.commit())
                max_id = max(max_id, writer.max_id)
    manifest = TokenManifest(
        dtype=dtype,
        files=tuple(files),
        max_id=max_id,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        eos_id=eos_id,
        pad_id=pad_id,
    )
    manifest.write(folder)
    return manifest


def _flush(file: BinaryIO, is_durable: bool) -> None:
    file.flush()
    if is_durable:
        os.fsync(file.fileno())
