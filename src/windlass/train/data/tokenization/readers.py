"""Readers of documents in spans of files, usable in any process. Imports neither torch nor numpy.

A span of a JSONL file is a range of bytes, with the lines that begin in it.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias, cast

from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_json
from windlass.train.errors import TrainingError

__all__ = ["Span", "SpanKind", "cut_spans", "documents", "records", "require", "text_bytes"]

SpanKind: TypeAlias = Literal["text", "jsonl", "parquet", "arrow"]

_PACKED = (".gz", ".zst")
_PACKED_FACTOR = 4
"""Estimated bytes of text per byte of a compressed file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Part of a file.

    Attributes:
        start: first byte, row group or record batch.
        stop: end, exclusive.
        num_bytes: approximate bytes of text.
    """

    kind: SpanKind
    path: str
    start: int
    stop: int
    num_bytes: int


def cut_spans(kind: SpanKind, path: str, piece_bytes: int) -> list[Span]:
    """Cut a file into spans of about `piece_bytes`; text files and compressed files are not cut."""
    size = Path(path).stat().st_size
    if kind == "parquet":
        return _row_groups(path)
    if kind == "arrow":
        return _record_batches(path, piece_bytes)
    if path.endswith(_PACKED):
        return [Span(kind=kind, path=path, start=0, stop=-1, num_bytes=text_bytes(path))]
    if kind == "text":
        return [Span(kind=kind, path=path, start=0, stop=size, num_bytes=size)]
    starts = range(0, size, piece_bytes)
    stops = [min(size, start + piece_bytes) for start in starts]
    return [
        Span(kind=kind, path=path, start=start, stop=stop, num_bytes=stop - start)
        for start, stop in zip(starts, stops, strict=True)
    ]


def documents(span: Span, field: str) -> Iterator[str]:
    """Yield the texts in a span, in order.

    Raises:
        TrainingError: it cannot be read, is not UTF-8 or JSON, or lacks the field (`text-broken`); the message names the place.
    """
    read = {"text": _text, "jsonl": _jsonl, "parquet": _parquet, "arrow": _arrow}[span.kind]
    try:
        yield from read(span, field)
    except (EOFError, OSError, ValueError, zlib.error) as error:  # pyarrow's errors are ValueErrors
        hint = "download or create it again"
        raise TrainingError(f"cannot read {span.path}: {error}", hint=hint, code="text-broken") from error


def records(span: Span) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (place, columns) for each row of a span, in order; the place is for error messages.

    Raises:
        TrainingError: the span cannot be read, or a line is not a JSON object (`text-broken`).
    """
    try:
        if span.kind == "jsonl":
            yield from _objects(span)
        elif span.kind == "parquet":
            yield from _parquet_rows(span)
        elif span.kind == "arrow":
            yield from _arrow_rows(span)
        else:
            message = f"{span.path} is plain text; rows are read from JSON Lines or Parquet"
            raise TrainingError(message, hint="write one JSON object per line, in a file `*.jsonl`", code="text-broken")
    except (EOFError, OSError, ValueError, zlib.error) as error:  # pyarrow's errors are ValueErrors
        hint = "download or create it again"
        raise TrainingError(f"cannot read {span.path}: {error}", hint=hint, code="text-broken") from error


def text_bytes(path: str) -> int:
    """Return the approximate number of bytes of text in a file."""
    return Path(path).stat().st_size * (_PACKED_FACTOR if path.endswith((*_PACKED, ".parquet")) else 1)


def require(name: str, why: str) -> WindlassError:
    """Return the error to raise for a missing package."""
    return WindlassError(f"{why} needs the package {name}", hint=f"`pip install {name}`", code="extra-missing")


def _text(span: Span, field: str) -> Iterator[str]:
    del field
    with closing(_open(span.path)) as file:
        yield _decode(span.path, file.read())


def _jsonl(span: Span, field: str) -> Iterator[str]:
    for line, place in _lines(span):
        yield _parse(line, field, span.path, place)


def _objects(span: Span) -> Iterator[tuple[str, dict[str, object]]]:
    for number, (line, place) in enumerate(_lines(span), start=1):
        value = _decoded(line, span.path, place)
        if not isinstance(value, dict):
            message = f"{_line(span.path, place)} is a {type(value).__name__}, not a JSON object"
            raise TrainingError(message, hint="fix or remove it", code="text-broken")
        yield f"{span.path}:{number}" if not span.start else f"{span.path} at byte {place}", value


def _lines(span: Span) -> Iterator[tuple[bytes, int]]:
    """Yield the lines that begin in a span, each with its first byte; blank ones are left out."""
    with closing(_open(span.path)) as file:
        place = span.start
        if place:
            file.seek(place - 1)
            place += len(file.readline()) - 1  # a line that began earlier belongs to the previous span
        while span.stop < 0 or place < span.stop:
            line = file.readline()
            if not line:
                return
            if not line.isspace():
                yield line, place
            place += len(line)


def _decoded(line: bytes, path: str, place: int) -> object:
    try:
        value: object = decode_json(line)
    except ValueError as error:
        if _is_array(path):
            raise _array(path) from error
        raise TrainingError(
            f"{_line(path, place)} is not valid JSON: {error}", hint="fix or remove it", code="text-broken"
        ) from error
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        raise _array(path)
    return value


def _parse(line: bytes, field: str, path: str, place: int) -> str:
    value = _decoded(line, path, place)
    if not isinstance(value, dict) or not isinstance(value.get(field), str):
        keys = ", ".join(value) if isinstance(value, dict) else type(value).__name__
        hint = f"set `text_field` of the source; this line has: {keys}"
        raise TrainingError(f"{_line(path, place)} has no text in `{field}`", hint=hint, code="text-broken")
    text = value[field]
    assert isinstance(text, str)
    return text


def _array(path: str) -> TrainingError:
    hint = f"`jq -c '.[]' {path} > NEW.jsonl` writes one document per line; use that file"
    message = f"{path} is a JSON array; documents must be JSON Lines"
    return TrainingError(message, hint=hint, code="text-broken")


def _is_array(path: str) -> bool:
    """Return whether a file begins with a JSON array that spans several lines."""
    with closing(_open(path)) as file:
        line = file.readline()
        while line.isspace():
            line = file.readline()
    if not line.lstrip().startswith(b"["):
        return False
    try:
        decode_json(line)
    except ValueError:
        return True
    return False


def _line(path: str, place: int) -> str:
    """Return the `path:line` of a byte.

    Reads the file up to that byte, so use it only for errors.
    """
    with closing(_open(path)) as file:
        return f"{path}:{file.read(place).count(10) + 1}"


def _parquet(span: Span, field: str) -> Iterator[str]:
    import pyarrow.parquet as pq  # lazy: 0.2 s, only for Parquet

    with pq.ParquetFile(span.path) as file:
        if field not in file.schema_arrow.names:
            raise _no_field(span.path, field, file.schema_arrow.names)
        for number in range(span.start, span.stop):
            yield from _texts(file.read_row_group(number, columns=[field]).column(field).to_pylist(), span.path, field)


def _arrow(span: Span, field: str) -> Iterator[str]:
    import pyarrow as pa  # lazy: 0.2 s, only for datasets

    with pa.memory_map(span.path) as file, pa.ipc.open_stream(file) as reader:
        if field not in reader.schema.names:
            raise _no_field(span.path, field, reader.schema.names)
        for number, batch in enumerate(reader):
            if number >= span.stop:
                return
            if number >= span.start:
                yield from _texts(batch.column(field).to_pylist(), span.path, field)


def _parquet_rows(span: Span) -> Iterator[tuple[str, dict[str, object]]]:
    import pyarrow.parquet as pq  # lazy: 0.2 s, only for Parquet

    with pq.ParquetFile(span.path) as file:
        for number in range(span.start, span.stop):
            for row, columns in enumerate(file.read_row_group(number).to_pylist()):
                yield f"{span.path}, row {row} of group {number}", columns


def _arrow_rows(span: Span) -> Iterator[tuple[str, dict[str, object]]]:
    import pyarrow as pa  # lazy: 0.2 s, only for datasets

    with pa.memory_map(span.path) as file, pa.ipc.open_stream(file) as reader:
        for number, batch in enumerate(reader):
            if span.start <= number < span.stop:
                for row, columns in enumerate(batch.to_pylist()):
                    yield f"{span.path}, row {row} of batch {number}", columns


def _texts(values: list[object], path: str, field: str) -> Iterator[str]:
    for value in values:
        if value is not None and not isinstance(value, str):
            message = f"{path} has {type(value).__name__} in `{field}`, not text"
            raise TrainingError(message, hint="set `text_field` of the source", code="text-broken")
        yield value or ""


def _no_field(path: str, field: str, names: list[str]) -> TrainingError:
    hint = f"set `text_field` of the source to one of: {', '.join(names)}"
    return TrainingError(f"{path} has no column `{field}`", hint=hint, code="text-broken")


def _row_groups(path: str) -> list[Span]:
    try:
        import pyarrow.parquet as pq  # lazy: 0.2 s, only for Parquet
    except ImportError as error:
        raise require("pyarrow", path) from error
    try:
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups)]
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"{path} is not a valid Parquet file: {error}", hint="fetch it again", code="text-broken"
        ) from error
    return [
        Span(kind="parquet", path=path, start=number, stop=number + 1, num_bytes=size)
        for number, size in enumerate(sizes)
    ]


def _record_batches(path: str, piece_bytes: int) -> list[Span]:
    """Return spans of about `piece_bytes`, made of the record batches in an Arrow stream; reads only headers."""
    import pyarrow as pa  # lazy: already imported with `datasets`

    spans: list[Span] = []
    start = size = number = 0
    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
        for number, batch in enumerate(reader, start=1):
            size += batch.nbytes
            if size >= piece_bytes:
                spans.append(Span(kind="arrow", path=path, start=start, stop=number, num_bytes=size))
                start, size = number, 0
    if number > start:
        spans.append(Span(kind="arrow", path=path, start=start, stop=number, num_bytes=size))
    return spans


def _open(path: str) -> BinaryIO:
    """Open a file, decompressing it while it is read; a truncated file raises an error at its end."""
    if path.endswith(".gz"):
        return cast("BinaryIO", gzip.open(path, "rb"))
    if path.endswith(".zst"):
        return io.BufferedReader(cast("io.RawIOBase", _zstd(path)), 1 << 20)
    return open(path, "rb")


def _zstd(path: str) -> object:
    try:
        import pyarrow as pa  # lazy: 0.1 s, only for .zst
    except ImportError as error:
        raise require("pyarrow", path) from error
    opened: object = pa.input_stream(path, compression="zstd")
    return opened


def _decode(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        message = f"{path} is not valid UTF-8 at byte {error.start}"
        raise TrainingError(
            message, hint="convert it with `iconv -t utf-8`, or remove it", code="text-broken"
        ) from error
