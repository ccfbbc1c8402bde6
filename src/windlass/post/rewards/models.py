"""Verifier by a reward model of ours: answers are scored in batches, in a process of its own.

The model reads the tokens of prompt and answer as the policy wrote them, so its tokenizer must be the policy's. A process that dies or
misses its deadline is started again by the next batch; its answers are not scored, which is no reward of 0.

Legend: B sequences, T tokens.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.core.json_text import decode_json
from windlass.post.channel import ChildProcess, FrameStream, read_settings
from windlass.post.rewards.protocol import Score
from windlass.supervise.linux import die_with_parent

if TYPE_CHECKING:
    from windlass.train.data.tokenizer import Tokenizer

__all__ = ["RewardModel", "main"]

_START_S = 300.0
_BATCH_TOKENS = 8192
"""Most tokens of a forward pass, padding included; a longer sequence has one of its own."""


class RewardModel:
    """Client of a reward model's process, which starts with the first batch.

    Args:
        checkpoint: a reward model: a checkpoint, a folder of checkpoints, or `hf:PATH`.
        tokenizer: that of the policy.
        deadline_s: time for an answer; a batch has that of all its answers.
        pooling: `last` or `answer`; empty: that of the checkpoint's recipe, else `last`.

    Raises:
        SpecError: the checkpoint is not a reward model, or its tokenizer differs from the policy's.
    """

    def __init__(
        self, checkpoint: str, tokenizer: Tokenizer, *, deadline_s: float, device: str = "cpu", pooling: str = ""
    ) -> None:
        self._deadline_s = deadline_s
        recorded = _check(checkpoint, tokenizer)
        if pooling not in {"", "last", "answer"}:
            message = f"`pooling` of verifier `model` is `{pooling}`"
            raise SpecError([Problem(message, "invalid-value", hint="write last or answer")])
        self._settings = {"checkpoint": checkpoint, "device": device, "pooling": pooling or recorded}
        self._process: ChildProcess | None = None

    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Score]:
        """Return the score of each pair of prompt and answer; blocks."""
        if not sequences:
            return []
        is_new = self._process is None
        process = self._process = self._process or ChildProcess(__name__, self._settings, has_output=True)
        process.channel.send(json.dumps([[list(prompt), list(answer)] for prompt, answer in sequences]).encode())
        end_s = time.monotonic() + self._deadline_s * len(sequences) + (_START_S if is_new else 0.0)
        while not process.channel.is_closed and (left_s := end_s - time.monotonic()) > 0:
            for frame in process.channel.wait(left_s):
                reply = decode_json(frame)
                if isinstance(reply, str):
                    return self._failed(len(sequences), reply, "exception")
                return [_score(value) for value in reply]
        if process.channel.is_closed:
            return self._failed(len(sequences), "the reward model's process ended", "died")
        return self._failed(len(sequences), f"no score within {self._deadline_s:g} s per answer", "timeout")

    def close(self) -> None:
        """End the process; idempotent."""
        if self._process is not None:
            self._process.close(0.0)
        self._process = None

    def _failed(self, count: int, error: str, kind: str) -> list[Score]:
        self.close()
        return [Score(value=None, error=error, kind=kind)] * count


def _score(value: float | None) -> Score:
    if value is None or not math.isfinite(value):
        return Score(value=None, error=f"the reward is {value}", kind="not-finite")
    return Score(value=value)


def _check(checkpoint: str, tokenizer: Tokenizer) -> str:
    """Return the pooling that a reward model was trained with, after checks that it is one of this tokenizer."""
    from windlass.train.data.config import TokenizerConfig  # lazy: torch
    from windlass.train.data.tokenizer import load_tokenizer
    from windlass.train.hf.sources import StoredCheckpoint, open_model, tokenizer_config_of

    try:
        with open_model(checkpoint) as source:
            head, record = source.config.head, source.record if isinstance(source, StoredCheckpoint) else {}
        own = load_tokenizer(tokenizer_config_of(checkpoint, TokenizerConfig()))
    except WindlassError as error:
        raise SpecError([Problem(f"verifier `model`: {error.message}", error.code, hint=error.hint)]) from error
    if head != "scalar":
        message = f"verifier `model`: {checkpoint} is not a reward model"
        raise SpecError([Problem(message, "invalid-value", hint="train one with `windlass train reward`")])
    if own.identity != tokenizer.identity:
        message = f"verifier `model`: the tokenizer of {checkpoint} is not the policy's"
        raise SpecError([Problem(message, "tokenizer-mismatch", hint="train both from the same model")])
    recipe = record.get("recipe")
    return str(recipe.get("pooling", "last")) if isinstance(recipe, dict) else "last"


class _Scorer:
    def __init__(self, settings: dict[str, Any]) -> None:
        import torch  # lazy: only in this process

        from windlass.train.hf.sources import load_model

        torch.set_num_threads(1)
        self._device = torch.device(settings["device"])
        self._model = load_model(settings["checkpoint"], device=self._device).eval()
        self._is_mean = settings["pooling"] == "answer"

    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float | None]:
        """Return the value of each sequence; None if it is not finite."""
        lengths = [len(prompt) + len(answer) for prompt, answer in sequences]
        order = sorted(range(len(sequences)), key=lambda place: lengths[place])
        values: list[float | None] = [None] * len(sequences)
        while order:
            size = max(1, _BATCH_TOKENS // lengths[order[0]])
            while size > 1 and size * lengths[order[:size][-1]] > _BATCH_TOKENS:
                size -= 1
            part, order = order[:size], order[size:]
            for place, value in zip(part, self._batch([sequences[place] for place in part]), strict=True):
                values[place] = value if math.isfinite(value) else None
        return values

    def _batch(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float]:
        import torch  # loaded in the constructor

        longest = max(len(prompt) + len(answer) for prompt, answer in sequences)
        rows = [[*prompt, *answer, *[0] * (longest - len(prompt) - len(answer))] for prompt, answer in sequences]
        with torch.inference_mode():
            values_BT = self._model(torch.tensor(rows, device=self._device)).double().reshape(len(rows), longest).cpu()
        found = []
        for values_T, (prompt, answer) in zip(values_BT, sequences, strict=True):
            end = len(prompt) + len(answer)
            start = len(prompt) if self._is_mean else end - 1
            found.append(float(values_T[start:end].mean()))
        return found


def main(descriptor: int) -> int:
    """Score batches until the client closes the stream; return the exit code of the process."""
    connection = socket.socket(fileno=descriptor)
    settings = read_settings(connection)
    die_with_parent(signal.SIGKILL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    channel = FrameStream(connection)
    try:
        scorer = _Scorer(settings)
    except WindlassError as error:
        channel.send(json.dumps(error.message).encode())
        return 1
    while not channel.is_closed:
        for frame in channel.wait(1.0):
            try:
                reply: object = scorer.score(decode_json(frame))
            except Exception as error:  # noqa: BLE001 - the client learns of it
                reply = f"{type(error).__name__}: {error}"[:500]
            channel.send(json.dumps(reply).encode())
    return 0
