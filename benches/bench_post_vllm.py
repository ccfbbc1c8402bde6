"""The contract of engines with vLLM itself, in an environment that has vLLM; a CPU build is enough.

    python -m benches.bench_post_vllm            # needs vllm, pytest and windlass with what `train` installs

Runs the suite of every engine on a model of 60 thousand parameters in float32, and compares with the embedded engine. Not part of
`make test`: vLLM is in none of the project's environments.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tests.post.rollout.conformance import EngineConformance
from tests.post.rollout.policies import embedded, finish, group, work
from tests.train.model import tiny
from windlass.config.encode import to_data
from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.engines import build_engine
from windlass.post.rollout.types import ScoreRequest
from windlass.post.rollout.vllm import VllmEngine
from windlass.train.model.decoder import Decoder


def model() -> Decoder:
    """Return a model with heads that vLLM's attention on a CPU supports."""
    attention = tiny.attention(num_heads=2, num_kv_heads=2, head_dim=32)
    return tiny.decoder(family="llama", vocab_size=64, d_model=64, hidden=96, max_length=256, attention=attention)


class VllmConformance(EngineConformance):
    """The suite with one engine, which takes seconds to start."""

    log_prob_tolerance = 1e-4

    def __init__(self) -> None:
        settings = {"num_slots": 4, "max_length": 64, "device": "cpu", "dtype": "float32", "version": 1}
        data = {"model": to_data(model().config, keep_defaults=True), "options": {"enforce_eager": True}}
        engine = build_engine("vllm", {**data, **settings})
        assert isinstance(engine, VllmEngine)
        self._engine = engine

    def make(self, *, max_open: int | None = None) -> RolloutEngine:
        while self._engine.poll(0.01):
            pass
        self._engine._facts = replace(self._engine.facts, max_open=max_open or 16)
        self._engine.load(self.weights(), 1)
        return self._engine

    def weights(self) -> Mapping[str, Tensor]:
        return dict(model().named_parameters())

    def test_deterministic_engines_repeat_samples_in_any_order(self) -> None:
        assert not self.make().facts.is_deterministic

    def test_a_load_in_flight_splits_samples(self) -> None:
        assert not self.make().facts.has_in_flight_update

    def test_scores_are_the_raw_log_probabilities_of_samples(self) -> None:
        """At temperature 1 over all tokens, both distributions are one."""
        engine, works = self.make(), group(0, 3, max_new_tokens=10)
        samples = finish(engine, works)
        requests = [ScoreRequest(ids=each.prompt_ids + samples[each.id].ids, start=5) for each in works]
        for item, own, theirs in zip(works, embedded(model()).score(requests), engine.score(requests), strict=True):
            worst = max(abs(one - other) for one, other in zip(own, theirs, strict=True))
            assert worst < self.log_prob_tolerance, worst
            assert max(abs(one - other) for one, other in zip(theirs, samples[item.id].logp, strict=True)) < 1e-4

    def test_greedy_tokens_are_those_of_the_embedded_engine(self) -> None:
        works = [work(number, temperature=0.0, max_new_tokens=12) for number in range(4)]
        ours, theirs = finish(embedded(model()), works), finish(self.make(), works)
        assert [ours[each.id].ids for each in works] == [theirs[each.id].ids for each in works]


def main() -> None:
    """Run each test and print its name; the first failure ends with its trace."""
    torch.set_num_threads(1)
    suite = VllmConformance()
    names = [name for name in dir(suite) if name.startswith("test_")]
    names.sort(key=lambda name: "closing" in name)  # it is the last thing that the engine does
    for name in names:
        start_s = time.process_time()
        getattr(suite, name)()
        print(f"{name:80} ok {time.process_time() - start_s:6.2f} CPU-s", flush=True)


if __name__ == "__main__":
    main()
