"""Builders of token rows: sequences of random lengths laid out padded, packed, or split into microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from windlass.post.objectives.batch import TokenRows
from windlass.train.batch import IGNORE


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One sequence: labels of its positions, weights and streams aligned with them."""

    tokens_T: Tensor
    labels_T: Tensor
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    streams: Mapping[str, Tensor] = field(default_factory=dict)


def laid_out(layout: Sequence[Sequence[int]], sequences: Sequence[Piece], *, padding: int = 0) -> TokenRows:
    """Put sequences into rows; `layout` names the sequences of each row, in order. Rows are padded on the right."""
    used = [number for row in layout for number in row]
    width = max((sum(len(sequences[each].labels_T) for each in row) for row in layout), default=0) + padding
    shape = (len(layout), width)
    tokens, labels = torch.zeros(shape, dtype=torch.int64), torch.full(shape, IGNORE)
    documents, numbers = torch.zeros(shape, dtype=torch.int32), torch.full(shape, -1, dtype=torch.int32)
    dtypes = {name: tensor.dtype for each in sequences for name, tensor in {**each.weights, **each.streams}.items()}
    weights = {name: torch.zeros(shape, dtype=dtypes[name]) for name in sequences[0].weights}
    streams = {name: torch.zeros(shape, dtype=dtypes[name]) for name in sequences[0].streams}
    for row, members in enumerate(layout):
        start = 0
        for document, number in enumerate(members):
            own = sequences[number]
            place = slice(start, start + len(own.labels_T))
            tokens[row, place], labels[row, place] = own.tokens_T, own.labels_T
            documents[row, place], numbers[row, place] = document, used.index(number)
            for name, weight in weights.items():
                weight[row, place] = own.weights[name]
            for name, stream in streams.items():
                stream[row, place] = own.streams[name]
            start = place.stop
        documents[row, start:] = len(members)
    return TokenRows(
        tokens_BT=tokens,
        labels_BT=labels,
        documents_BT=documents,
        sequences_BT=numbers,
        num_sequences=len(used),
        weights=weights,
        streams=streams,
        rows=tuple(used),
    )
