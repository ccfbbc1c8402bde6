"""Prepared data: a mixture rendered, tokenized and stored once, under a key of everything that determines it.

    CACHE/<key>.lock        held by the process that prepares
    CACHE/<key>.<random>/   being written
    CACHE/<key>/            complete: renamed after its manifest was written
        tokens.npy          int32 ids of all sequences, end to end
        learned.npy         bool, whether each token is learned
        ends.npy            int64, end of each sequence
        rows.npy            int64, end of each row in sequences: one or several for a chat, (chosen, rejected) for a pair
        truths.jsonl        the ground truth of each row, for prompts; else empty
        chats.jsonl         messages, tools and other columns of each row, for prompts; else empty
        statistics.json     rows and tokens by source, dropped rows by reason
        manifest.json       sizes and digests of these files, written last

The key is a digest of the contents of the sources, what is taken of them, the source code of the transforms, the
tokenizer, the template and the lengths. Paths and modification times are not part of it, so moved folders are found.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from windlass.core.errors import Problem, SpecError
from windlass.core.files import fsync_directory, lock, sha256_file, write_atomic, write_json
from windlass.core.json_text import decode_json, decode_object, read_json, read_object
from windlass.post.data.chat import ChatEncoder, EncodedSequence, SpanError
from windlass.post.data.config import MixSource, MixtureConfig, RowKind
from windlass.post.data.rows import Chat, Pair, Prompt, read_row
from windlass.post.data.templates import TemplateError
from windlass.post.data.transforms import DropRow, Transform, find_transform
from windlass.train.data.config import SourceConfig
from windlass.train.data.inputs import find_inputs
from windlass.train.data.tokenization.readers import SpanKind, cut_spans, records
from windlass.train.data.tokenization.units import cache_folder, dataset_files
from windlass.train.errors import TrainingError
from windlass.train.reference import code_digest

__all__ = ["MANIFEST", "PreparedColumn", "PreparedData", "SourceStatistics", "prepare", "prepared_root"]

MANIFEST = "manifest.json"
_FORMAT = "windlass.prepared/2"
_ARRAYS = ("tokens.npy", "learned.npy", "ends.npy", "rows.npy")
_STATISTICS, _TRUTHS, _CHATS = "statistics.json", "truths.jsonl", "chats.jsonl"
_PIECE_BYTES = 1 << 26


@dataclass(slots=True, kw_only=True)
class SourceStatistics:
    """Counts of a source's rows: read, taken, kept and dropped.

    Attributes:
        num_rows: rows of the source.
        num_selected: rows taken of it, repetitions included.
        num_kept: of these, rows that became sequences.
        dropped: number of dropped rows by reason.
    """

    source: str
    num_rows: int = 0
    num_selected: int = 0
    num_kept: int = 0
    num_sequences: int = 0
    num_tokens: int = 0
    num_learned: int = 0
    num_truncated: int = 0
    longest: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def to_data(self) -> dict[str, object]:
        """JSON-safe."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "dropped"} | {
            "dropped": dict(sorted(self.dropped.items()))
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """An encoded row."""

    sequences: list[EncodedSequence]
    ground_truth: object
    chat: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """Prepared sequences, memory-mapped.

    Attributes:
        ends_S: end of each sequence in tokens.
        ends_R: end of each row in sequences.
        statistics: a mapping for each source.
    """

    key: str
    folder: Path
    tokens_N: np.ndarray
    learned_N: np.ndarray
    ends_S: np.ndarray
    ends_R: np.ndarray
    statistics: tuple[Mapping[str, object], ...]
    chats: list[bytes] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def open(cls, folder: Path) -> PreparedData:
        """Open a folder; checks sizes, not digests. Raises TrainingError if it is damaged."""
        try:
            manifest = read_object(folder / MANIFEST)
            for name, facts in manifest["files"].items():
                if (folder / name).stat().st_size != facts["bytes"]:
                    raise ValueError(f"{name} has another size than its manifest states")
            tokens_N, learned_N, ends_S, ends_R = (np.load(folder / name, mmap_mode="r") for name in _ARRAYS)
            return cls(
                key=folder.name,
                folder=folder,
                tokens_N=tokens_N,
                learned_N=learned_N,
                ends_S=ends_S,
                ends_R=ends_R,
                statistics=tuple(cast("list[Mapping[str, object]]", read_json(folder / _STATISTICS))),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"prepared data {folder} is damaged: {error}"
            raise TrainingError(
                message, hint="remove the folder; the next run prepares it again", code="tokens-broken"
            ) from error

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.ends_R)

    def sequences_of(self, row: int) -> range:
        """Return the numbers of a row's sequences."""
        return range(int(self.ends_R[row - 1]) if row else 0, int(self.ends_R[row]))

    def ground_truths(self) -> list[object]:
        """Read the ground truth of every row of prompts."""
        return [decode_json(line) for line in (self.folder / _TRUTHS).read_bytes().splitlines()]

    def chat(self, row: int) -> dict[str, object]:
        """Return the columns of a row of prompts, with the prompt as `messages`. Reads the file at the first call."""
        if not self.chats:
            self.chats.extend((self.folder / _CHATS).read_bytes().splitlines())
        return decode_object(self.chats[row])

    def lengths(self) -> np.ndarray:
        """Return the tokens of each sequence."""
        return np.diff(self.ends_S, prepend=0)

    def sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids and the learned marks of a sequence."""
        start, stop = int(self.ends_S[number - 1]) if number else 0, int(self.ends_S[number])
        return self.tokens_N[start:stop], self.learned_N[start:stop]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedColumn:
    """A number for each token of prepared data, such as its log-probability under a reference model.

    Attributes:
        values_N: float32, aligned with `tokens_N`.
    """

    data: PreparedData
    values_N: np.ndarray

    @classmethod
    def stored(cls, data: PreparedData, name: str) -> PreparedColumn | None:
        """Return a stored column; None if there is none, or if it is incomplete."""
        try:
            values_N = np.load(data.folder.with_name(f"{data.key}-{name}.npy"), mmap_mode="r")
        except (OSError, ValueError):
            return None
        return cls(data=data, values_N=values_N) if values_N.shape == data.tokens_N.shape else None

    def store(self, name: str) -> None:
        """Write the column beside its data, atomically."""
        content = io.BytesIO()
        np.save(content, self.values_N)
        write_atomic(self.data.folder.with_name(f"{self.data.key}-{name}.npy"), content.getvalue())

    def of(self, sequence: int) -> np.ndarray:
        """Return the numbers of a sequence's tokens."""
        ends_S = self.data.ends_S
        values: np.ndarray = self.values_N[int(ends_S[sequence - 1]) if sequence else 0 : int(ends_S[sequence])]
        return values


def prepared_root(data: MixtureConfig) -> Path:
    """Return the folder of all prepared data."""
    return (cache_folder(None).with_name("prepared") if data.cache is None else data.cache.expanduser()).absolute()


def prepare(config: MixtureConfig, kind: RowKind, encoder: ChatEncoder, root: Path) -> PreparedData:
    """Return the prepared data of a mixture; prepares it first unless stored. Blocks while another process does.

    Idempotent. A kill leaves nothing that a later call takes for complete.

    Args:
        root: folder of all prepared data.

    Raises:
        SpecError: a source is missing, a row has none of the known forms, or no row is left.
        TrainingError: a file cannot be read or written.
    """
    plans = [_SourcePlan.make(source, config, root) for source in config.mix]
    key = _key(plans, config, kind, encoder)
    folder = root / key
    if not (folder / MANIFEST).is_file():
        try:
            root.mkdir(parents=True, exist_ok=True)
            with lock(root / f"{key}.lock"):
                if not (folder / MANIFEST).is_file():
                    _write(folder, plans, config, kind, encoder)
        except OSError as error:
            message = f"cannot write prepared data to {root}: {error.strerror or error}"
            hint = "free some space or set `data.cache` to another folder"
            raise TrainingError(message, hint=hint, code="not-writable") from error
    return PreparedData.open(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourcePlan:
    """A source with its files, its transforms, and the digest of all of that."""

    config: MixSource
    files: tuple[tuple[SpanKind, str], ...]
    transforms: tuple[Transform, ...]
    digest: str

    @classmethod
    def make(cls, source: MixSource, config: MixtureConfig, root: Path) -> _SourcePlan:
        files = tuple(_files(source, root))
        transforms = tuple(find_transform(name) for name in (*source.transforms, *config.transforms))
        taken = None if source.fraction is None and source.count is None else source.seed
        parts = [
            [sha256_file(Path(path)) for _, path in files],
            [source.fraction, source.count, taken],
            [code_digest(transform) for transform in transforms],
        ]
        return cls(config=source, files=files, transforms=transforms, digest=_digest(parts))

    def rows(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        for file_kind, path in self.files:
            for span in cut_spans(file_kind, path, _PIECE_BYTES):
                yield from records(span)

    def selected(self, num_rows: int) -> dict[int, int]:
        """Return how often each row is taken; rows that are not taken are absent."""
        if self.config.count is None and self.config.fraction is None:
            return dict.fromkeys(range(num_rows), 1)
        count = self.config.count
        if count is None:
            assert self.config.fraction is not None
            count = round(self.config.fraction * num_rows)
        whole, rest = divmod(count, num_rows)
        more = np.random.Generator(np.random.PCG64(self.config.seed)).permutation(num_rows)[:rest]
        found = dict.fromkeys(range(num_rows), whole) if whole else {}
        for row in more.tolist():
            found[row] = found.get(row, 0) + 1
        return found


def _files(source: MixSource, root: Path) -> Iterator[tuple[SpanKind, str]]:
    config = SourceConfig(path=(source.source,), split=source.split, subset=source.subset)
    for found in find_inputs(config):
        if found.kind == "dataset":
            yield from dataset_files(found.path, config, root)
        elif found.kind in ("jsonl", "parquet"):
            yield cast("SpanKind", found.kind), str(Path(found.path).absolute())
        else:
            message = f"{found.path} is {found.kind}; rows are read from JSON Lines, Parquet or datasets"
            raise SpecError([Problem(message, "text-broken", hint="write one JSON object per line, as *.jsonl")])


def _key(plans: Sequence[_SourcePlan], config: MixtureConfig, kind: RowKind, encoder: ChatEncoder) -> str:
    ids = encoder.tokenizer.ids
    parts = [
        _FORMAT,
        kind,
        [plan.digest for plan in plans],
        [encoder.tokenizer.identity, ids.eos_id, ids.bos_id],
        encoder.template.digest,
        [config.max_length, config.long_sequences],
    ]
    return _digest(parts)[:32]


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _write(
    folder: Path, plans: Sequence[_SourcePlan], config: MixtureConfig, kind: RowKind, encoder: ChatEncoder
) -> None:
    """Prepare and commit. The caller holds the lock."""
    hidden = folder.with_name(f"{folder.name}.{os.urandom(4).hex()}.partial")
    for left in folder.parent.glob(f"{folder.name}.*.partial"):  # of killed processes: this one holds the lock
        shutil.rmtree(left)
    if folder.exists():  # no manifest: not complete
        shutil.rmtree(folder)
    hidden.mkdir()
    try:
        rows, statistics = list[_Row](), list[SourceStatistics]()
        for plan in plans:
            statistics.append(_encode(plan, config, kind, encoder, rows))
        if not rows:
            reasons = sum((each.dropped for each in statistics), Counter[str]())
            why = (
                ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3)) or "the sources are empty"
            )
            hint = "raise `data.max_length`, or look at the sources"
            raise SpecError([Problem(f"no row of the mixture is left: {why}", "data-too-small", hint=hint)])
        _store(hidden, rows, statistics)
        os.rename(hidden, folder)
        fsync_directory(folder.parent)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def _encode(
    plan: _SourcePlan,
    config: MixtureConfig,
    kind: RowKind,
    encoder: ChatEncoder,
    rows: list[_Row],
) -> SourceStatistics:
    """Append a source's rows, in the order of the source."""
    found = SourceStatistics(source=plan.config.source)
    found.num_rows = sum(1 for _ in plan.rows())
    if found.num_rows == 0:
        return found
    selected = plan.selected(found.num_rows)
    found.num_selected = sum(selected.values())
    for number, (place, columns) in enumerate(plan.rows()):
        times = selected.get(number, 0)
        if not times:
            continue
        row = _row(plan, columns, place, kind, encoder)
        if not isinstance(row, DropRow):
            num_long = sum(len(each.ids) > config.max_length for each in row.sequences)
            row = _fitted(row, kind, config)
        if isinstance(row, DropRow):
            found.dropped[row.reason] += times
            continue
        rows += [row] * times
        sequences = row.sequences
        found.num_truncated += times * num_long
        found.num_kept += times
        found.num_sequences += times * len(sequences)
        found.num_tokens += times * sum(len(each.ids) for each in sequences)
        found.num_learned += times * sum(each.num_learned for each in sequences)
        found.longest = max(found.longest, *(len(each.ids) for each in sequences))
    return found


def _row(
    plan: _SourcePlan,
    columns: Mapping[str, object],
    place: str,
    kind: RowKind,
    encoder: ChatEncoder,
) -> _Row | DropRow:
    """Return a row's sequences, of any length."""
    for transform in plan.transforms:
        changed = transform(columns)
        if isinstance(changed, DropRow):
            return changed
        columns = changed
    row = read_row(kind, columns, place)
    try:
        truth, chat = getattr(row, "ground_truth", None), _chat(row) if isinstance(row, Prompt) else ""
        return _Row(sequences=_sequences(row, encoder), ground_truth=truth, chat=chat)
    except (TemplateError, SpanError) as error:
        return DropRow(str(error))


def _chat(row: Prompt) -> str:
    """Return what an environment gets to know of a row, as a line of JSON; dates and the like become text."""
    chat = {**row.columns, "messages": [dict(each) for each in row.chat.messages], "tools": list(row.chat.tools)}
    return json.dumps(chat, default=str)


def _fitted(row: _Row, kind: RowKind, config: MixtureConfig) -> _Row | DropRow:
    """Cut or drop sequences longer than `max_length`; a pair keeps both its answers or none, a prompt is never cut."""
    length, sequences = config.max_length, row.sequences
    if any(len(each.ids) > length for each in sequences):
        if config.long_sequences == "drop" or kind == "prompt":
            return DropRow(f"longer than {length} tokens")
        sequences = [_cut(each, length) for each in sequences]
    kept = sequences if kind == "prompt" else [each for each in sequences if each.num_learned]
    if not kept or (kind == "pair" and len(kept) < len(sequences)):
        return DropRow(f"no answer within {length} tokens")
    return replace(row, sequences=kept)


def _sequences(row: Chat | Pair | Prompt, encoder: ChatEncoder) -> list[EncodedSequence]:
    if isinstance(row, Prompt):
        ids = np.array(encoder.prompt(row.chat), dtype=np.int32)
        return [EncodedSequence(ids=ids, is_learned=np.zeros(len(ids), dtype=bool))]
    if isinstance(row, Chat):
        return encoder.sequences(row)
    sides = [encoder.sequences(side) for side in (row.chosen, row.rejected)]
    return [each for side in sides for each in side]  # one each: only the last answer is learned


def _cut(sequence: EncodedSequence, length: int) -> EncodedSequence:
    return EncodedSequence(ids=sequence.ids[:length], is_learned=sequence.is_learned[:length])


def _store(folder: Path, rows: Sequence[_Row], statistics: Sequence[SourceStatistics]) -> None:
    sequences = [each for row in rows for each in row.sequences]
    arrays = {
        "tokens.npy": np.concatenate([np.asarray(each.ids, dtype=np.int32) for each in sequences]),
        "learned.npy": np.concatenate([np.asarray(each.is_learned, dtype=bool) for each in sequences]),
        "ends.npy": np.cumsum([len(each.ids) for each in sequences], dtype=np.int64),
        "rows.npy": np.cumsum([len(row.sequences) for row in rows], dtype=np.int64),
    }
    for name, array in arrays.items():
        with open(folder / name, "wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
    truths = [] if all(row.ground_truth is None for row in rows) else [json.dumps(row.ground_truth) for row in rows]
    write_atomic(folder / _TRUTHS, "".join(f"{truth}\n" for truth in truths).encode())
    write_atomic(folder / _CHATS, "".join(f"{row.chat}\n" for row in rows if row.chat).encode())
    write_json(folder / _STATISTICS, [each.to_data() for each in statistics])
    manifest = {
        "format": _FORMAT,
        "files": {
            name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)}
            for name in (*_ARRAYS, _STATISTICS, _TRUTHS, _CHATS)
        },
    }
    write_json(folder / MANIFEST, manifest)
    fsync_directory(folder)
