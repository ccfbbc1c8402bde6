"""Rows in which members of a group follow their prompt, so that it is computed once for all of them.

A row is the prompt but for its last token, then for each member that token and the answer but for its last one: exactly
the tokens that something is predicted from. Members see the prompt and themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import torch

from windlass.post.control.scoring import ScoredSample
from windlass.post.objectives.batch import TokenRows
from windlass.train.batch import IGNORE

__all__ = ["Members", "row_length", "shared_members", "shared_rows"]

Members: TypeAlias = Sequence[tuple[ScoredSample, float]]
"""Answers to one prompt that share a row, each with its advantage."""

TOKEN_COST = 12
"""Cost of a token in products with weights, per unit of width, over that of a pair of tokens in attention: measured on one
thread of a CPU (docs/evidence/post-training.md)."""


def row_length(members: Members) -> int:
    """Return the number of tokens of a row."""
    return len(members[0][0].prompt_ids) - 1 + sum(len(scored.sample.ids) for scored, _ in members)


def shared_members(
    answers: Sequence[tuple[ScoredSample, float]], *, width: int, budget: int
) -> list[list[tuple[ScoredSample, float]]]:
    """Divide each group over as many rows as cost least: a row repeats the prompt, and a longer row has more pairs.

    Args:
        answers: in the order of group and member.
        width: of the residual stream.
        budget: most tokens of a row; a longer answer has one of its own.
    """
    return [
        row
        for _, group in groupby(answers, lambda each: each[0].sample.id.group)
        for row in _divided(list(group), width, budget)
    ]


def _divided(
    group: list[tuple[ScoredSample, float]], width: int, budget: int
) -> list[list[tuple[ScoredSample, float]]]:
    def cost(rows: list[list[tuple[ScoredSample, float]]]) -> float:
        # single answers are attended to causally, half of the pairs; in shared rows hidden pairs are computed too
        share = 1.0 if len(rows) < len(group) else 0.5
        return sum(length * (TOKEN_COST * width + share * length) for length in map(row_length, rows))

    def possible() -> Iterator[list[list[tuple[ScoredSample, float]]]]:
        for count in range(1, len(group) + 1):
            places = np.array_split(np.arange(len(group)), count)
            rows = [[group[place] for place in part.tolist()] for part in places]
            if count == len(group) or max(map(row_length, rows)) <= budget:
                yield rows

    return min(possible(), key=cost)


def shared_rows(
    rows: Sequence[Members],
    *,
    pad_id: int,
    weight: str = "policy",
    prompt: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple,
) -> TokenRows:
    """Return a microbatch of rows; `rollout_rows` of the same answers has the same labels, weights and streams."""
    prompts = [prompt(members[0][0].prompt_ids) for members in rows]
    lengths = [
        len(ids) - 1 + sum(len(each.sample.ids) for each, _ in row) for ids, row in zip(prompts, rows, strict=True)
    ]
    shape = (max(1, len(rows)), max(lengths, default=2))
    tokens_BT = np.full(shape, pad_id, dtype=np.int64)
    labels_BT = np.full(shape, IGNORE, dtype=np.int64)
    positions_BT = np.zeros(shape, dtype=np.int64)
    documents_BT, sequences_BT = np.full(shape, -1, dtype=np.int32), np.full(shape, -1, dtype=np.int32)
    advantage_BT, behaviour_BT = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    count = 0
    for row, (ids, members) in enumerate(zip(prompts, rows, strict=True)):
        begin = len(ids) - 1
        tokens_BT[row, :begin], documents_BT[row, :begin], positions_BT[row, :begin] = ids[:-1], 0, range(begin)
        for number, (scored, advantage) in enumerate(members, start=1):
            sample = scored.sample
            place = slice(begin, begin + len(sample.ids))
            tokens_BT[row, place] = (ids[-1], *sample.ids)[: len(sample.ids)]
            positions_BT[row, place] = range(len(ids) - 1, len(ids) - 1 + len(sample.ids))
            documents_BT[row, place], sequences_BT[row, place] = number, count
            labels_BT[row, place], behaviour_BT[row, place] = sample.ids, sample.logp
            advantage_BT[row, place] = advantage
            begin, count = place.stop, count + 1
    return TokenRows(
        tokens_BT=torch.from_numpy(tokens_BT),
        labels_BT=torch.from_numpy(labels_BT),
        documents_BT=torch.from_numpy(documents_BT),
        positions_BT=torch.from_numpy(positions_BT),
        sequences_BT=torch.from_numpy(sequences_BT),
        num_sequences=count,
        weights={weight: torch.from_numpy((labels_BT != IGNORE).astype(np.float32))},
        streams={"advantage": torch.from_numpy(advantage_BT), "behaviour": torch.from_numpy(behaviour_BT)},
    )
