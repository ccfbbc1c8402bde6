"""Work that an engine has taken and not begun, in order of submission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from windlass.core.errors import UsageError

if TYPE_CHECKING:
    from windlass.post.rollout.types import SampleId, SampleRequest, ScoreRequest

__all__ = ["WaitingWork", "check_request", "check_work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    work: SampleRequest
    submitted_s: float


class WaitingWork:
    """First in, first out, except for work that needs newer weights: it does not hold up the rest."""

    def __init__(self) -> None:
        self._entries: dict[SampleId, _Entry] = {}
        self._prompts: Counter[tuple[int, ...]] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sample: SampleId) -> bool:
        return sample in self._entries

    def add(self, work: SampleRequest, now_s: float) -> None:
        """Append work."""
        self._entries[work.id] = _Entry(work=work, submitted_s=now_s)
        self._prompts[work.read_ids] += 1

    def startable(self, version: int, limit: int) -> list[SampleRequest]:
        """Return up to `limit` pieces of work that weights of this version may begin, without removing them."""
        ready = (entry.work for entry in self._entries.values() if entry.work.oldest_version <= version)
        return list(islice(ready, limit))

    def remove(self, sample: SampleId) -> tuple[SampleRequest, float]:
        """Remove work; returns it and when it was submitted."""
        entry = self._entries.pop(sample)
        prompt = entry.work.read_ids
        self._prompts[prompt] -= 1
        if not self._prompts[prompt]:
            del self._prompts[prompt]
        return entry.work, entry.submitted_s

    def has_prompt(self, prompt_ids: tuple[int, ...]) -> bool:
        """Return whether work with this prompt is waiting."""
        return prompt_ids in self._prompts

    def prompts(self, version: int) -> list[tuple[int, ...]]:
        """Return the different prompts of startable work, in order of submission."""
        works = (entry.work for entry in self._entries.values() if entry.work.oldest_version <= version)
        return list(dict.fromkeys(work.read_ids for work in works))

    def clear(self) -> None:
        """Drop all work."""
        self._entries.clear()
        self._prompts.clear()


def check_work(
    works: Sequence[SampleRequest],
    *,
    vocab_size: int,
    max_length: int,
    open_ids: Collection[SampleId],
    can_decode: bool,
) -> None:
    """Raise UsageError for work that an engine cannot generate."""
    seen: set[SampleId] = set()
    for work in works:
        name = f"sample {work.id.group}.{work.id.member}"
        if work.id in open_ids or work.id in seen:
            raise UsageError(f"{name} is already open", hint="give each attempt its own id", code="invalid-value")
        seen.add(work.id)
        _check_ids(f"the prompt of {name}", work.read_ids, vocab_size)
        longest = len(work.read_ids) + work.sampling.max_new_tokens
        if longest > max_length:
            num_new = work.sampling.max_new_tokens
            raise UsageError(
                f"{name} has a prompt of {len(work.read_ids)} tokens and up to {num_new} new ones; "
                f"the engine's maximum is {max_length}",
                hint="shorten the prompt, lower `max_new_tokens` or raise the engine's `max_length`",
                code="invalid-value",
            )
        if work.sampling.stop_texts and not can_decode:
            raise UsageError(
                f"{name} has stop texts, and the engine has no tokenizer",
                hint="pass `decode` to the engine, or use stop ids",
                code="invalid-value",
            )


def check_request(request: ScoreRequest, *, vocab_size: int, max_length: int) -> None:
    """Raise UsageError for a row that an engine cannot score."""
    _check_ids("a row to score", request.ids, vocab_size)
    if not 1 <= request.start <= len(request.ids) <= max_length:
        raise UsageError(
            f"a row of {len(request.ids)} tokens cannot be scored from {request.start}; the maximum is {max_length}",
            hint="start at 1 or later, and within the row",
            code="invalid-value",
        )


def _check_ids(what: str, ids: Sequence[int], vocab_size: int) -> None:
    if not ids:
        raise UsageError(f"{what} is empty", hint="begin with a token, such as bos", code="invalid-value")
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise UsageError(
            f"{what} has token {wrong}; the vocabulary has {vocab_size}",
            hint="use the tokenizer that the model was trained with",
            code="invalid-value",
        )
