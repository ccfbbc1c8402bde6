"""Batches of prepared rows: microbatches under a token budget, balanced over processes.

A row (a chat's sequences, or the two of a pair) always stays in one microbatch. Sequences of similar length share a
microbatch, one sequence per row of it, so that little is padding. Every process knows all lengths, so all agree on the
division without communicating.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch

from windlass.post.data.config import MixtureConfig
from windlass.post.data.position import PreparedPosition
from windlass.post.data.prepared import PreparedColumn, PreparedData
from windlass.post.objectives.batch import TokenBatch, TokenRows
from windlass.train.batch import IGNORE
from windlass.train.data.loader import Prefetch
from windlass.train.data.protocol import Share

__all__ = ["Microbatch", "Places", "RowLoader", "collate", "divide"]

Places = Literal["labels", "last", "answer"]
"""Positions that weights count: those whose label is learned, each last token, or the learned tokens themselves."""

Microbatch = tuple[int, ...]
"""Keys of the rows of one microbatch."""


def divide(costs: Mapping[int, Sequence[int]], *, num_processes: int, budget: int) -> list[list[Microbatch]]:
    """Divide the rows of a batch into microbatches of about equal work for every process.

    The longest rows first go to the process with the least work, counted as the sum of squared lengths; O(n log n).

    Args:
        costs: lengths of the sequences of each row.
        budget: most tokens of a microbatch, padding included; a longer row has one of its own.

    Returns:
        A list for each process, all of the same length; a process may get empty microbatches.
    """
    order = sorted(costs, key=lambda row: (-max(costs[row]), row))
    loads = [0] * num_processes
    shares: list[list[int]] = [[] for _ in range(num_processes)]
    for row in order:
        process = loads.index(min(loads))
        loads[process] += sum(length * length for length in costs[row])
        shares[process].append(row)
    parts = [list(_parts(share, costs, budget)) for share in shares]
    most = max(map(len, parts))
    return [part + [()] * (most - len(part)) for part in parts]


def _parts(rows: Sequence[int], costs: Mapping[int, Sequence[int]], budget: int) -> Iterator[Microbatch]:
    """Yield microbatches of rows that are sorted by length, longest first."""
    part: list[int] = []
    width = count = 0
    for row in rows:
        if part and width * (count + len(costs[row])) > budget:
            yield tuple(part)
            part, count, width = [], 0, 0
        part.append(row)
        width, count = max(width, *costs[row]), count + len(costs[row])
    if part:
        yield tuple(part)


def collate(
    data: PreparedData,
    rows: Microbatch,
    *,
    weights: Iterable[str],
    pad_id: int,
    are_pairs: bool = False,
    at: Places = "labels",
    reference: PreparedColumn | None = None,
) -> TokenRows:
    """Return the rows' sequences as a rectangle, padded on the right.

    Args:
        weights: names of weights, each 1 at the places of `at` and 0 elsewhere.
        are_pairs: whether each row is a pair of (chosen, rejected).
        at: labels: positions whose label is learned; last: the last token of each sequence; answer: learned tokens.
        reference: log-probabilities of all tokens, which become the stream `reference`.
    """
    sequences = [number for row in rows for number in data.sequences_of(row)]
    parts = [data.sequence(number) for number in sequences]
    shape = (max(1, len(parts)), max((len(ids) for ids, _ in parts), default=2))
    tokens_BT = np.full(shape, pad_id, dtype=np.int64)
    labels_BT = np.full(shape, IGNORE, dtype=np.int64)
    sequences_BT = np.full(shape, -1, dtype=np.int32)
    for number, (ids, learned) in enumerate(parts):
        tokens_BT[number, : len(ids)] = ids
        labels_BT[number, : len(ids) - 1] = np.where(learned[1:], ids[1:], IGNORE)
        if at == "labels":
            sequences_BT[number, : len(ids) - 1] = np.where(learned[1:], number, -1)
        elif at == "answer":
            sequences_BT[number, : len(ids)] = np.where(learned, number, -1)
        else:
            sequences_BT[number, len(ids) - 1] = number
    streams = {}
    if reference is not None:
        stream_BT = np.zeros(shape, dtype=np.float32)
        for number, sequence in enumerate(sequences):
            logp = reference.of(sequence)
            stream_BT[number, : len(logp) - 1] = logp[1:]
        streams["reference"] = torch.from_numpy(stream_BT)
    weights_BT = torch.from_numpy((sequences_BT >= 0).astype(np.float32))
    return TokenRows(
        tokens_BT=torch.from_numpy(tokens_BT),
        labels_BT=torch.from_numpy(labels_BT),
        sequences_BT=torch.from_numpy(sequences_BT),
        num_sequences=len(parts),
        weights=dict.fromkeys(weights, weights_BT),
        streams=streams,
        pairs_P2=torch.arange(len(parts), dtype=torch.int32).reshape(-1, 2) if are_pairs else None,
        rows=tuple(rows),
    )


class RowLoader(PreparedPosition):
    """Endless batches of prepared rows, in an order that is a pure function of seed, epoch and index.

    A batch at the end of an epoch is filled from the next one, so no row is lost. The order of rows and their division
    into batches depend neither on the number of processes nor on microbatches.

    Args:
        weights, at, reference: see `collate`.
        are_pairs: whether rows are pairs of (chosen, rejected).
        pad_id: id of padding.
        seed: shuffling seed, if the settings have none.
        is_pinned: whether to put batches into page-locked memory.
    """

    def __init__(
        self,
        data: PreparedData,
        config: MixtureConfig,
        *,
        weights: Iterable[str],
        pad_id: int,
        seed: int,
        share: Share,
        are_pairs: bool = False,
        at: Places = "labels",
        reference: PreparedColumn | None = None,
        is_pinned: bool = False,
    ) -> None:
        super().__init__(data, config, seed=seed)
        self._weights, self._are_pairs, self._pad_id = tuple(weights), are_pairs, pad_id
        self._at, self._reference = at, reference
        self._share, self._is_pinned = share, is_pinned
        self._lengths_S = data.lengths()

    def __iter__(self) -> Iterator[TokenBatch]:
        """Yield this process's share of each global batch from the current position, endlessly."""
        made = self._make(self.position)
        ahead = Prefetch(made, depth=self._config.prefetch) if self._config.prefetch else None
        try:
            while True:
                batch, self.position = next(made) if ahead is None else ahead.next()
                yield batch
        finally:
            if ahead is not None:
                ahead.close()

    def _make(self, position: int) -> Iterator[tuple[TokenBatch, int]]:
        """Yield batches, each with the position after it."""
        while True:
            rows = self.rows_at(position)
            # by place, since a row can occur twice: at the end of an epoch and the beginning of the next
            costs = {place: self._costs(row) for place, row in enumerate(rows)}
            parts = divide(costs, num_processes=self._share.world, budget=self._config.microbatch_tokens)
            mine = parts[self._share.rank]
            position += self._config.batch_rows
            yield TokenBatch(parts=tuple(self._collated([rows[place] for place in part]) for part in mine)), position

    def _collated(self, rows: Sequence[int]) -> TokenRows:
        found = collate(
            self._data,
            tuple(rows),
            weights=self._weights,
            pad_id=self._pad_id,
            are_pairs=self._are_pairs,
            at=self._at,
            reference=self._reference,
        )
        return found.pinned() if self._is_pinned else found

    def _costs(self, row: int) -> list[int]:
        return [int(self._lengths_S[number]) for number in self._data.sequences_of(row)]
