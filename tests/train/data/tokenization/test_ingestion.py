"""Text becomes tokens once: from every kind of file, by several processes, whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core.errors import SpecError, WindlassError
from windlass.train.data.config import SourceConfig, TokenizerConfig
from windlass.train.data.corpus import Corpus
from windlass.train.data.opening import open_corpus
from windlass.train.data.tokenization import ingestion, readers, tokenizing, units
from windlass.train.data.tokenization.ingestion import ingest
from windlass.train.data.tokenization.readers import Span, cut_spans, documents
from windlass.train.data.tokenization.units import Unit, UnitResult, WorkerSettings
from windlass.train.data.tokenizer import load_tokenizer
from windlass.train.errors import TrainingError

BYTES = TokenizerConfig(path="bytes")
TEXTS = ["first document\n", "second \u00e9\u4e16", "", "third", "a" * 50]


def texts_of(folder: Path) -> list[str]:
    """The documents of a folder of tokens, in order."""
    corpus = open_corpus(SourceConfig(path=(str(folder),)), BYTES, vocab_size=258)
    return split(corpus)


def split(corpus: Corpus) -> list[str]:
    tokens_T: np.ndarray = np.empty(corpus.num_tokens, dtype=np.int64)
    corpus.read(0, tokens_T)
    found = [part.tolist() for part in np.split(tokens_T, corpus.ends)[:-1]]
    assert all(document[-1] == 256 for document in found)
    return [load_tokenizer(BYTES).decode(document) for document in found]


def make(tmp_path: Path, *paths: Path | str, **fields: object) -> list[str]:
    source = SourceConfig(path=tuple(str(path) for path in paths), **fields)  # type: ignore[arg-type]
    return texts_of(ingest(source, BYTES, cache=tmp_path / "cache", num_workers=1))


def jsonl(texts: list[str], field: str = "text") -> bytes:
    return b"".join(json.dumps({"id": 1, field: text}).encode() + b"\n" for text in texts)


KEPT = [text for text in TEXTS if text]


def test_a_text_file_is_a_document(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
    assert make(tmp_path, tmp_path / "*.txt") == KEPT


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    for name, text in {
        "b/c.py": "two",
        "a.txt": "one",
        "b/.hidden/x.txt": "no",
        "b/d.jsonl": '{"text": "three"}',
    }.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text)
    assert make(tmp_path, tmp_path / "in") == ["one", "two", "three"]


def test_jsonl_plain_and_packed(tmp_path: Path) -> None:
    import pyarrow as pa

    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS) + b"\n  \n" + jsonl(["no newline"])[:-1])
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(jsonl(TEXTS)))
    (tmp_path / "c.jsonl.zst").write_bytes(pa.compress(jsonl(TEXTS), codec="zstd", asbytes=True))
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"packed text", mtime=0))
    assert make(tmp_path, tmp_path / "a.jsonl") == [*KEPT, "no newline"]
    assert make(tmp_path, *(tmp_path / name for name in ("b.json.gz", "c.jsonl.zst", "d.txt.gz"))) == [
        *KEPT,
        *KEPT,
        "packed text",
    ]


def test_parquet_and_datasets(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"body": [*TEXTS, None], "n": range(6)}), tmp_path / "a.parquet", row_group_size=2)
    assert make(tmp_path, tmp_path / "a.parquet", text_field="body") == KEPT
    assert len(cut_spans("parquet", str(tmp_path / "a.parquet"), 1)) == 3
    with pytest.raises(TrainingError) as caught:
        make(tmp_path, tmp_path / "a.parquet")
    assert (caught.value.code, caught.value.hint) == (
        "text-broken",
        "set `text_field` of the source to one of: body, n",
    )


@pytest.mark.system
def test_datasets_of_a_folder_and_parts_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "train.jsonl").write_bytes(jsonl(KEPT))
    datasets.Dataset.from_dict({"text": KEPT}).save_to_disk(tmp_path / "saved")
    assert make(tmp_path, tmp_path / "saved") == KEPT
    assert make(tmp_path, f"hf:{tmp_path / 'in'}") == KEPT
    assert make(tmp_path, f"hf:{tmp_path / 'in'}", split="train[:50%]") == KEPT[:2]
    with pytest.raises(SpecError, match="cannot read the dataset"):
        make(tmp_path, f"hf:{tmp_path / 'in'}", split="nosplit")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', "a.jsonl:2 is not valid JSON"),
        ("a.jsonl", b'[\n {"text": "x"}\n]\n', "a.jsonl is a JSON array; documents must be JSON Lines"),
        ("a.json", b'[{"text": "x"}]', "a.json is a JSON array; documents must be JSON Lines"),
        ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', "a.jsonl:2 has no text in `text`"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1 has no text in `text`"),
        ("a.txt", b"ab\xff", "a.txt is not valid UTF-8 at byte 2"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 99, mtime=0)[:-12], "/a.jsonl.gz: "),
        ("a.txt.gz", b"no gzip", "/a.txt.gz: "),
        ("a.jsonl.zst", b"no zstd", "/a.jsonl.zst: "),
        ("a.parquet", b"no parquet", "a.parquet is not a valid Parquet file"),
    ],
)
def test_broken_text_names_file_and_place(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TrainingError) as caught:
        make(tmp_path, tmp_path / name)
    assert caught.value.code == "text-broken"
    assert words in caught.value.message
    assert not list((tmp_path / "cache").glob("*/manifest.json"))


def test_half_a_surrogate_is_replaced_not_fatal(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x\\ud83dy"}\n{"text": "z"}\n')
    assert make(tmp_path, tmp_path / "a.jsonl") == ["x?y", "z"]


def test_nothing_but_empty_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(SpecError) as caught:
        make(tmp_path, tmp_path / "a.txt")
    assert caught.value.code == "data-too-small"


@given(st.lists(st.text(max_size=20), max_size=15), st.integers(1, 40), st.booleans())
@settings(max_examples=60)
def test_spans_of_a_file_have_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], piece_bytes: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("spans") / "a.jsonl"
    content = jsonl(texts)
    path.write_bytes(content if ends else content[:-1])
    spans = cut_spans("jsonl", str(path), piece_bytes)
    assert [text for span in spans for text in documents(span, "text")] == texts


# ---------------------------------------------------------------------------------------------------------- the cache


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceConfig:
    """A source of 20 documents in about ten units."""
    monkeypatch.setattr(units, "_UNIT_BYTES", (100, 100))
    (tmp_path / "a.jsonl").write_bytes(jsonl([f"document number {number}" for number in range(20)]))
    return SourceConfig(path=(str(tmp_path / "a.jsonl"),))


EXPECTED = [f"document number {number}" for number in range(20)]


def test_a_second_call_makes_nothing(tmp_path: Path, many: SourceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ingest(many, BYTES, cache=tmp_path / "cache", num_workers=1)
    assert texts_of(folder) == EXPECTED
    assert len(list(folder.glob("tokens-*.bin"))) > 5
    monkeypatch.setattr(ingestion, "run_units", lambda *args, **fields: pytest.fail("made again"))
    assert ingest(many, BYTES, cache=tmp_path / "cache") == folder


def test_what_decides_the_tokens_decides_the_key(tmp_path: Path, many: SourceConfig) -> None:
    def key(source: SourceConfig, tokenizer: TokenizerConfig = BYTES) -> str:
        return ingest(source, tokenizer, cache=tmp_path / "cache", num_workers=1).name

    first = key(many)
    assert key(SourceConfig(path=many.path, ratio=2.0, max_repeats=9)) == first
    assert key(many, TokenizerConfig(path="bytes", pad_id=3)) == first
    assert key(many, TokenizerConfig(path="bytes", eos_id=3)) != first
    assert key(many, TokenizerConfig(path="bytes", bos_id=3)) != first
    os.utime(many.path[0], ns=(5, 5))
    assert key(many) != first


@pytest.mark.parametrize("killed_after", range(0, 8, 2))
def test_what_was_done_is_kept(
    tmp_path: Path, many: SourceConfig, monkeypatch: pytest.MonkeyPatch, killed_after: int
) -> None:
    true_run = tokenizing.run_units
    made: list[int] = []

    def run(limit: int | None) -> Callable[..., Iterator[UnitResult]]:
        def until(*args: object, **fields: object) -> Iterator[UnitResult]:
            for count, result in enumerate(true_run(*args, **fields)):  # type: ignore[arg-type]
                if count == limit:
                    raise KeyboardInterrupt
                made.append(result.number)
                yield result

        return until

    monkeypatch.setattr(ingestion, "run_units", run(killed_after))
    with pytest.raises(KeyboardInterrupt):
        ingest(many, BYTES, cache=tmp_path / "cache", num_workers=1)
    monkeypatch.setattr(ingestion, "run_units", run(None))
    folder = ingest(many, BYTES, cache=tmp_path / "cache", num_workers=1)
    assert texts_of(folder) == EXPECTED
    assert sorted(made) == sorted(set(made))  # no unit twice
    assert not list((tmp_path / "cache").glob("*.partial"))
    assert not list(folder.glob("unit-*"))


def test_a_unit_whose_files_were_cut_is_made_again(
    tmp_path: Path, many: SourceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion, "_commit", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        ingest(many, BYTES, cache=tmp_path / "cache", num_workers=1)
    monkeypatch.undo()
    monkeypatch.setattr(units, "_UNIT_BYTES", (100, 100))
    partial = next((tmp_path / "cache").glob("*.partial"))
    (partial / "tokens-00001.bin").write_bytes(b"\0")
    (partial / "documents-00002.bin").unlink()
    (partial / "unit-00003.json").write_text("{")
    assert texts_of(ingest(many, BYTES, cache=tmp_path / "cache", num_workers=1)) == EXPECTED


def test_text_that_changes_meanwhile_is_not_committed(
    tmp_path: Path, many: SourceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_run = tokenizing.run_units

    def touching(*args: object, **fields: object) -> Iterator[UnitResult]:
        yield from true_run(*args, **fields)  # type: ignore[arg-type]
        os.utime(many.path[0], ns=(7, 7))

    monkeypatch.setattr(ingestion, "run_units", touching)
    with pytest.raises(TrainingError) as caught:
        ingest(many, BYTES, cache=tmp_path / "cache", num_workers=1)
    assert (caught.value.code, caught.value.message) == (
        "input-changed",
        f"{many.path[0]} changed while it was being read",
    )
    assert not list((tmp_path / "cache").glob("*/manifest.json"))


def test_a_full_disk_says_where(tmp_path: Path, many: SourceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **fields: object) -> Iterator[UnitResult]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ingestion, "run_units", full)
    with pytest.raises(TrainingError) as caught:
        ingest(many, BYTES, cache=tmp_path / "cache", num_workers=1)
    assert caught.value.code == "not-writable"
    assert caught.value.message == f"cannot write tokens to {tmp_path / 'cache'}: No space left on device"


def test_progress_ends_at_the_size_of_the_text(tmp_path: Path, many: SourceConfig) -> None:
    told: list[tuple[int, int]] = []
    ingest(many, BYTES, cache=tmp_path / "cache", num_workers=1, on_progress=lambda *pair: told.append(pair))
    size = Path(many.path[0]).stat().st_size
    assert told[-1] == (size, size)
    assert told == sorted(told)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(WindlassError) as caught:
        make(tmp_path, "hf:someone/something")
    assert (caught.value.code, caught.value.hint) == ("extra-missing", "`pip install datasets`")


def test_addresses_are_not_read() -> None:
    with pytest.raises(SpecError, match="tokens and text are read from files"):
        open_corpus(SourceConfig(path=("s3://bucket/x.npy",)), BYTES, vocab_size=258)


def test_a_vocabulary_that_is_too_small_is_refused_before_work(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(SpecError) as caught:
        open_corpus(SourceConfig(path=(str(tmp_path / "a.txt"),)), BYTES, vocab_size=257, cache=tmp_path / "cache")
    assert caught.value.message == "the tokenizer bytes has 258 ids; the model's vocabulary has 257"
    assert not (tmp_path / "cache").exists()


def test_settings_of_workers_are_json() -> None:
    unit = Unit(number=3, spans=(Span(kind="jsonl", path="a", start=0, stop=5, num_bytes=5),))
    settings_ = WorkerSettings(folder="f", dtype="uint16", text_field="text", tokenizer=BYTES)
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(unit))) == {
        "number": 3,
        "spans": [{"kind": "jsonl", "path": "a", "start": 0, "stop": 5, "num_bytes": 5}],
    }
    assert json.loads(json.dumps(asdict(settings_)))["tokenizer"]["path"] == "bytes"
    assert readers.text_bytes(__file__) == Path(__file__).stat().st_size
