"""Token files, ours and OLMo-core's: what is broken is named before training."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.corpora import EOS, VOCAB, make_documents, make_folder
from windlass.core.errors import SpecError
from windlass.train.data.config import SourceConfig, TokenizerConfig
from windlass.train.data.corpus import Corpus
from windlass.train.data.manifest import check_files, read_manifest
from windlass.train.data.opening import open_corpora, open_corpus
from windlass.train.data.tokenization.writing import write_tokens
from windlass.train.errors import TrainingError

LENGTHS = [5, 3, 9, 4, 7]


def open_path(*paths: Path, vocab_size: int = VOCAB, **settings: object) -> Corpus:
    source = SourceConfig(path=tuple(str(path) for path in paths), **settings)  # type: ignore[arg-type]
    return open_corpus(source, TokenizerConfig(eos_id=EOS), vocab_size=vocab_size)


def everything(corpus: Corpus) -> list[int]:
    tokens_T: np.ndarray = np.empty(corpus.num_tokens, dtype=np.int64)
    corpus.read(0, tokens_T)
    return [int(token) for token in tokens_T]


def flat(lengths: list[int]) -> list[int]:
    return [token for document in make_documents(lengths) for token in document]


@pytest.mark.parametrize("file_tokens", [1, 10, 1000])
def test_a_folder_comes_back_as_it_was_written(tmp_path: Path, file_tokens: int) -> None:
    folder = make_folder(tmp_path / "a", LENGTHS, file_tokens=file_tokens)
    corpus = open_path(folder)
    assert everything(corpus) == flat(LENGTHS)
    assert corpus.ends.tolist() == np.cumsum(LENGTHS).tolist()
    assert len(corpus.parts) == {1: 5, 10: 2, 1000: 1}[file_tokens]
    manifest = read_manifest(folder)
    assert (manifest.dtype, manifest.num_tokens, manifest.num_documents, manifest.max_id) == ("uint16", 28, 5, 23)
    assert sorted(path.suffix for path in folder.iterdir()) == [".bin"] * 2 * len(corpus.parts) + [".json"] * 2
    assert (folder / "tokens-00000.bin").read_bytes()[:6] == bytes([1, 0, 2, 0, 3, 0])  # little-endian


def test_large_vocabularies_take_32_bits(tmp_path: Path) -> None:
    write_tokens(tmp_path, [[70_000, 1]], vocab_size=100_000)
    assert everything(open_path(tmp_path, vocab_size=100_000)) == [70_000, 1]


def test_an_id_that_does_not_fit_is_refused_when_written(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"tokens-00000\.bin: an id does not fit into uint16"):
        write_tokens(tmp_path, [[70_000]], vocab_size=100)
    assert not (tmp_path / "manifest.json").exists()
    assert not list(tmp_path.glob(".*"))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[3] ^= 4
    file.write_bytes(content)
    os.utime(file, ns=(1, 1))  # whatever the clock's grain


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("tokens-00000.bin", cut, "tokens-00000.bin has 55 bytes; its manifest says 56"),
        ("documents-00000.bin", cut, "documents-00000.bin has 19 bytes; its manifest says 20"),
        ("tokens-00000.bin", flip, "tokens-00000.bin does not match its manifest"),
        ("documents-00000.bin", flip, "documents-00000.bin does not match its manifest"),
        ("tokens-00000.bin", Path.unlink, "tokens-00000.bin is missing"),
        (
            "manifest.json",
            lambda file: file.write_text(file.read_text()[:40]),
            "manifest.json is not a valid token manifest: ",
        ),
        (
            "manifest.json",
            lambda file: file.write_text('{"format": "x", "version": 1}'),
            "it is x version 1, not windlass",
        ),
    ],
)
@pytest.mark.parametrize("was_seen", [False, True])
def test_damage_names_the_file(tmp_path: Path, name: str, damage: object, words: str, was_seen: bool) -> None:
    folder = make_folder(tmp_path / "a", LENGTHS)
    if was_seen:
        open_path(folder)
    damage(folder / name)  # type: ignore[operator]
    with pytest.raises(TrainingError) as caught:
        open_path(folder)
    assert caught.value.code == "tokens-broken"
    assert words in caught.value.message
    assert str(folder) in caught.value.message


def test_content_that_was_compared_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "a", LENGTHS)
    open_path(folder)
    monkeypatch.setattr("windlass.train.data.manifest.sha256_file", lambda path: pytest.fail(f"{path} was read"))
    open_path(folder)
    with pytest.raises(pytest.fail.Exception):
        check_files(folder, read_manifest(folder), is_thorough=True)


def test_a_folder_that_cannot_be_written_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "a", LENGTHS)

    def refuse(*args: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("windlass.train.data.manifest.write_json", refuse)
    assert open_path(folder).num_tokens == 28


def test_tokens_beyond_the_model_are_found_by_the_manifest(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", LENGTHS)
    with pytest.raises(TrainingError) as caught:
        open_path(folder, vocab_size=23)
    assert caught.value.message == f"{folder} has token 23; the vocabulary has 23"
    open_path(folder, vocab_size=24)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    write_tokens(tmp_path, [[1, 2]], vocab_size=10, tokenizer="mine")
    with pytest.raises(TrainingError) as caught:
        open_corpus(SourceConfig(path=(str(tmp_path),)), TokenizerConfig(path="bytes"), vocab_size=300)
    assert caught.value.code == "tokenizer-mismatch"


@pytest.mark.parametrize(
    ("documents", "eos_id", "problem"),
    [
        ([[1, 300]], None, "has token 300; the tokenizer bytes ends at 257"),
        ([[1, 2]], 2, "ends documents with token 2; the tokenizer bytes with 256"),
    ],
)
def test_tokens_of_an_unknown_tokenizer_must_fit_the_one_that_is_named(
    tmp_path: Path, documents: list[list[int]], eos_id: int | None, problem: str
) -> None:
    write_tokens(tmp_path / "a", documents, vocab_size=400, eos_id=eos_id)
    with pytest.raises(TrainingError) as caught:
        open_corpus(SourceConfig(path=(str(tmp_path / "a"),)), TokenizerConfig(path="bytes"), vocab_size=400)
    assert (caught.value.message, caught.value.code) == (f"{tmp_path / 'a'} {problem}", "tokenizer-mismatch")
    assert "data.tokenizer.path" in caught.value.hint
    open_corpus(SourceConfig(path=(str(tmp_path / "a"),)), TokenizerConfig(eos_id=eos_id), vocab_size=400)


def test_raw_tokens_must_fit_the_tokenizer_too(tmp_path: Path) -> None:
    file = write_raw(tmp_path / "a.npy", [1, 300, 2])
    with pytest.raises(TrainingError, match="has token 300; the tokenizer bytes ends at 257"):
        open_corpus(SourceConfig(path=(str(file),)), TokenizerConfig(path="bytes"), vocab_size=400)


# ------------------------------------------------------------------------------------------------ OLMo-core's files


def write_raw(path: Path, tokens: list[int], dtype: str = "uint16") -> Path:
    path.write_bytes(np.array(tokens, dtype=dtype).astype(f"<u{np.dtype(dtype).itemsize}").tobytes())
    return path


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")]
)
def test_raw_files_have_the_type_of_the_vocabulary(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    corpus = open_path(write_raw(tmp_path / "a.npy", flat(LENGTHS), dtype), vocab_size=vocab_size)
    assert everything(corpus) == flat(LENGTHS)
    assert corpus.ends.tolist() == [5, 8, 17, 21, 28]


def test_raw_files_may_state_their_type(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.npy", flat(LENGTHS), "uint64")
    assert everything(open_path(path, dtype="uint64")) == flat(LENGTHS)


def test_true_npy_files_are_read_by_their_header(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(flat(LENGTHS), dtype=np.int32))
    assert everything(open_path(tmp_path / "a.npy")) == flat(LENGTHS)
    np.save(tmp_path / "b.npy", np.zeros((2, 2), dtype=np.float32))
    with pytest.raises(TrainingError, match=r"b\.npy has 2 dimensions of float32"):
        open_path(tmp_path / "b.npy")
    np.save(tmp_path / "c.npy", np.array([3, -1]))
    with pytest.raises(TrainingError, match=r"c\.npy has token -1"):
        open_path(tmp_path / "c.npy")


def test_a_pickle_in_a_npy_file_is_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(TrainingError, match=r"cannot read .*a\.npy"):
        open_path(tmp_path / "a.npy")


def test_documents_come_from_the_sidecar_before_the_end_marks(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.npy", [1, 2, 3, 4, 5, 6, 7, 8])
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("0,3\n3,6\n")
    assert open_path(path).ends.tolist() == [3, 6, 8]  # what is left is a document too
    (tmp_path / "a.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(TrainingError, match=r"cannot read .*a\.csv\.gz"):
        _ = open_path(path).ends
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("0,9\n")
    with pytest.raises(TrainingError, match="documents outside the 8 tokens"):
        _ = open_path(path).ends


def test_an_end_mark_counts_before_a_begin_mark_where_there_is_one(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.npy", [9, 1, 0, 2, 0, 9, 3, 0])
    source = SourceConfig(path=(str(path),))
    corpus = open_corpus(source, TokenizerConfig(eos_id=0, bos_id=9), vocab_size=300)
    assert corpus.ends.tolist() == [5, 8]
    assert open_path(path, dtype="uint16").ends.tolist() == [3, 5, 8]


def test_without_an_end_mark_documents_are_nowhere(tmp_path: Path) -> None:
    source = SourceConfig(path=(str(write_raw(tmp_path / "a.npy", [1, 2])),))
    corpus = open_corpus(source, TokenizerConfig(), vocab_size=300)
    assert corpus.num_tokens == 2
    with pytest.raises(TrainingError, match="unknown ends of documents"):
        _ = corpus.ends


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\1\0\2", "a.npy has 3 bytes, not a multiple of a uint16 token"),
        (b"", "a.npy has 0 bytes"),
        (b"\1\0\xff\xff", "token 65535"),
    ],
)
def test_broken_raw_files_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(TrainingError) as caught:
        open_path(tmp_path / "a.npy")
    assert words in caught.value.message


def test_label_masks_stand_beside(tmp_path: Path) -> None:
    paths = [write_raw(tmp_path / f"{name}.npy", [1, 2, 3]) for name in "ab"]
    masks = [tmp_path / f"{name}.mask" for name in "ab"]
    masks[0].write_bytes(bytes([1, 0, 1]))
    masks[1].write_bytes(bytes([0, 0, 1]))
    corpus = open_path(*paths, label_mask=tuple(str(path) for path in masks))
    mask_T: np.ndarray = np.empty(6, dtype=bool)
    corpus.read_mask(0, mask_T)
    assert mask_T.tolist() == [True, False, True, False, False, True]
    with pytest.raises(TrainingError, match="2 token files and 1 label mask"):
        open_path(*paths, label_mask=(str(masks[0]),))
    masks[1].write_bytes(b"\0")
    with pytest.raises(TrainingError, match=r"b\.mask has 1 boolean for the 3 tokens of .*b\.npy"):
        open_path(*paths, label_mask=tuple(str(path) for path in masks))


def test_a_changed_raw_file_has_another_digest(tmp_path: Path) -> None:
    first = open_path(write_raw(tmp_path / "a.npy", [1, 2, 3])).digest
    assert open_path(write_raw(tmp_path / "a.npy", [1, 2, 3])).digest == first
    assert open_path(write_raw(tmp_path / "a.npy", [1, 2, 4])).digest != first


def test_all_paths_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    sources = [SourceConfig(path=(str(tmp_path / name),)) for name in ("no", "*.npy")]
    with pytest.raises(SpecError) as caught:
        open_corpora(sources, TokenizerConfig(), vocab_size=10)
    assert [problem.message for problem in caught.value.problems] == [
        f"no data at {tmp_path}/no",
        f"no data at {tmp_path}/*.npy",
    ]


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", LENGTHS)
    with pytest.raises(SpecError) as caught:
        open_path(folder, label_mask=("x",), dtype="uint8")
    assert [problem.code for problem in caught.value.problems] == ["setting-unused", "setting-unused"]


def test_manifests_are_json_that_people_can_read(tmp_path: Path) -> None:
    data = json.loads((make_folder(tmp_path / "a", LENGTHS) / "manifest.json").read_text())
    assert data["num_tokens"] == 28
    assert data["files"][0]["name"] == "tokens-00000.bin"
