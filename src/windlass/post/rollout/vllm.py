"""Engine around vLLM in this process, by its documented Python API; started in processes of its own.

Weights go through a folder of Hugging Face's files. Stop texts are found by our own tokenizer. Log-probabilities are those of the
distribution that is sampled from. A load waits until open samples are finished.

Source: vLLM's documentation as of 0.32: `LLMEngine` (`add_request`, `step`, `abort_request`, `collective_rpc`), `SamplingParams`,
`EngineArgs` (`logprobs_mode`), and "Sleep Mode" for `reload_weights`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from windlass.core.clock import SystemClock
from windlass.core.extras import require
from windlass.core.json_text import decode_object
from windlass.post.rollout.engine import EngineError, EngineFacts, OpenWork
from windlass.post.rollout.row import OpenRow, cancelled_sample
from windlass.post.rollout.stops import Decode, StopTexts, TextPieces
from windlass.post.rollout.streams import stream_key
from windlass.post.rollout.waiting import WaitingWork, check_request, check_work
from windlass.train.model.decoder import Decoder

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.rollout.types import Finish, Sample, SampleId, SampleRequest, ScoreRequest
    from windlass.train.model.config import ModelConfig

__all__ = ["VllmEngine"]


class VllmEngine:
    """Continues prompts with vLLM's implementation of the model.

    Args:
        export: writes weights to a folder as Hugging Face's files.
        decode: text of token ids; needed for stop texts.
        device: `cpu`, as a CPU build of vLLM has it; `cuda`, or `cuda:N` for one GPU.
        dtype: type of weights and of the computation.
        options: further arguments of vLLM's `EngineArgs`, such as `gpu_memory_utilization`.

    Raises:
        PreconditionError: vLLM is not installed.
        SpecError: transformers has no architecture for the model.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        export: Callable[[Mapping[str, Tensor], Path], object],
        version: int = 0,
        num_slots: int = 64,
        max_length: int | None = None,
        max_open: int | None = None,
        decode: Decode | None = None,
        device: str = "cuda",
        dtype: str = "bfloat16",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # no further process, which could outlive this one
        if device.startswith("cuda:"):
            os.environ["CUDA_VISIBLE_DEVICES"] = device.removeprefix("cuda:")
        vllm = require("vllm", "the package vllm is not installed", hint="pip install vllm")
        self._vllm: Any = vllm
        self._clock, self._export = SystemClock(), export
        longest = config.max_length if max_length is None else max_length
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-vllm-"))
        with torch.random.fork_rng():  # vLLM reads weights again only if it has read some before
            export(dict(Decoder(config).named_parameters()), self._folder / "model")
        path = self._folder / "model" / "config.json"
        data = decode_object(path.read_bytes())
        data["max_position_embeddings"] = max(data["max_position_embeddings"], longest + 1)
        path.write_text(json.dumps(data), encoding="utf-8")
        arguments = vllm.EngineArgs(
            model=str(self._folder / "model"),
            skip_tokenizer_init=True,
            dtype=dtype,
            max_model_len=longest + 1,
            max_num_seqs=num_slots,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            **(options or {}),
        )
        self._engine: Any = vllm.LLMEngine.from_engine_args(arguments)
        self._facts = EngineFacts(
            name="vllm",
            num_slots=num_slots,
            max_length=longest,
            max_open=max_open or 4 * num_slots,
            vocab_size=config.vocab_size,
            has_stop_texts=decode is not None,
            has_raw_logp=False,
            is_deterministic=False,
            has_in_flight_update=False,
        )
        self._pieces = TextPieces(decode) if decode is not None else None
        self._waiting = WaitingWork()
        self._running: dict[str, OpenRow] = {}
        self._scores: dict[str, tuple[float, ...] | None] = {}
        self._done: list[Sample] = []
        self._numbers = count()
        self._version = version

    @property
    def facts(self) -> EngineFacts:
        """Return what this engine can do."""
        return self._facts

    def version(self) -> int:
        """Return the version of the loaded weights."""
        return self._version

    def submit(self, work: Sequence[SampleRequest]) -> int:
        """Take work from the front of the list and return how many."""
        running = {row.work.id for row in self._running.values()}
        check_work(
            work,
            vocab_size=self._facts.vocab_size,
            max_length=self._facts.max_length,
            open_ids={*running, *(item.id for item in work if item.id in self._waiting)},
            can_decode=self._pieces is not None,
        )
        taken = work[: max(0, self._facts.max_open - len(running) - len(self._waiting))]
        for item in taken:
            self._waiting.add(item, self._clock.monotonic())
        return len(taken)

    def poll(self, timeout_s: float) -> Sequence[Sample]:
        """Compute until a sample ends, `timeout_s` passed or nothing can be continued; at least one step."""
        end_s = self._clock.monotonic() + timeout_s
        while not self._done and self._step() and self._clock.monotonic() < end_s:
            pass
        done, self._done = self._done, []
        return done

    def cancel(self, ids: Collection[SampleId]) -> None:
        """End open samples."""
        now_s, wanted = self._clock.monotonic(), set(ids)
        for sample in [sample for sample in dict.fromkeys(ids) if sample in self._waiting]:
            work, submitted_s = self._waiting.remove(sample)
            self._done.append(cancelled_sample(work, now_s - submitted_s))
        for name in [name for name, row in self._running.items() if row.work.id in wanted]:
            self._engine.abort_request([name])
            self._end(name, "cancelled")

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[tuple[float, ...]]:
        """Return the log-probabilities of given tokens under the model's own distribution; open samples go on meanwhile."""
        for request in requests:
            check_request(request, vocab_size=self._facts.vocab_size, max_length=self._facts.max_length)
        settings = self._vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        names = [self._add(request.ids, settings) for request in requests]
        self._scores.update(dict.fromkeys(names))
        while any(self._scores[name] is None for name in names):
            self._engine_step()
        found = [self._scores.pop(name) or () for name in names]
        return [values[request.start - 1 :] for request, values in zip(requests, found, strict=True)]

    def load(self, weights: Mapping[str, Tensor], version: int, *, open_work: OpenWork = "recompute") -> None:
        """Finish samples in progress, then write weights to a folder and let vLLM read them."""
        while self._running:
            self._engine_step()
        folder = self._folder / "weights"
        self._export(weights, folder)
        self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        self._engine.reset_prefix_cache()
        shutil.rmtree(folder)
        self._version = version

    def close(self) -> None:
        """Drop open work and the folder."""
        if self._running:
            self._engine.abort_request(list(self._running))
        self._running.clear()
        self._waiting.clear()
        self._done = []
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------------- a step

    def _step(self) -> bool:
        """Let samples join, then compute a step; returns whether anything was done."""
        for work in self._waiting.startable(self._version, self._facts.num_slots - len(self._running)):
            _, submitted_s = self._waiting.remove(work.id)
            texts, now_s = work.sampling.stop_texts, self._clock.monotonic()
            stops = StopTexts(texts, self._pieces) if texts and self._pieces is not None else None
            row = OpenRow(work, version=self._version, submitted_s=submitted_s, started_s=now_s, stops=stops)
            self._running[self._add(work.prompt_ids, self._settings(work))] = row
        if not self._running:
            return False
        self._engine_step()
        return True

    def _add(self, ids: Sequence[int], settings: Any) -> str:
        name = str(next(self._numbers))
        self._engine.add_request(name, {"prompt_token_ids": list(ids)}, settings)
        return name

    def _settings(self, work: SampleRequest) -> Any:
        sampling = work.sampling
        return self._vllm.SamplingParams(
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            seed=stream_key(sampling.seed, work.id),
            stop_token_ids=list(sampling.stop_ids),
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
        )

    def _engine_step(self) -> None:
        """Compute a token of each sample in progress, and note what is new."""
        for output in self._engine.step():
            name = output.request_id
            if name in self._scores:
                if output.finished:
                    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
                    self._scores[name] = tuple(min(0.0, entry[token].logprob) for token, entry in pairs)
            elif name in self._running:
                self._note(name, output.outputs[0])

    def _note(self, name: str, output: Any) -> None:
        row, old = self._running[name], len(self._running[name].ids)
        for token, entry in zip(output.token_ids[old:], output.logprobs[old:], strict=True):
            value = entry[token].logprob
            if not (math.isfinite(value) and value < 1e-4):
                raise EngineError(
                    f"vLLM gives token {token} log-probability {value}", hint="load weights that are finite"
                )
            finish = row.add(token, min(0.0, value), min(0.0, value))
            if finish is not None:
                if output.finish_reason is None:
                    self._engine.abort_request([name])
                self._end(name, finish)
                return
        if output.finish_reason is not None:
            raise EngineError(f"vLLM ended a sample with {output.finish_reason!r} before its limit", hint="see its log")

    def _end(self, name: str, finish: Finish) -> None:
        sample = self._running.pop(name).sample(finish, self._clock.monotonic())
        self._done.append(replace(sample, raw_logp=None))
