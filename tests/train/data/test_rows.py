"""Layouts: which tokens rows hold, what their labels are, and which documents they belong to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.data.corpora import EOS, PAD, VOCAB, make_corpus, make_documents
from windlass.train.batch import IGNORE, Batch
from windlass.train.data.collate import Collator, RowPlace
from windlass.train.data.corpus import Corpus
from windlass.train.data.rows import cut_rows
from windlass.train.errors import TrainingError


def batch_of(corpus: Corpus, layout: str, length: int = 8, long_documents: str = "split", vocab: int = VOCAB) -> Batch:
    """All rows of a corpus."""
    table = cut_rows(corpus, length, layout=layout, long_documents=long_documents)  # type: ignore[arg-type]
    collator = Collator(
        corpora=[corpus], tables=[table], length=length, pad_id=PAD, has_documents=True, vocab_size=vocab
    )
    places = [RowPlace(row, 0, row) for row in range(table.num_rows)]
    return collator.batch(places, width=length, cuts=None, num_rows_step=1)


def test_chunk_joins_documents_and_their_labels() -> None:
    batch = batch_of(make_corpus([5, 3, 9, 4]), "chunk")
    assert batch.tokens_BT.tolist() == [[1, 2, 3, 4, 0, 5, 6, 0], [7, 8, 9, 10, 11, 12, 13, 14]]
    assert batch.labels_BT.tolist() == [[2, 3, 4, 0, 5, 6, 0, IGNORE], [8, 9, 10, 11, 12, 13, 14, IGNORE]]
    assert batch.documents_BT is not None
    assert batch.documents_BT.tolist() == [[0, 0, 0, 0, 0, 1, 1, 1], [0] * 8]
    assert batch.rows == (0, 1)


def test_chunk_goes_over_the_borders_of_files() -> None:
    assert batch_of(make_corpus([5, 3, 9, 4], num_parts=2), "chunk").tokens_BT.tolist() == [
        [1, 2, 3, 4, 0, 7, 8, 9],
        [10, 11, 12, 13, 14, 0, 5, 6],
    ]


def test_pack_keeps_documents_whole_and_apart() -> None:
    batch = batch_of(make_corpus([5, 3, 6, 2]), "pack")
    assert batch.tokens_BT.tolist() == [[7, 8, 9, 10, 11, 0, 12, 0], [1, 2, 3, 4, 0, 5, 6, 0]]
    assert batch.labels_BT.tolist() == [[8, 9, 10, 11, 0, IGNORE, 0, IGNORE], [2, 3, 4, 0, IGNORE, 6, 0, IGNORE]]
    assert batch.documents_BT is not None
    assert batch.documents_BT.tolist() == [[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]


def test_pad_gives_each_document_a_row() -> None:
    batch = batch_of(make_corpus([3, 8]), "pad")
    assert batch.tokens_BT.tolist() == [[1, 2, 0, PAD, PAD, PAD, PAD, PAD], [3, 4, 5, 6, 7, 8, 9, 0]]
    assert batch.labels_BT.tolist() == [[2, 0, *[IGNORE] * 6], [4, 5, 6, 7, 8, 9, 0, IGNORE]]
    assert batch.documents_BT is not None
    assert batch.documents_BT.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1], [0] * 8]


@pytest.mark.parametrize(
    ("long_documents", "rows"),
    [
        ("split", [[1, 2, 3, 4], [5, 6, 7, 8], [9, 0], [10, 0]]),
        ("truncate", [[1, 2, 3, 4], [10, 0]]),
        ("drop", [[10, 0]]),
    ],
)
def test_long_documents(long_documents: str, rows: list[list[int]]) -> None:
    found = batch_of(make_corpus([10, 2]), "pad", 4, long_documents).tokens_BT.tolist()
    assert [[token for token in row if token != PAD] for row in found] == rows


def test_a_label_mask_takes_out_labels_not_tokens() -> None:
    batch = batch_of(make_corpus([5, 3], mask=True), "chunk")
    assert batch.tokens_BT.tolist() == [[1, 2, 3, 4, 0, 5, 6, 0]]
    assert batch.labels_BT.tolist() == [[2, 3, IGNORE, 0, 5, 6, 0, IGNORE]]


def test_a_token_outside_the_vocabulary_is_named_with_its_file() -> None:
    with pytest.raises(TrainingError) as caught:
        batch_of(make_corpus([5, 3, 9, 4], num_parts=2), "chunk", vocab=14)
    assert caught.value.code == "tokenizer-mismatch"
    assert caught.value.message == "part 0 has token 14; the vocabulary has 14"
    batch_of(make_corpus([5, 3, 9, 4], num_parts=2), "chunk", vocab=15)


LENGTHS = st.lists(st.integers(2, 30), min_size=1, max_size=25)


@settings(max_examples=40)
@given(LENGTHS, st.sampled_from(["pack", "pad", "bucket"]), st.integers(2, 16))
def test_each_token_stands_once_and_each_pair_of_neighbours_is_a_label(
    lengths: list[int], layout: str, length: int
) -> None:
    batch = batch_of(make_corpus(lengths), layout, length)
    tokens = [token for row in batch.tokens_BT.tolist() for token in row if token != PAD]
    documents = make_documents(lengths)
    assert sorted(tokens) == sorted(token for document in documents for token in document)
    expected = sum(sum(min(length, size - start) - 1 for start in range(0, size, length)) for size in lengths)
    assert int((batch.labels_BT != IGNORE).sum()) == expected
    assert batch.documents_BT is not None
    for row, labels, numbers in zip(
        batch.tokens_BT.tolist(), batch.labels_BT.tolist(), batch.documents_BT.tolist(), strict=True
    ):
        assert numbers == sorted(numbers)
        for place, label in enumerate(labels):
            if label != IGNORE:
                assert label == row[place + 1] != PAD
                assert numbers[place] == numbers[place + 1]


@settings(max_examples=40)
@given(LENGTHS, st.integers(2, 16), st.integers(1, 3))
def test_chunk_holds_all_but_the_rest(lengths: list[int], length: int, num_parts: int) -> None:
    corpus = make_corpus(lengths, num_parts=num_parts)
    batch = batch_of(corpus, "chunk", length)
    everything = np.concatenate([part.tokens_T for part in corpus.parts])
    assert batch.tokens_BT.reshape(-1).tolist() == everything[: len(everything) // length * length].tolist()
    assert batch.documents_BT is not None
    for row, numbers in zip(batch.tokens_BT.tolist(), batch.documents_BT.tolist(), strict=True):
        assert numbers == np.cumsum([0, *[token == EOS for token in row[:-1]]]).tolist()
