"""Wrapper that makes a decoder a model for lm-evaluation-harness. Imports `lm_eval`.

Requests are sorted by length and cut into batches independently of the number of processes. One data-parallel process
computes each batch, and the answers are exchanged, so that every process computes the same scores.

Legend: B requests of a batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from windlass.train.data.tokenizer import Tokenizer
from windlass.train.generation.generate import generate
from windlass.train.parallel.world import World

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from windlass.train.model.decoder import Decoder

__all__ = ["HarnessModel", "Interrupted"]

_MAX_NEW_TOKENS = 256
"""Default if a task sets none, as in the harness."""


class Interrupted(Exception):
    """Exception for an evaluation that `should_stop` has stopped."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """Tokens to run, and how many of the last ones to score."""

    tokens: tuple[int, ...]
    num_asked: int


class HarnessModel(TemplateLM):  # type: ignore[misc]  # lm_eval ships no types
    """Model interface of lm-evaluation-harness, implemented with a decoder and a tokenizer.

    Args:
        model: a decoder; sharded ones are run by all processes together.
        max_length: maximum tokens of a request; longer ones are truncated on the left.
        batch_tokens: tokens per batch, padding included.
        should_stop: called before each batch; must return the same on all processes.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        *,
        world: World | None = None,
        max_length: int | None = None,
        batch_tokens: int = 16_384,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.model, self.text = model, tokenizer
        self.world = world or World(device=next(model.parameters()).device)
        self.max_length = max_length or model.config.max_length
        self.batch_tokens, self._should_stop = batch_tokens, should_stop

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends a document, which is also prepended to a text without context."""
        ids = self.text.ids
        return ids.eos_id if ids.eos_id is not None else ids.pad_id

    @property
    def prefix_token_id(self) -> int:
        """Id of the token that begins a document."""
        return self.text.ids.bos_id if self.text.ids.bos_id is not None else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """Name under which the harness caches requests."""
        return self.text.identity

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return list(self.text.encode(string))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        """Return each continuation's log-probability, and whether all its tokens are the most likely ones."""
        scored = [self._scored(context, continuation) for _, context, continuation in requests]
        answers = self._score(scored)
        for (request, _, _), answer in zip(requests, answers, strict=True):
            if request is not None:
                self.cache_hook.add_partial("loglikelihood", request, answer)
        return answers

    def _scored(self, context: Sequence[int], continuation: Sequence[int]) -> _Scored:
        tokens = tuple([*context, *continuation][-(self.max_length + 1) :])
        return _Scored(tokens, min(len(continuation), len(tokens) - 1))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of whole texts, using windows of `max_length` that score each token once."""
        owners: list[int] = []
        windows: list[_Scored] = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            rolling = get_rolling_token_windows(
                token_list=tokens, prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
            )
            for context, continuation in map(make_disjoint_window, rolling):
                owners.append(number)
                windows.append(self._scored(context, continuation))
        totals = [0.0] * len(requests)
        for owner, (found, _) in zip(owners, self._score(windows), strict=True):
            totals[owner] += found
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue texts up to the first stop string; all processes do the same work."""
        answers = [""] * len(requests)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(_generation(request.args[1]), []).append(number)
        for (stops, num_new, temperature, top_k, top_p), numbers in groups.items():
            numbers.sort(key=lambda number: -len(requests[number].args[0]))
            room = max(1, self.max_length - num_new)
            size = max(1, self.batch_tokens // self.max_length)
            for first in range(0, len(numbers), size):
                batch = numbers[first : first + size]
                self._check_stop()
                prompts = [
                    (self.tok_encode(requests[number].args[0]) or [self.prefix_token_id])[-room:] for number in batch
                ]
                made = generate(
                    self.model,
                    prompts,
                    max_new_tokens=min(num_new, self.max_length - 1),
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    eos=self.text.ids.eos_id,
                )
                for number, tokens in zip(batch, made, strict=True):
                    answers[number] = _cut(self.text.decode(tokens), stops)
                    self.cache_hook.add_partial("generate_until", requests[number].args, answers[number])
        return answers

    def _score(self, scored: Sequence[_Scored]) -> list[tuple[float, bool]]:
        """Return sums of log-probabilities, and whether all scored tokens are the most likely ones. Collective."""
        batches = self._batches(scored)
        share = self.world.share
        sums = torch.zeros(2, len(scored), dtype=torch.float64)
        for first in range(0, len(batches), share.world):
            self._check_stop()
            place = first + share.rank
            found = self._run([scored[number] for number in batches[min(place, len(batches) - 1)]])
            if place < len(batches):
                sums[:, batches[place]] = found
        replicas = self.world.size // share.world
        total = torch.tensor(self.world.sum_on_host(sums.flatten().tolist()), dtype=torch.float64) / replicas
        loglikelihoods, greedy = total.view(2, -1).tolist()
        return [(value, flag > 0.5) for value, flag in zip(loglikelihoods, greedy, strict=True)]

    def _batches(self, scored: Sequence[_Scored]) -> list[list[int]]:
        """Return the indices of the requests in each batch, longest first, so that out-of-memory errors occur at once."""
        order = sorted(range(len(scored)), key=lambda number: -len(scored[number].tokens))
        batches: list[list[int]] = []
        for number in order:
            longest = len(scored[batches[-1][0]].tokens) if batches else 0
            if batches and (len(batches[-1]) + 1) * longest <= self.batch_tokens:
                batches[-1].append(number)
            else:
                batches.append([number])
        return batches

    def _run(self, batch: Sequence[_Scored]) -> Tensor:
        """Return the sum and the flag for each request, float64 (2, B)."""
        device = next(self.model.parameters()).device
        longest = max(len(one.tokens) for one in batch) - 1
        tokens_BT = torch.full((len(batch), max(1, longest)), self.text.ids.pad_id, dtype=torch.int64)
        for row, one in enumerate(batch):
            tokens_BT[row, : len(one.tokens) - 1] = torch.tensor(one.tokens[:-1], dtype=torch.int64)
        self.model.eval()
        with torch.no_grad():
            logits_BTV = _whole(self.model(tokens_BT.to(device)))
            return torch.stack([_answer(logits_BTV[row], one) for row, one in enumerate(batch)], dim=1).cpu()

    def _check_stop(self) -> None:
        if self._should_stop():
            raise Interrupted


def _whole(logits_BTV: Any) -> Tensor:
    """Gather the logits for the whole vocabulary, which tensor parallelism splits."""
    found: Tensor = logits_BTV.full_tensor() if hasattr(logits_BTV, "full_tensor") else logits_BTV
    return found


def _answer(logits_TV: Tensor, one: _Scored) -> Tensor:
    end = len(one.tokens) - 1
    asked_T = torch.tensor(one.tokens[len(one.tokens) - one.num_asked :], device=logits_TV.device, dtype=torch.int64)
    shares_TV = F.log_softmax(logits_TV[end - one.num_asked : end].float(), dim=-1)
    chosen_T = shares_TV.gather(1, asked_T[:, None])[:, 0]
    is_greedy = (shares_TV.argmax(dim=-1) == asked_T).all()
    return torch.stack([chosen_T.double().sum(), is_greedy.double()])


def _generation(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], int, float, int | None, float | None]:
    """Return stop strings, number of new tokens, temperature, top_k and top_p."""
    until = settings.get("until") or ()
    stops = (until,) if isinstance(until, str) else tuple(until)
    num_new = int(settings.get("max_gen_toks", settings.get("max_new_tokens", _MAX_NEW_TOKENS)))
    is_drawn = settings.get("do_sample", float(settings.get("temperature", 0.0)) > 0)
    temperature = float(settings.get("temperature", 1.0)) if is_drawn else 0.0
    top_k, top_p = settings.get("top_k") or None, settings.get("top_p")
    return stops, num_new, temperature, top_k, top_p


def _cut(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        if stop:
            text = text.split(stop, 1)[0]
    return text
