"""Manifest of a folder of token files: their sizes, properties and checksums.

    corpus/
      manifest.json            written last: a folder without it is incomplete
      tokens-00000.bin         ids, little-endian, nothing else
      documents-00000.bin      end of each document of that file, in tokens, uint32 (uint64 in files above 4G tokens)

Importable without torch and numpy.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from windlass.core.files import sha256_file, write_json
from windlass.core.json_text import read_json
from windlass.train.errors import TrainingError

__all__ = [
    "MANIFEST",
    "DType",
    "TokenFile",
    "TokenManifest",
    "check_files",
    "dtype_for",
    "item_bytes",
    "raw_token_dtype",
    "read_manifest",
]

MANIFEST = "manifest.json"
_FORMAT = "windlass-tokens"
_SEEN = ".verified.json"
_REMAKE = "remove the folder to create it again, or restore it from a copy"

DType: TypeAlias = Literal["uint8", "uint16", "uint32", "uint64"]


def item_bytes(dtype: DType) -> int:
    """Return the number of bytes per token."""
    return int(dtype.removeprefix("uint")) // 8


def dtype_for(vocab_size: int) -> DType:
    """Return the smallest type, of at least 16 bits, for ids below `vocab_size`."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def raw_token_dtype(vocab_size: int) -> DType:
    """Return the smallest type for ids below `vocab_size`, as OLMo-core chooses it."""
    names: tuple[DType, ...] = ("uint8", "uint16", "uint32", "uint64")
    return next(name for name in names if vocab_size <= 1 << 8 * item_bytes(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """File of tokens, with the file that holds the ends of its documents.

    Attributes:
        sha256: sha256 of the token file.
        ends_name: file with the ends of documents.
        ends_sha256: sha256 of that file.
    """

    name: str
    num_tokens: int
    num_documents: int
    sha256: str
    ends_name: str
    ends_sha256: str

    @property
    def ends_bytes(self) -> int:
        """Number of bytes per document end."""
        return 4 if self.num_tokens < 1 << 32 else 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenManifest:
    """Contents of a folder of tokens.

    Attributes:
        dtype: type of the ids.
        max_id: largest id.
        vocab_size: the tokenizer's vocabulary size; 0 if unknown.
        tokenizer: identity of the tokenizer; empty if unknown.
        eos_id: id that ends each document; None if there is none.
        pad_id: the tokenizer's padding id.
        made_from: inputs and settings, for information.
    """

    dtype: DType
    files: tuple[TokenFile, ...]
    max_id: int
    vocab_size: int = 0
    tokenizer: str = ""
    eos_id: int | None = None
    pad_id: int | None = None
    made_from: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all files."""
        return sum(file.num_tokens for file in self.files)

    @property
    def num_documents(self) -> int:
        """Number of documents in all files."""
        return sum(file.num_documents for file in self.files)

    @property
    def digest(self) -> str:
        """Digest of the tokens and documents, which does not depend on their origin or location."""
        parts = [self.dtype, *(part for file in self.files for part in (file.sha256, file.ends_sha256))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write the manifest atomically and durably, which completes the folder."""
        counts = {"num_tokens": self.num_tokens, "num_documents": self.num_documents}
        write_json(folder / MANIFEST, {"format": _FORMAT, "version": 1, **counts, **asdict(self)})


def read_manifest(folder: Path) -> TokenManifest:
    """Read the manifest of a folder.

    Raises:
        TrainingError: it is missing or invalid (`tokens-broken`).
    """
    path = folder / MANIFEST
    try:
        data = cast("dict[str, Any]", read_json(path))
        if data["format"] != _FORMAT or data["version"] != 1:
            raise ValueError(f"it is {data['format']} version {data['version']}, not {_FORMAT} version 1")
        files = tuple(TokenFile(**entry) for entry in data["files"])
        names = ("dtype", "max_id", "vocab_size", "tokenizer", "eos_id", "pad_id", "made_from")
        return TokenManifest(files=files, **{name: data[name] for name in names})
    except FileNotFoundError:
        raise TrainingError(f"{folder} has no {MANIFEST}", hint=_REMAKE, code="tokens-broken") from None
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(
            f"{path} is not a valid token manifest: {error}", hint=_REMAKE, code="tokens-broken"
        ) from error


def check_files(folder: Path, manifest: TokenManifest, *, is_thorough: bool = False) -> None:
    """Compare the files in a folder with its manifest.

    Always compares sizes; compares content once, until a file's size or time changes, as recorded in `.verified.json`.

    Args:
        is_thorough: whether to compare all content again.

    Raises:
        TrainingError: a file is missing, truncated or changed (`tokens-broken`); the message names it.
    """
    seen = {} if is_thorough else _read_seen(folder)
    found: dict[str, list[int]] = {}
    for file in manifest.files:
        for name, size, sha256 in (
            (file.name, file.num_tokens * item_bytes(manifest.dtype), file.sha256),
            (file.ends_name, file.num_documents * file.ends_bytes, file.ends_sha256),
        ):
            found[name] = _check_size(folder / name, size)
            if seen.get(name) != found[name] and sha256_file(folder / name) != sha256:
                raise TrainingError(f"{folder / name} does not match its manifest", hint=_REMAKE, code="tokens-broken")
    if found != seen:
        _write_seen(folder, found)


def remember_seen(folder: Path, manifest: TokenManifest) -> None:
    """Record that all files match the manifest, for callers that have just written them."""
    names = [name for file in manifest.files for name in (file.name, file.ends_name)]
    _write_seen(folder, {name: _seen_as(folder / name) for name in names})


def _write_seen(folder: Path, found: Mapping[str, list[int]]) -> None:
    """Record which files were verified; files in a read-only folder are verified at each start instead."""
    with contextlib.suppress(OSError):
        write_json(folder / _SEEN, found, is_durable=False)


def _read_seen(folder: Path) -> dict[str, list[int]]:
    try:
        return cast("dict[str, list[int]]", read_json(folder / _SEEN))
    except (OSError, ValueError):
        return {}


def _check_size(path: Path, size: int) -> list[int]:
    """Return the size and modification time of a file. Raises TrainingError if the size is wrong."""
    try:
        found = _seen_as(path)
    except FileNotFoundError:
        raise TrainingError(f"{path} is missing", hint=_REMAKE, code="tokens-broken") from None
    if found[0] != size:
        message = f"{path} has {found[0]} bytes; its manifest says {size}"
        raise TrainingError(message, hint=_REMAKE, code="tokens-broken")
    return found


def _seen_as(path: Path) -> list[int]:
    """Return the size and modification time of a file."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]
