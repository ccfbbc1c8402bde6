"""A small server of vLLM's HTTP API around an embedded engine, and one that answers what a test scripts."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.types import Sample, SampleId, SampleRequest, Sampling, ScoreRequest
from windlass.train.data.tokenizer import Tokenizer
from windlass.train.hf.convert_weights import import_hf

__all__ = ["Reply", "ServedEngine", "listening"]

Reply = tuple[int, object]
"""Status and body; bytes are sent as they are."""


@contextmanager
def listening(answer: Callable[[str, dict[str, Any], BaseHTTPRequestHandler], Reply | None]) -> Iterator[str]:
    """Serve on the loopback interface; yields the address. `answer` returns None if it has written the reply itself."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, body: dict[str, Any]) -> None:
            reply = answer(self.path, body, self)
            if reply is None:
                self.close_connection = True
                return
            status, content = reply
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that give up are part of the tests
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class ServedEngine:
    """Answers requests as vLLM documents them; a thread drives the engine.

    Args:
        is_processed: `--logprobs-mode processed_logprobs`.
        keeps_weights: whether it ignores `reload_weights`, as a server of another folder would.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        *,
        tokenizer: Tokenizer | None = None,
        is_processed: bool = False,
        keeps_weights: bool = False,
        key: str = "",
    ) -> None:
        self._engine, self._tokenizer, self._key = engine, tokenizer, key
        self._is_processed, self._keeps_weights = is_processed, keeps_weights
        self._commands: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._numbers = count()
        self._open: dict[SampleId, Future[Sample]] = {}
        self.paths: list[str] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._drive, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()

    def answer(self, path: str, body: dict[str, Any], handler: BaseHTTPRequestHandler) -> Reply:
        self.paths.append(path)
        if self._key and handler.headers["Authorization"] != f"Bearer {self._key}":
            return 401, {"error": {"message": f"wrong key {handler.headers['Authorization']}"}}
        if path == "/v1/models":
            return 200, {"data": [{"id": "policy", "max_model_len": self._engine.facts.max_length + 1}]}
        if path == "/tokenize" and self._tokenizer is not None:
            return 200, {"tokens": self._tokenizer.encode(body["prompt"])}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            if not self._keeps_weights:
                self._call(lambda: self._reload(Path(body["kwargs"]["weights_path"])))
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache":
            return 200, b""
        if path != "/v1/completions":
            return 404, {"detail": "Not Found"}
        if max(body["prompt"]) >= self._engine.facts.vocab_size:
            return 400, {"error": {"message": f"Token id {max(body['prompt'])} is out of vocabulary"}}
        if "prompt_logprobs" in body:
            return 200, {"choices": [{"prompt_logprobs": self._scored(body["prompt"])}]}
        return 200, {"choices": [self._completed(body)]}

    def _scored(self, ids: Sequence[int]) -> list[dict[str, Any] | None]:
        (values,) = self._call(lambda: self._engine.score([ScoreRequest(ids=tuple(ids))]))
        found = [{str(token): {"logprob": value, "rank": 1}} for token, value in zip(ids[1:], values, strict=True)]
        return [None, *found]

    def _completed(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = Sampling(
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_k=body["top_k"] or None,
            top_p=body["top_p"],
            stop_ids=tuple(body["stop_token_ids"]),
            stop_texts=tuple(body["stop"]),
            seed=body["seed"],
        )
        work = SampleRequest(
            id=SampleId(group=next(self._numbers), member=0), prompt_ids=tuple(body["prompt"]), sampling=sampling
        )
        done: Future[Sample] = Future()
        self._call(lambda: self._submit(work, done))
        sample = done.result(600)
        assert sample.raw_logp is not None
        logp = sample.logp if self._is_processed else sample.raw_logp
        return {
            "token_ids": list(sample.ids),
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": list(logp), "tokens": [f"token_id:{each}" for each in sample.ids]},
            "finish_reason": sample.finish,
        }

    def _submit(self, work: SampleRequest, done: Future[Sample]) -> None:
        assert self._engine.submit([work]) == 1
        self._open[work.id] = done

    def _reload(self, folder: Path) -> None:
        with import_hf(folder) as weights:
            self._engine.load({name: tensor.float() for name, tensor in weights}, self._engine.version() + 1)

    def _call(self, function: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self._commands.put((function, done))
        return done.result(600)

    def _drive(self) -> None:
        while not self._is_closed:
            try:
                function, done = self._commands.get(timeout=0.0 if self._open else 0.02)
            except queue.Empty:
                for sample in self._engine.poll(0.0) if self._open else ():
                    self._open.pop(sample.id).set_result(sample)
                continue
            try:
                done.set_result(function())
            except Exception as error:  # noqa: BLE001 - the handler's thread raises it
                done.set_exception(error)
