"""Sums over sequences, and copies of token rows."""

from __future__ import annotations

import torch

from windlass.post.objectives.batch import TokenBatch, TokenRows


def rows() -> TokenRows:
    return TokenRows(
        tokens_BT=torch.arange(8).reshape(2, 4),
        labels_BT=torch.arange(1, 9).reshape(2, 4),
        sequences_BT=torch.tensor([[0, 0, -1, 1], [3, -1, -1, 3]], dtype=torch.int32),
        num_sequences=4,
        weights={"nll": torch.ones(2, 4)},
        streams={"advantage": torch.zeros(2, 4)},
        pairs_P2=torch.tensor([[0, 1]], dtype=torch.int32),
        rows=(7, 9),
    )


def test_sums_over_sequences_are_float64_and_leave_out_labels_of_none() -> None:
    values = torch.tensor([[1.0, 2.0, 100.0, 4.0], [8.0, 100.0, 100.0, 16.0]], requires_grad=True)
    sums = rows().sequence_sums(values)
    assert sums.dtype == torch.float64
    assert sums.tolist() == [3.0, 4.0, 0.0, 24.0]
    (sums * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[1.0, 1.0, 0.0, 2.0], [4.0, 0.0, 0.0, 4.0]]


def test_values_of_sequences_at_their_labels() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    placed = rows().at_labels(values)
    assert placed.tolist() == [[1.0, 1.0, 0.0, 2.0], [4.0, 0.0, 0.0, 4.0]]
    placed.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [2.0, 1.0, 0.0, 2.0]


def test_an_empty_microbatch_has_no_sums() -> None:
    empty = torch.zeros((0, 4))
    none = TokenRows(
        tokens_BT=empty.long(), labels_BT=empty.long(), sequences_BT=empty.int(), num_sequences=0, weights={}
    )
    assert none.sequence_sums(empty).tolist() == []
    assert none.at_labels(torch.zeros(0)).shape == (0, 4)


def test_a_copy_on_another_device_has_every_tensor_there() -> None:
    moved = rows().to("meta")
    named = {**moved.weights, **moved.streams}
    tensors = [moved.tokens_BT, moved.labels_BT, moved.sequences_BT, moved.pairs_P2, *named.values()]
    assert [tensor.device.type for tensor in tensors if tensor is not None] == ["meta"] * 6
    assert (moved.documents_BT, moved.margins_P, moved.rows) == (None, None, (7, 9))


def test_a_batch_counts_tokens_and_names_rows() -> None:
    batch = TokenBatch(parts=(rows(), rows()))
    assert batch.num_tokens == 16
    assert batch.rows == (7, 9, 7, 9)
