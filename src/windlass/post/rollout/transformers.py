"""Engine around `generate` of transformers, for comparison, and for checking the embedded engine.

It generates batches: a sample waits for the longest one beside it, and its tokens depend on its batch.

Legend: B samples of a batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from windlass.core.clock import SystemClock
from windlass.core.extras import ensure_installed
from windlass.post.rollout.engine import EngineError, EngineFacts, OpenWork
from windlass.post.rollout.row import OpenRow, cancelled_sample
from windlass.post.rollout.stops import Decode, StopTexts, TextPieces
from windlass.post.rollout.waiting import WaitingWork, check_request, check_work
from windlass.train.hf.config import to_hf
from windlass.train.hf.maps import hf_names

if TYPE_CHECKING:
    from windlass.core.clock import Clock
    from windlass.post.rollout.types import Sample, SampleId, SampleRequest, Sampling, ScoreRequest
    from windlass.train.model.config import ModelConfig

__all__ = ["TransformersEngine"]


class TransformersEngine:
    """Continues prompts with transformers' implementation of the model. `poll` returns after a whole batch."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor] | None,
        *,
        version: int = 0,
        num_slots: int = 64,
        max_length: int | None = None,
        max_open: int | None = None,
        decode: Decode | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        clock: Clock | None = None,
    ) -> None:
        """Build the model and load weights; arguments are those of `EmbeddedEngine`.

        Raises:
            PreconditionError: transformers is not installed.
            SpecError: transformers has no architecture for the model.
            EngineError: the weights belong to another model.
        """
        self._config, self._device, self._clock = config, torch.device(device), clock or SystemClock()
        self._model = _empty_model(config).to(self._device, dtype).eval()
        self._facts = EngineFacts(
            name="transformers",
            num_slots=num_slots,
            max_length=config.max_length if max_length is None else max_length,
            max_open=max_open or 4 * num_slots,
            vocab_size=config.vocab_size,
            has_stop_texts=decode is not None,
            has_raw_logp=True,
            is_deterministic=False,
            has_in_flight_update=False,
        )
        self._pieces = TextPieces(decode) if decode is not None else None
        self._waiting = WaitingWork()
        self._done: list[Sample] = []
        self._version = version
        if weights is not None:
            self.load(weights, version)

    @property
    def facts(self) -> EngineFacts:
        """Return what this engine can do."""
        return self._facts

    def version(self) -> int:
        """Return the version of the loaded weights."""
        return self._version

    def submit(self, work: Sequence[SampleRequest]) -> int:
        """Take work from the front of the list and return how many."""
        check_work(
            work,
            vocab_size=self._config.vocab_size,
            max_length=self._facts.max_length,
            open_ids=[item.id for item in work if item.id in self._waiting],
            can_decode=self._pieces is not None,
        )
        taken = work[: max(0, self._facts.max_open - len(self._waiting))]
        for item in taken:
            self._waiting.add(item, self._clock.monotonic())
        return len(taken)

    def poll(self, timeout_s: float) -> Sequence[Sample]:
        """Generate a batch of samples with equal settings, if `timeout_s` is above 0; blocks until all of it is done."""
        batch = self._next_batch() if timeout_s > 0 and not self._done else []
        if batch:
            self._generate(batch)
        done, self._done = self._done, []
        return done

    def cancel(self, ids: Collection[SampleId]) -> None:
        """End samples that wait; there are no others between calls."""
        for sample in [sample for sample in dict.fromkeys(ids) if sample in self._waiting]:
            work, submitted_s = self._waiting.remove(sample)
            self._done.append(cancelled_sample(work, self._clock.monotonic() - submitted_s))

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[tuple[float, ...]]:
        """Return the log-probabilities of given tokens under the model's own distribution."""
        for request in requests:
            check_request(request, vocab_size=self._config.vocab_size, max_length=self._facts.max_length)
        scores: list[tuple[float, ...]] = []
        for request in requests:
            ids_T = torch.tensor(request.ids, device=self._device)
            with torch.inference_mode():
                logits_TV = self._model(ids_T[None]).logits[0, :-1].float()
            logp_T = logits_TV.log_softmax(dim=-1).gather(1, ids_T[1:, None])[:, 0]
            scores.append(tuple(logp_T[request.start - 1 :].tolist()))
        return scores

    def load(self, weights: Mapping[str, Tensor], version: int, *, open_work: OpenWork = "recompute") -> None:
        """Copy weights by windlass's names, all or none; no sample is in progress between calls."""
        wanted = list(hf_names(self._model.config.model_type).weights(self._config))
        shapes = {weight.ours: weight.shape for weight in wanted}
        if {name: tuple(weight.shape) for name, weight in weights.items()} != shapes:
            raise EngineError(
                "the weights are of another model; the previous ones stay loaded",
                hint="load the weights of the model that the engine runs",
            )
        parameters = dict(self._model.named_parameters())
        with torch.no_grad():
            for weight in wanted:
                for index, theirs in enumerate(weight.theirs):
                    value = weights[weight.ours]
                    parameters[theirs].copy_(value[index] if weight.is_stacked else value)
        self._version = version

    def close(self) -> None:
        """Drop open work."""
        self._waiting.clear()
        self._done = []

    def _next_batch(self) -> list[SampleRequest]:
        works = self._waiting.startable(self._version, len(self._waiting))
        return [work for work in works if _settings(work.sampling) == _settings(works[0].sampling)][
            : self._facts.num_slots
        ]

    def _generate(self, batch: Sequence[SampleRequest]) -> None:
        rows = [self._open(work) for work in batch]
        longest = max(len(work.read_ids) for work in batch)
        lengths_B1 = torch.tensor([[len(work.read_ids)] for work in batch], device=self._device)
        ids = [[0] * (longest - len(work.read_ids)) + list(work.read_ids) for work in batch]
        mask_BT = torch.arange(longest, device=self._device) >= longest - lengths_B1
        sampling = batch[0].sampling
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.inference_mode():
            torch.manual_seed((rows[0].key + rows[0].position) % 2**63)
            made = self._model.generate(
                torch.tensor(ids, device=self._device), attention_mask=mask_BT.long(), **_options(sampling)
            )
            new_BT = made.sequences[:, longest:]
            raw_BT = _log_probabilities(made.logits, new_BT)
            is_greedy = sampling.temperature == 0
            logp_BT = raw_BT if is_greedy else _log_probabilities(made.scores, new_BT)
        now_s = self._clock.monotonic()
        for row, *columns in zip(rows, new_BT.tolist(), logp_BT.tolist(), raw_BT.tolist(), strict=True):
            finish = next(end for values in zip(*columns, strict=True) if (end := row.add(*values)) is not None)
            self._done.append(row.sample(finish, now_s))

    def _open(self, work: SampleRequest) -> OpenRow:
        _, submitted_s = self._waiting.remove(work.id)
        texts = work.sampling.stop_texts
        stops = StopTexts(texts, self._pieces) if texts and self._pieces is not None else None
        now_s = self._clock.monotonic()
        return OpenRow(work, version=self._version, submitted_s=submitted_s, started_s=now_s, stops=stops)


def _empty_model(config: ModelConfig) -> Any:
    ensure_installed("transformers", "the package transformers is not installed", hint="pip install transformers")
    from transformers import AutoConfig, AutoModelForCausalLM  # lazy: optional, and slow to import

    settings = AutoConfig.for_model(**to_hf(config))
    return AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa")


def _settings(sampling: Sampling) -> tuple[object, ...]:
    """Return what all samples of a batch have in common."""
    return (sampling.max_new_tokens, sampling.temperature, sampling.top_k, sampling.top_p, sampling.stop_ids)


def _options(sampling: Sampling) -> dict[str, Any]:
    """Return the arguments of `generate`; 0 and 1.0 turn its top-k and top-p off."""
    options: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "do_sample": sampling.temperature > 0,
        "eos_token_id": list(sampling.stop_ids) or None,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_logits": True,
        "output_scores": True,
    }
    if sampling.temperature > 0:
        top_k, top_p = sampling.top_k or 0, 1.0 if sampling.top_p is None else sampling.top_p
        options |= {"temperature": sampling.temperature, "top_k": top_k, "top_p": top_p}
    return options


def _log_probabilities(logits: Sequence[Tensor], tokens_BT: Tensor) -> Tensor:
    """Return the log-probability of each token from the logits of each step, float32 (B, T)."""
    logp_BTV = torch.stack(tuple(logits), dim=1).float().log_softmax(dim=-1)
    return logp_BTV.gather(2, tokens_BT[:, :, None])[:, :, 0]
