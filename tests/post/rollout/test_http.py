"""Engines of servers: the suite of every engine against a real server, and what servers do wrong."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.post.rollout.conformance import EngineConformance
from tests.post.rollout.policies import embedded, finish, group, work
from tests.post.rollout.served import Reply, ServedEngine, listening
from tests.train.model import tiny
from windlass.config.encode import to_data
from windlass.core.errors import PreconditionError, UsageError, WindlassError
from windlass.post.http_requests import JsonServer, ServerError
from windlass.post.rollout.engine import EngineError, RolloutEngine
from windlass.post.rollout.engines import build_engine
from windlass.post.rollout.http import HttpEngine
from windlass.post.rollout.types import SampleRequest, ScoreRequest
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import load_tokenizer
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights

pytestmark = pytest.mark.system


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def served(stack: ExitStack, model: Decoder, **options: Any) -> str:
    """The address of a server with a model's weights."""
    engine = ServedEngine(embedded(model, max_length=65), **options)
    stack.callback(engine.close)
    return stack.enter_context(listening(engine.answer))


def client(url: str, model: Decoder, folder: Path | None = None, **settings: Any) -> HttpEngine:
    """An engine of a server, as a recipe builds it."""
    defaults: dict[str, Any] = {"model": to_data(model.config, keep_defaults=True), "num_slots": 4, "max_length": 64}
    if folder is not None:
        defaults |= {"weights": "reload", "folder": str(folder), "dtype": "float32"}
    engine = build_engine("http", {**defaults, "url": url, "version": 1, **settings})
    assert isinstance(engine, HttpEngine)
    return engine


class TestHttp(EngineConformance):
    @pytest.fixture(autouse=True)
    def _server(self, stack: ExitStack, tmp_path: Path) -> None:
        self._stack, self._folder = stack, tmp_path / "weights"
        self._model = tiny.decoder(family="llama")
        self._url = served(stack, self._model)

    def make(self, *, max_open: int | None = None) -> RolloutEngine:
        engine = client(self._url, self._model, self._folder, max_open=max_open)
        self._stack.callback(engine.close)
        return engine

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self._model.named_parameters())

    def test_deterministic_engines_repeat_samples_in_any_order(self) -> None:
        assert not self.make().facts.is_deterministic

    def test_a_load_in_flight_splits_samples(self) -> None:
        """A load waits for open requests: their tokens have one version."""
        engine = self.make()
        assert not engine.facts.has_in_flight_update
        engine.submit(group(0, 4, max_new_tokens=20))
        engine.poll(0.0)
        engine.load(self.weights(), 2)
        samples = engine.poll(0.0)
        assert [[span.version for span in sample.spans] for sample in samples] == [[1]] * 4


def test_new_weights_reach_the_server_and_old_folders_go(stack: ExitStack, tmp_path: Path) -> None:
    first, second = tiny.decoder(family="llama"), tiny.decoder(family="llama")
    init_weights(second, 7)
    engine = client(served(stack, first), first, tmp_path / "weights")
    row = [ScoreRequest(ids=(1, 2, 3, 4))]
    assert engine.score(row)[0] == pytest.approx(embedded(first).score(row)[0], abs=1e-5)
    for version in (2, 3):
        engine.load(dict(second.named_parameters()), version)
    assert engine.score(row)[0] == pytest.approx(embedded(second).score(row)[0], abs=1e-5)
    assert [each.name for each in (tmp_path / "weights").iterdir()] == ["version-3"]
    engine.close()
    assert not list((tmp_path / "weights").iterdir())


def test_log_probabilities_of_both_modes_explain_the_samples(stack: ExitStack) -> None:
    model = tiny.decoder(family="llama")
    raw, processed = (
        client(served(stack, model), model),
        client(served(stack, model, is_processed=True), model, logprobs="processed"),
    )
    warm = group(0, 4, temperature=0.7, top_k=5)
    with pytest.raises(UsageError, match="the model's own"):
        raw.submit(warm)
    for sample in finish(processed, warm).values():
        assert sample.raw_logp is None
    works = group(0, 4)
    for one, other in zip(finish(raw, works).values(), finish(processed, works).values(), strict=True):
        assert (one.logp, one.raw_logp, other.raw_logp) == (one.raw_logp, one.logp, None)


def test_frozen_weights_are_not_loaded(stack: ExitStack) -> None:
    model = tiny.decoder(family="llama")
    engine = client(served(stack, model), model)
    assert not engine.facts.has_weight_update
    with pytest.raises(EngineError, match="frozen"):
        engine.load({}, 2)
    with pytest.raises(UsageError, match="needs a folder"):
        client("http://127.0.0.1:1", model, weights="reload")


def test_a_server_with_another_tokenizer_is_refused(stack: ExitStack) -> None:
    small, large = tiny.decoder(family="llama"), tiny.decoder(family="llama", vocab_size=300)
    ours = load_tokenizer(TokenizerConfig(path="bytes"))

    class Other:
        vocab_size = 300

        def encode(self, text: str) -> list[int]:
            return [3, *ours.encode(text)]

    client(served(stack, large), large).check_tokenizer(ours)  # no /tokenize
    client(served(stack, large, tokenizer=ours), large).check_tokenizer(ours)
    with pytest.raises(PreconditionError, match="refuses id"):
        client(served(stack, small), small).check_tokenizer(ours)
    with pytest.raises(PreconditionError, match=r"is not the run's: 'The answer is 42\.'"):
        client(served(stack, large, tokenizer=Other()), large).check_tokenizer(ours)


def test_the_key_comes_from_the_environment_and_is_in_no_message(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.decoder(family="llama")
    url = served(stack, model, key="s3cret")
    with pytest.raises(WindlassError, match="THE_KEY") as unset:
        client(url, model, key_variable="THE_KEY")
    assert unset.value.code == "secret-missing"
    monkeypatch.setenv("THE_KEY", "wrong-one")
    with pytest.raises(EngineError, match=r"401: wrong key Bearer \*\*\*"):
        client(url, model, key_variable="THE_KEY")
    monkeypatch.setenv("THE_KEY", "s3cret")
    assert len(finish(client(url, model, key_variable="THE_KEY"), group(0, 2))) == 2
    with pytest.raises(UsageError, match="has a user, a password or a query"):
        JsonServer("http://me:s3cret@127.0.0.1:1/v1")


# ------------------------------------------------------------------------------------------------------ wrong servers

MODELS = {"data": [{"id": "policy"}]}
Answer = Callable[[dict[str, Any], BaseHTTPRequestHandler], Reply | None]


def hostile(stack: ExitStack, answer: Answer, **settings: Any) -> HttpEngine:
    """An engine of a server that answers completions as a test wants."""

    def reply(path: str, body: dict[str, Any], handler: BaseHTTPRequestHandler) -> Reply | None:
        return (200, MODELS) if path == "/v1/models" else answer(body, handler)

    url = stack.enter_context(listening(reply))
    return client(url, tiny.decoder(family="llama"), **{"timeout_s": 120.0, "retries": 0, **settings})


def completion(**changes: Any) -> dict[str, Any]:
    logprobs = {"token_logprobs": [-1.0, -2.0]}
    return {"choices": [{"token_ids": [5, 6], "logprobs": logprobs, "finish_reason": "length", **changes}]}


def one(**sampling: Any) -> SampleRequest:
    return work(0, **{"max_new_tokens": 2, **sampling})


WRONG: dict[str, tuple[object, str]] = {
    "nothing": ({}, "did not send one completion"),
    "a list": ([1], "did not send one completion"),
    "no ids": (completion(token_ids=None), "did not send a log-probability|did not send token ids"),
    "texts": (completion(token_ids=["a", "b"]), "did not send token ids"),
    "booleans": (completion(token_ids=[True, False]), "did not send token ids"),
    "a foreign id": (completion(token_ids=[5, 61]), "in the vocabulary"),
    "a negative id": (completion(token_ids=[5, -1]), "in the vocabulary"),
    "too many": (completion(token_ids=[5, 6, 7]), "sent 3 token ids"),
    "none": (completion(token_ids=[]), "sent 0 token ids"),
    "NaN": (completion(logprobs={"token_logprobs": [float("nan"), -1.0]}), "log-probability of each token"),
    "infinity": (completion(logprobs={"token_logprobs": [-9999.0, -1.0]}), "log-probability of each token"),
    "positive": (completion(logprobs={"token_logprobs": [0.5, -1.0]}), "log-probability of each token"),
    "fewer log-probabilities": (completion(logprobs={"token_logprobs": [-1.0]}), "log-probability of each token"),
    "another prompt": (completion(prompt_token_ids=[1]), "another prompt"),
    "an end of its own": (completion(finish_reason="stop"), "--generation-config vllm"),
    "an early end": (completion(token_ids=[5], logprobs={"token_logprobs": [-1.0]}), "before its limit"),
    "an aborted sample": (completion(finish_reason="abort"), "'abort'"),
    "no JSON": (b"<html>", "something else than JSON: '<html>'"),
    "deep JSON": (b"[" * 1000 + b"]" * 1000, "something else than JSON"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reply_is_an_error_and_no_sample(stack: ExitStack, name: str) -> None:
    reply, why = WRONG[name]
    engine = hostile(stack, lambda body, handler: (200, reply))
    engine.submit([one()])
    with pytest.raises(EngineError, match=why):
        engine.poll(300.0)
    with pytest.raises(EngineError, match=why):  # it stays unusable
        engine.poll(0.0)


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        [None, {"9": {"logprob": -1.0}}],
        [None, {"2": {"logprob": float("nan")}}],
        [None, {"2": None}],
        [None, 3],
    ],
    ids=str,
)
def test_wrong_scores_are_refused(stack: ExitStack, values: object) -> None:
    engine = hostile(stack, lambda body, handler: (200, {"choices": [{"prompt_logprobs": values}]}))
    with pytest.raises(EngineError, match="log-probabilit"):
        engine.score([ScoreRequest(ids=(1, 2))])


def test_huge_replies_are_not_read(stack: ExitStack) -> None:
    sent: list[int] = []

    def declared(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 40))
        handler.end_headers()

    def endless(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * 65536)
            sent.append(65536)

    for answer in (declared, endless):
        engine = hostile(stack, answer)
        engine.submit([one()])
        with pytest.raises(EngineError, match="more than"):
            engine.poll(300.0)
    assert sum(sent) < 64 << 20


@pytest.fixture
def over(stack: ExitStack) -> threading.Event:
    """What servers wait for that are slower than their client; set after the test."""
    event = threading.Event()
    stack.callback(event.set)
    return event


def test_a_slow_server_meets_the_deadline(stack: ExitStack, over: threading.Event) -> None:
    """Neither a silent server nor one that sends a byte now and then holds a request beyond its time."""

    def silent(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> None:
        over.wait(600.0)

    def dripping(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not over.wait(0.05):
            handler.wfile.write(b"X-1: 1\r\n")
            handler.wfile.flush()

    for answer in (silent, dripping):
        engine = hostile(stack, answer, timeout_s=0.4)
        engine.submit([one()])
        with pytest.raises(EngineError, match=r"did not answer within 0\.4 s"):  # the server would go on
            engine.poll(300.0)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_server_is_asked_again(stack: ExitStack, status: int) -> None:
    calls: list[int] = []

    def answer(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> Reply:
        calls.append(status)
        return (200, completion()) if len(calls) == 3 else (status, {"error": {"message": "busy"}})

    engine = hostile(stack, answer, retries=2)
    assert [sample.ids for sample in finish(engine, [one()]).values()] == [(5, 6)]
    calls[:] = [0, 0, 0]
    engine.submit([work(1)])
    with pytest.raises(EngineError, match=f"{status}: busy, after 3 attempts"):
        engine.poll(300.0)
    assert len(calls) == 6


def test_a_death_in_the_middle_of_a_reply_is_asked_again(stack: ExitStack) -> None:
    calls: list[int] = []

    def answer(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> Reply | None:
        calls.append(1)
        if len(calls) > 1:
            return 200, completion()
        data = json.dumps(completion()).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:20])
        return None

    assert len(finish(hostile(stack, answer, retries=1), [one()])) == 1


def test_refusals_and_redirects_are_not_repeated(stack: ExitStack) -> None:
    calls: list[int] = []

    def refuse(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> Reply:
        calls.append(1)
        return 400, {"error": {"message": "bad\nprompt"}}

    def redirect(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("Location", "http://198.51.100.1/")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    for answer, why in ((refuse, "400: bad prompt"), (redirect, r"redirects elsewhere \(307\)")):
        engine = hostile(stack, answer, retries=5)
        engine.submit([one()])
        with pytest.raises(EngineError, match=why):
            engine.poll(300.0)
    assert len(calls) == 1


def test_cancelling_ends_the_request_at_once(stack: ExitStack, over: threading.Event) -> None:
    asked = threading.Event()

    def silent(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> None:
        asked.set()
        over.wait(600.0)

    engine = hostile(stack, silent, timeout_s=600.0)
    engine.submit([one()])
    engine.poll(0.0)
    assert asked.wait(300.0)
    engine.cancel([one().id])
    assert [(sample.finish, sample.ids) for sample in engine.poll(300.0)] == [("cancelled", ())]
    threads = engine._threads
    engine.close()
    start_s = time.monotonic()
    threads.shutdown(wait=True)  # the server has not answered yet
    assert time.monotonic() - start_s < 300.0


def test_unreachable_and_unsuitable_servers_are_named(stack: ExitStack) -> None:
    with pytest.raises(ServerError, match="broke the connection"):
        JsonServer("http://127.0.0.1:1", retries=0).request("/x", max_bytes=10)
    for url in ("ftp://x", "http://", "http://x:99999", "localhost:8000", "http://x/?key=1"):
        with pytest.raises(UsageError):
            JsonServer(url)
    model = tiny.decoder(family="llama")
    for models, why in (
        ([{"id": "a"}, {"id": "b"}], "served_model` to one of: a, b"),
        ([{"id": "a", "max_model_len": 64}], "serves sequences of 64 tokens"),
        ("x", "has no model"),
    ):
        url = stack.enter_context(listening(lambda *_, data=models: (200, {"data": data})))
        with pytest.raises(EngineError) as caught:
            client(url, model, retries=0)
        assert why in f"{caught.value.message} {caught.value.hint}"
