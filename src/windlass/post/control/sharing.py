"""Rows in which members of a group follow their prompt, so that it is computed once for all of them.

A row is the prompt but for its last token, then for each member that token and the answer but for its last one: exactly
the tokens that something is predicted from. Members see the prompt and themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias

import numpy as np
import torch

from windlass.post.control.scoring import ScoredSample
from windlass.post.objectives.batch import TokenRows
from windlass.train.batch import IGNORE

__all__ = [
    "AnswerSequence",
    "Member",
    "Members",
    "answer_sequences",
    "row_length",
    "row_lengths",
    "shared_members",
    "shared_rows",
]

Member: TypeAlias = tuple[ScoredSample, "float | np.ndarray"]
"""An answer with its advantage, or with that of each of its tokens."""

Members: TypeAlias = Sequence[Member]
"""Answers to one prompt that share a row."""

TOKEN_COST = 12
"""Cost of a token in products with weights, per unit of width, over that of a pair of tokens in attention: measured on one
thread of a CPU (docs/evidence/post-training.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSequence:
    """Tokens of an answer that are read in one piece: all of them, unless its history was rewritten.

    Attributes:
        is_policy: whether each token was written by the policy; None: all were. The last one was.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logp: tuple[float, ...]
    advantage: float | np.ndarray
    is_policy: np.ndarray | None = None

    def labels(self, nothing: int, value: int | None = None) -> np.ndarray:
        """Return the ids of the policy's tokens, or a value for each, and something else for the other tokens."""
        found = np.asarray(self.ids if value is None else [value] * len(self.ids), dtype=np.int64)
        return found if self.is_policy is None else np.where(self.is_policy, found, nothing)


def answer_sequences(member: Member) -> list[AnswerSequence]:
    """Return the sequences of an answer, without those that the policy wrote nothing in."""
    scored, advantage = member
    sample, episode = scored.sample, scored.sample.episode
    if episode is None:
        return [AnswerSequence(prompt_ids=scored.prompt_ids, ids=sample.ids, logp=sample.logp, advantage=advantage)]
    is_policy = np.zeros(len(sample.ids), dtype=bool)
    for span in sample.spans:
        is_policy[span.start : span.stop] = span.origin == "policy"
    found = []
    for begin, end in pairwise([0, *episode.forks, len(sample.ids)]):
        places = np.flatnonzero(is_policy[begin:end])
        if not len(places):
            continue
        # a sequence that begins anew has its prompt among its tokens
        first, last = (begin if begin not in episode.forks else begin + int(places[0])), begin + int(places[-1]) + 1
        found.append(
            AnswerSequence(
                prompt_ids=scored.prompt_ids if first == begin else sample.ids[begin:first],
                ids=sample.ids[first:last],
                logp=sample.logp[first:last],
                advantage=advantage[first:last] if isinstance(advantage, np.ndarray) else advantage,
                is_policy=is_policy[first:last],
            )
        )
    return found


def row_lengths(members: Members) -> list[int]:
    """Return the lengths of the rows of some answers: of the row that they share, or of one answer's sequences."""
    if len(members) > 1:
        return [row_length(members)]
    return [len(each.prompt_ids) + len(each.ids) for each in answer_sequences(members[0])]


def row_length(members: Members) -> int:
    """Return the number of tokens of a row that answers share."""
    return len(members[0][0].prompt_ids) - 1 + sum(len(scored.sample.ids) for scored, _ in members)


def shared_members(answers: Members, *, width: int, budget: int) -> list[list[Member]]:
    """Divide each group over as many rows as cost least: a row repeats the prompt, and a longer row has more pairs.

    Args:
        answers: in the order of group and member.
        width: of the residual stream.
        budget: most tokens of a row; a longer answer has one of its own.
    """
    rows: list[list[Member]] = []
    for _, group in groupby(answers, lambda each: each[0].sample.id.group):
        members = list(group)
        is_forked = [bool(scored.sample.episode and scored.sample.episode.forks) for scored, _ in members]
        whole = [each for each, forked in zip(members, is_forked, strict=True) if not forked]
        rows += _divided(whole, width, budget) if whole else []
        rows += [[each] for each, forked in zip(members, is_forked, strict=True) if forked]
    return rows


def _divided(group: list[Member], width: int, budget: int) -> list[list[Member]]:
    def cost(rows: list[list[Member]]) -> float:
        # single answers are attended to causally, half of the pairs; in shared rows hidden pairs are computed too
        share = 1.0 if len(rows) < len(group) else 0.5
        return sum(length * (TOKEN_COST * width + share * length) for length in map(row_length, rows))

    def possible() -> Iterator[list[list[Member]]]:
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
    count = sum(map(len, rows))
    filled = list(_filled(rows))
    prompts = [prompt(row[0][1].prompt_ids) for row in filled]
    lengths = [len(ids) - 1 + sum(len(each.ids) for _, each in row) for ids, row in zip(prompts, filled, strict=True)]
    shape = (max(1, len(filled)), max(lengths, default=2))
    tokens_BT = np.full(shape, pad_id, dtype=np.int64)
    labels_BT = np.full(shape, IGNORE, dtype=np.int64)
    positions_BT = np.zeros(shape, dtype=np.int64)
    documents_BT, sequences_BT = np.full(shape, -1, dtype=np.int32), np.full(shape, -1, dtype=np.int32)
    advantage_BT, behaviour_BT = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    for row, (ids, members) in enumerate(zip(prompts, filled, strict=True)):
        begin = len(ids) - 1
        tokens_BT[row, :begin], documents_BT[row, :begin], positions_BT[row, :begin] = ids[:-1], 0, range(begin)
        for document, (number, each) in enumerate(members, start=1):
            place = slice(begin, begin + len(each.ids))
            tokens_BT[row, place] = (ids[-1], *each.ids)[: len(each.ids)]
            positions_BT[row, place] = range(len(ids) - 1, len(ids) - 1 + len(each.ids))
            documents_BT[row, place], sequences_BT[row, place] = document, each.labels(-1, number)
            labels_BT[row, place], behaviour_BT[row, place] = each.labels(IGNORE), each.logp
            advantage_BT[row, place] = each.advantage
            begin = place.stop
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


def _filled(rows: Sequence[Members]) -> Iterator[list[tuple[int, AnswerSequence]]]:
    """Yield rows of sequences that have one prompt, each with the number of its answer."""
    number = 0
    for members in rows:
        sequences = [(number + at, each) for at, member in enumerate(members) for each in answer_sequences(member)]
        number += len(members)
        if len(members) > 1:
            yield sequences
        else:
            yield from ([each] for each in sequences)
