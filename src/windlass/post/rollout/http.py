"""Engine of a server that takes token ids and returns token ids with log-probabilities, such as `vllm serve`.

    engine = HttpEngine("http://node7:8000", vocab_size=32000, max_length=4096, num_slots=64)

A sample is a request; the server batches them and shares prompts. A server's weights are frozen (teachers, evaluation, rollouts
without learning), or are read again from a folder that the server sees too. Importable without torch.

Source: vLLM's documentation as of 0.33: "OpenAI-Compatible Server" (`/v1/completions` with a list of token ids as `prompt`, and
`return_token_ids`, `prompt_logprobs`, `stop_token_ids`, `include_stop_str_in_output`; `/v1/models`; `/tokenize`), "Sleep Mode"
(`/collective_rpc` with `reload_weights`), and `--logprobs-mode`. SGLang has `return_token_ids` since July 2026
(its pull request 30917) and was never tried.
"""

from __future__ import annotations

import functools
import math
import queue
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError, UsageError
from windlass.post.http_requests import JsonServer, PendingRequest, ServerError
from windlass.post.rollout.engine import EngineError, EngineFacts, OpenWork
from windlass.post.rollout.row import OpenRow, cancelled_sample
from windlass.post.rollout.streams import stream_key
from windlass.post.rollout.waiting import WaitingWork, check_request, check_work

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.core.clock import Clock
    from windlass.post.rollout.types import Sample, SampleId, SampleRequest, ScoreRequest
    from windlass.train.data.tokenizer import Tokenizer

__all__ = ["HttpEngine", "LogProbsMode", "WeightUpdate"]

LogProbsMode = Literal["raw", "processed"]
"""The server's `--logprobs-mode`: of the model's own distribution (`raw_logprobs`, vLLM's default), or of the one sampled from."""

WeightUpdate = Literal["frozen", "reload"]

_BASE_BYTES = 1 << 20
_TOKEN_BYTES = 2048
_SMALL_REPLY = 1 << 22
_LEAST_LOGP = -9999.0
"""vLLM's value for minus infinity, which JSON lacks."""
_ROUNDING = 1e-4
_TEXTS = ("The answer is 42.", "  x = f(y[0])\n\treturn {'a': 1.5e-3}\n", "Grüße, 世界! 🙂")


class _Running(NamedTuple):
    row: OpenRow
    request: PendingRequest
    outcome: Future[object]


class HttpEngine:
    """Client of a server that generates; implements `RolloutEngine`.

    Args:
        url: the server's address.
        vocab_size: ids of the tokenizer that prompts are made with.
        max_length: most tokens of a prompt and its continuation.
        served_model: name of the model at the server; empty: its only one.
        num_slots: requests at the same time.
        key_variable, timeout_s, retries: see `JsonServer`.
        logprobs: what the server's log-probabilities are of. With `raw` only samples of the whole distribution at temperature 1 or 0
            are possible, because the others' own log-probabilities are not known.
        weights: `reload` makes the server read new weights from a folder; it needs `folder` and `export`, and no other client that
            generates. vLLM offers this with VLLM_SERVER_DEV_MODE=1 alone, to everyone who reaches the server.
        folder: folder for these weights, which the server sees under the same path.
        export: writes weights to a folder as Hugging Face's files.

    Raises:
        EngineError: the server does not answer, serves another model, or serves shorter sequences.
        UsageError, PreconditionError: invalid settings, or a missing key.
    """

    def __init__(
        self,
        url: str,
        *,
        vocab_size: int,
        max_length: int,
        served_model: str = "",
        num_slots: int = 64,
        max_open: int | None = None,
        key_variable: str = "",
        timeout_s: float = 600.0,
        retries: int = 4,
        logprobs: LogProbsMode = "raw",
        weights: WeightUpdate = "frozen",
        folder: str = "",
        export: Callable[[Mapping[str, Tensor], Path], object] | None = None,
        version: int = 0,
        clock: Clock | None = None,
    ) -> None:
        if weights == "reload" and not (folder and export):
            hint = "set `folder` to a folder that the server sees under the same path"
            raise UsageError("`weights: reload` needs a folder for weights", hint=hint, code="missing-key")
        self._server = JsonServer(url, key_variable=key_variable, timeout_s=timeout_s, retries=retries)
        self._clock, self._logprobs, self._export = clock or SystemClock(), logprobs, export
        self._folder = Path(folder).expanduser().absolute() if weights == "reload" else None
        self._facts = EngineFacts(
            name="http",
            num_slots=num_slots,
            max_length=max_length,
            max_open=max_open or 4 * num_slots,
            vocab_size=vocab_size,
            has_stop_texts=True,
            has_raw_logp=logprobs == "raw",
            is_deterministic=False,
            has_in_flight_update=False,
            has_weight_update=weights == "reload",
        )
        self._version = version
        self._waiting = WaitingWork()
        self._running: dict[SampleId, _Running] = {}
        self._outcomes: queue.SimpleQueue[tuple[SampleId, Future[object]]] = queue.SimpleQueue()
        self._done: list[Sample] = []
        self._error: EngineError | None = None
        self._published: Path | None = None
        self._threads = ThreadPoolExecutor(num_slots, thread_name_prefix="windlass-http")
        try:
            self._model = self._find_model(served_model)
        except ServerError as error:
            raise EngineError(error.message, hint=error.hint) from error

    @property
    def facts(self) -> EngineFacts:
        """Return what this engine can do."""
        return self._facts

    def version(self) -> int:
        """Return the version of the weights that the server has."""
        return self._version

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Compare the server's tokenizer with ours: ids of some texts, and whether it has our highest id.

        A server without `/tokenize` is asked for the highest id alone.

        Raises:
            PreconditionError: they differ (`tokenizer-mismatch`).
            EngineError: the server does not answer.
        """
        what = f"the tokenizer of {self._server.address} is not the run's"
        hint = "use a model with the same tokenizer, in the same version"
        try:
            self._ask_score((0, tokenizer.vocab_size - 1))
            for text in _TEXTS:
                body = {"model": self._model, "prompt": text, "add_special_tokens": False}
                reply = self._server.request("/tokenize", body, max_bytes=_SMALL_REPLY)
                theirs = reply.get("tokens") if isinstance(reply, dict) else None
                if theirs != list(tokenizer.encode(text)):
                    message = f"{what}: {text!r} is {theirs} there and {list(tokenizer.encode(text))} here"
                    raise PreconditionError(message, hint=hint, code="tokenizer-mismatch")
        except ServerError as error:
            if error.status == 404:
                return
            if error.status in {400, 422}:
                message = f"{what}: it refuses id {tokenizer.vocab_size - 1} ({error.message})"
                raise PreconditionError(message, hint=hint, code="tokenizer-mismatch") from error
            raise EngineError(error.message, hint=error.hint) from error

    def submit(self, work: Sequence[SampleRequest]) -> int:
        """Take work from the front of the list and return how many; requests begin with `poll`."""
        check_work(
            work,
            vocab_size=self._facts.vocab_size,
            max_length=self._facts.max_length,
            open_ids={*self._running, *(item.id for item in work if item.id in self._waiting)},
            can_decode=True,
        )
        for item in work:
            sampling = item.sampling
            is_plain = sampling.temperature in (0.0, 1.0) and sampling.top_k is None and sampling.top_p in {None, 1.0}
            if self._logprobs == "raw" and not is_plain:
                raise UsageError(
                    "the server's log-probabilities are the model's own, and not of the distribution that is sampled from",
                    hint="start it with `--logprobs-mode processed_logprobs`, and set `logprobs: processed`",
                    code="invalid-value",
                )
        taken = work[: max(0, self._facts.max_open - len(self._running) - len(self._waiting))]
        for item in taken:
            self._waiting.add(item, self._clock.monotonic())
        return len(taken)

    def poll(self, timeout_s: float) -> Sequence[Sample]:
        """Return samples whose replies have arrived; waits up to `timeout_s` for the first one."""
        end_s = self._clock.monotonic() + timeout_s
        self._begin()
        while self._take(0.0):
            pass
        while not self._done and self._running and (left_s := end_s - self._clock.monotonic()) > 0:
            self._take(left_s)
        if self._error is not None and not self._done:
            raise self._error
        done, self._done = self._done, []
        return done

    def cancel(self, ids: Collection[SampleId]) -> None:
        """End open samples; their tokens so far stay at the server."""
        now_s = self._clock.monotonic()
        for sample in dict.fromkeys(ids):
            if sample in self._waiting:
                work, submitted_s = self._waiting.remove(sample)
                self._done.append(cancelled_sample(work, now_s - submitted_s))
            elif sample in self._running:
                running = self._running.pop(sample)
                running.request.end()
                self._done.append(running.row.sample("cancelled", now_s))

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[tuple[float, ...]]:
        """Return the log-probabilities of given tokens under the model's own distribution."""
        for request in requests:
            check_request(request, vocab_size=self._facts.vocab_size, max_length=self._facts.max_length)
        try:
            whole = list(self._threads.map(lambda request: self._ask_score(request.ids), requests))
        except ServerError as error:
            raise EngineError(error.message, hint=error.hint) from error
        return [values[request.start - 1 :] for request, values in zip(requests, whole, strict=True)]

    def load(self, weights: Mapping[str, Tensor], version: int, *, open_work: OpenWork = "recompute") -> None:
        """Wait for open requests, then write weights to the folder and let the server read them.

        Raises:
            EngineError: the server's weights are frozen; or it did not read the weights, and is unusable.
        """
        if self._folder is None or self._export is None:
            raise EngineError(
                "the server's weights are frozen", hint="set `weights: reload`, or learn from stored samples"
            )
        while self._running and self._error is None:
            self._take(1.0)
        if self._error is not None:
            raise self._error
        folder = self._folder / f"version-{version}"
        self._export(weights, folder)
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            self._server.request("/collective_rpc", body, max_bytes=_SMALL_REPLY)
            self._server.request("/reset_prefix_cache", {}, max_bytes=_SMALL_REPLY)
        except ServerError as error:
            hint = "start it with VLLM_SERVER_DEV_MODE=1, and use a folder that it sees under the same path"
            self._error = EngineError(f"cannot update the server's weights: {error.message}", hint=hint)
            raise self._error from error
        if self._published not in {None, folder}:
            shutil.rmtree(str(self._published), ignore_errors=True)
        self._published, self._version = folder, version

    def close(self) -> None:
        """End open requests and remove written weights; the server goes on, and so does the engine when it is used again."""
        for running in self._running.values():
            running.request.end()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = ThreadPoolExecutor(self._facts.num_slots, thread_name_prefix="windlass-http")
        self._running.clear()
        self._waiting.clear()
        self._done = []
        if self._published is not None:
            shutil.rmtree(self._published, ignore_errors=True)
            self._published = None

    # ------------------------------------------------------------------------------------------------------ requests

    def _find_model(self, name: str) -> str:
        reply = self._server.request("/v1/models", max_bytes=_SMALL_REPLY, timeout_s=30.0)
        models = reply.get("data") if isinstance(reply, dict) else None
        known = (
            {each["id"]: each for each in models if isinstance(each, dict) and isinstance(each.get("id"), str)}
            if (isinstance(models, list))
            else {}
        )
        name = name or (next(iter(known)) if len(known) == 1 else "")
        if name not in known:
            hint = f"set `served_model` to one of: {', '.join(sorted(known)[:10])}"
            raise EngineError(f"{self._server.address} has no model `{name}`", hint=hint)
        longest = known[name].get("max_model_len")
        if isinstance(longest, int) and longest <= self._facts.max_length:
            raise EngineError(
                f"{self._server.address} serves sequences of {longest} tokens; {self._facts.max_length + 1} are needed",
                hint="start it with a larger `--max-model-len`, or lower `data.max_length` or `rollout.max_new_tokens`",
            )
        return name

    def _begin(self) -> None:
        """Send requests for waiting work while slots are free."""
        if self._error is not None:
            return
        for work in self._waiting.startable(self._version, self._facts.num_slots - len(self._running)):
            _, submitted_s = self._waiting.remove(work.id)
            now_s = self._clock.monotonic()
            row = OpenRow(work, version=self._version, submitted_s=submitted_s, started_s=now_s, stops=None)
            request = PendingRequest()
            future = self._threads.submit(self._generate, work, request)
            self._running[work.id] = _Running(row, request, future)
            future.add_done_callback(functools.partial(self._note, work.id))

    def _note(self, sample: SampleId, outcome: Future[object]) -> None:
        self._outcomes.put((sample, outcome))

    def _generate(self, work: SampleRequest, request: PendingRequest) -> object:
        """Return the reply to a request; runs in a thread."""
        return self._server.request(
            "/v1/completions",
            {"model": self._model, **_completion(work)},
            max_bytes=_BASE_BYTES + _TOKEN_BYTES * (len(work.read_ids) + work.sampling.max_new_tokens),
            request=request,
        )

    def _take(self, timeout_s: float) -> bool:
        """Take an outcome, if one arrives within a time; begin what its slot is free for."""
        try:
            sample, outcome = self._outcomes.get(timeout=timeout_s) if timeout_s > 0 else self._outcomes.get_nowait()
        except queue.Empty:
            return False
        running = self._running.get(sample)
        if running is None or running.outcome is not outcome:  # cancelled
            return True
        del self._running[sample]
        try:
            self._done.append(self._read(running.row, outcome.result()))
        except (EngineError, ServerError) as error:
            self._error = error if isinstance(error, EngineError) else EngineError(error.message, hint=error.hint)
            for other in self._running.values():
                other.request.end()
            self._running.clear()
        self._begin()
        return True

    def _read(self, row: OpenRow, reply: object) -> Sample:
        """Return the sample of a reply.

        Raises:
            EngineError: the reply is not one to this request.
        """
        work, sampling = row.work, row.work.sampling
        choice = _choice(reply)
        ids, logp = _ids(choice), (choice.get("logprobs") or {}).get("token_logprobs")
        finish, prompt = choice.get("finish_reason"), choice.get("prompt_token_ids")
        if prompt is not None and prompt != list(work.read_ids):
            raise _wrong("continued another prompt than the one that was sent")
        if not 1 <= len(ids) <= sampling.max_new_tokens or max(ids) >= self._facts.vocab_size or min(ids) < 0:
            raise _wrong(f"sent {len(ids)} token ids, of 1 to {sampling.max_new_tokens} in the vocabulary")
        if not isinstance(logp, list) or len(logp) != len(ids) or not all(map(_is_logp, logp)):
            raise _wrong("did not send a log-probability of each token")
        is_cut = any(token in sampling.stop_ids for token in ids[:-1])
        is_stop = ids[-1] in sampling.stop_ids or bool(sampling.stop_texts)
        if is_cut or finish not in {"stop", "length"} or (finish == "stop" and not is_stop):
            hint = "start it with `--generation-config vllm`, so that it has no stop ids of its own"
            raise _wrong(
                f"ended a sample with {finish!r} at token {ids[-1]}, and the stop ids are {sampling.stop_ids}", hint
            )
        if finish == "length" and len(ids) < sampling.max_new_tokens and ids[-1] not in sampling.stop_ids:
            raise _wrong(f"ended a sample after {len(ids)} tokens, before its limit of {sampling.max_new_tokens}")
        for token, value in zip(ids, logp, strict=True):
            row.add(token, min(float(value), 0.0), min(float(value), 0.0))
        end: Literal["stop", "length"] = "stop" if finish == "stop" or ids[-1] in sampling.stop_ids else "length"
        sample = row.sample(end, self._clock.monotonic())
        return sample if self._facts.has_raw_logp else replace(sample, raw_logp=None)

    def _ask_score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each token but the first."""
        body = {"model": self._model, "prompt": list(ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        reply = self._server.request("/v1/completions", body, max_bytes=_BASE_BYTES + _TOKEN_BYTES * len(ids))
        found = _choice(reply).get("prompt_logprobs")
        if not isinstance(found, list) or len(found) != len(ids):
            raise ServerError(f"{self._server.address} did not send a log-probability of each token of a prompt")
        values = [
            (each.get(str(token)) or {}).get("logprob") if isinstance(each, dict) else None
            for token, each in zip(ids[1:], found[1:], strict=True)
        ]
        if not all(map(_is_logp, values)):
            raise ServerError(f"{self._server.address} sent log-probabilities that are not finite, or of other tokens")
        return tuple(min(float(value), 0.0) for value in values if value is not None)


def _completion(work: SampleRequest) -> dict[str, object]:
    """Return the body of a request; what the server's generation_config.json could change is stated."""
    sampling = work.sampling
    return {
        "prompt": list(work.read_ids),
        "max_tokens": sampling.max_new_tokens,
        "n": 1,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": (stream_key(sampling.seed, work.id) + work.position + 2**63) % 2**64 - 2**63,
        "stop": list(sampling.stop_texts),
        "include_stop_str_in_output": True,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def _choice(reply: object) -> Mapping[str, Any]:
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise _wrong("did not send one completion")
    return choices[0]


def _ids(choice: Mapping[str, Any]) -> list[int]:
    """Return the token ids of a completion, from `token_ids` or from tokens such as `token_id:17`."""
    ids = choice.get("token_ids")
    if ids is None:
        tokens = (choice.get("logprobs") or {}).get("tokens") or []
        texts = [each.removeprefix("token_id:") for each in tokens if isinstance(each, str) and "token_id:" in each]
        ids = [int(text) for text in texts if text.isdecimal()] if tokens and len(texts) == len(tokens) else None
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise _wrong("did not send token ids", "use vLLM 0.10.2 or newer")
    return ids


def _is_logp(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and _LEAST_LOGP < value <= _ROUNDING  # type: ignore[operator, arg-type]


def _wrong(what: str, hint: str = "the server must take and return token ids as vLLM does") -> EngineError:
    return EngineError(f"the server {what}", hint=hint)
