"""What every engine does, checked against one that a subclass makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import pytest
from torch import Tensor

from tests.post.rollout.policies import finish, group, prompt, work
from windlass.core.errors import UsageError
from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.types import SampleId, SampleRequest, ScoreRequest

__all__ = ["EngineConformance"]


class EngineConformance(ABC):
    """Tests of the protocol `RolloutEngine`; an engine that lacks an ability overrides the ability's test."""

    log_prob_tolerance = 1e-5

    @abstractmethod
    def make(self, *, max_open: int | None = None) -> RolloutEngine:
        """Return an engine with 4 slots of 64 tokens and weights of version 1."""

    @abstractmethod
    def weights(self) -> Mapping[str, Tensor]:
        """Return weights that the engine can load."""

    def test_facts_do_not_change(self) -> None:
        engine = self.make()
        facts = engine.facts
        assert (facts.num_slots, facts.max_length, engine.version()) == (4, 64, 1)
        finish(engine, group(0, 3))
        assert engine.facts == facts

    def test_each_sample_comes_once_and_is_whole(self) -> None:
        engine = self.make()
        works = [item for g in range(4) for item in group(g, 3, length=3 + g, max_new_tokens=2 + 3 * g)]
        samples = finish(engine, works)
        assert engine.poll(0) == []
        assert set(samples) == {item.id for item in works}
        for item in works:
            sample = samples[item.id]
            count = len(sample.ids)
            assert 1 <= count <= item.sampling.max_new_tokens
            assert len(sample.logp) == count
            assert all(value <= 0 for value in sample.logp)
            assert (sample.raw_logp is not None) == engine.facts.has_raw_logp
            assert sample.finish == "length"
            assert [(span.start, span.stop, span.version, span.origin) for span in sample.spans] == [
                (0, count, 1, "policy")
            ]
            assert all(seconds >= 0 for seconds in sample.seconds.values())

    def test_members_differ(self) -> None:
        samples = finish(self.make(), group(0, 6, max_new_tokens=10))
        assert len({sample.ids for sample in samples.values()}) == 6

    def test_deterministic_engines_repeat_samples_in_any_order(self) -> None:
        engine = self.make()
        assert engine.facts.is_deterministic
        works = [item for g in range(3) for item in group(g, 3)]
        first = {item: (s.ids, s.logp) for item, s in finish(engine, works).items()}
        assert {item: (s.ids, s.logp) for item, s in finish(self.make(), works[::-1]).items()} == first
        retried = [
            SampleRequest(
                id=SampleId(group=1, member=2, attempt=4), prompt_ids=prompt(5, seed=1), sampling=works[0].sampling
            )
        ]
        again = finish(engine, retried)[retried[0].id]
        assert (again.ids, again.logp) == first[SampleId(group=1, member=2)]

    def test_scores_are_the_raw_log_probabilities_of_samples(self) -> None:
        engine = self.make()
        works = group(0, 3, max_new_tokens=10)
        samples = finish(engine, works)
        requests = [ScoreRequest(ids=w.prompt_ids + samples[w.id].ids, start=len(w.prompt_ids)) for w in works]
        for item, scores in zip(works, engine.score(requests), strict=True):
            raw_logp = samples[item.id].raw_logp
            assert raw_logp is not None
            assert scores == pytest.approx(raw_logp, abs=self.log_prob_tolerance)

    def test_a_stop_id_ends_a_sample(self) -> None:
        stops = tuple(range(0, 61, 3))
        for sample in finish(self.make(), group(0, 8, max_new_tokens=12, stop_ids=stops)).values():
            assert not set(sample.ids[:-1]) & set(stops)
            assert (sample.finish == "stop") == (sample.ids[-1] in stops)

    def test_what_is_not_taken_can_be_submitted_later(self) -> None:
        engine = self.make(max_open=5)
        works = group(0, 9)
        taken = engine.submit(works)
        assert 1 <= taken <= 5
        assert engine.submit(works[taken:]) == 5 - taken
        samples = {sample.id for sample in engine.poll(60.0)}
        assert samples <= {item.id for item in works}
        assert samples

    def test_invalid_work_is_refused_and_nothing_is_taken(self) -> None:
        engine = self.make()
        empty = SampleRequest(id=SampleId(group=9, member=0), prompt_ids=(), sampling=work(0).sampling)
        foreign = SampleRequest(id=SampleId(group=9, member=0), prompt_ids=(999_999,), sampling=work(0).sampling)
        for wrong in (empty, foreign, work(9, length=60)):
            with pytest.raises(UsageError):
                engine.submit([work(1), wrong])
        assert engine.poll(0) == []
        engine.submit([work(1)])
        with pytest.raises(UsageError, match="already open"):
            engine.submit([work(1)])
        assert len(engine.poll(60.0)) == 1

    def test_cancelled_samples_come_back_as_such(self) -> None:
        engine = self.make()
        works = group(0, 6, max_new_tokens=20)
        engine.submit(works)
        engine.cancel([works[0].id, works[5].id, SampleId(group=77, member=0)])
        engine.cancel([works[0].id])
        samples = finish(engine, [])
        while len(samples) < 6:
            samples.update({sample.id: sample for sample in engine.poll(60.0)})
        assert {item.member for item, sample in samples.items() if sample.finish == "cancelled"} == {0, 5}
        assert all(len(sample.logp) == len(sample.ids) for sample in samples.values())

    def test_a_load_shows_in_the_spans_of_later_samples(self) -> None:
        engine = self.make()
        finish(engine, [work(0)])
        engine.load(self.weights(), 2)
        assert engine.version() == 2
        assert [span.version for span in finish(engine, [work(1)])[work(1).id].spans] == [2]

    def test_a_load_in_flight_splits_samples(self) -> None:
        engine = self.make()
        assert engine.facts.has_in_flight_update
        engine.submit([work(0, max_new_tokens=5), work(1, max_new_tokens=20)])
        assert len(engine.poll(60.0)) == 1
        engine.load(self.weights(), 2)
        (sample,) = engine.poll(60.0)
        assert [span.version for span in sample.spans] == [1, 2]
        assert [span.oldest_read for span in sample.spans] == [1, 2]
        assert (sample.spans[0].start, sample.spans[1].stop) == (0, 20)
        assert sample.spans[0].stop == sample.spans[1].start

    def test_work_waits_for_the_version_that_it_needs(self) -> None:
        engine = self.make()
        newer = SampleRequest(
            id=SampleId(group=1, member=0), prompt_ids=(1, 2), sampling=work(0).sampling, oldest_version=2
        )
        engine.submit([newer])
        assert engine.poll(60.0) == []
        assert set(finish(engine, [work(0)])) == {work(0).id}
        engine.load(self.weights(), 2)
        assert [sample.id for sample in engine.poll(60.0)] == [newer.id]

    def test_closing_twice_is_closing_once(self) -> None:
        engine = self.make()
        engine.submit([work(0)])
        engine.close()
        engine.close()
