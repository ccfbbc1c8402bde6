from __future__ import annotations

from pathlib import Path

from windlass.supervise.election import PATIENCE_S, Candidate, Leadership, newest_claim, publish_claim


def claim(epoch: int, rank: int) -> Leadership:
    return Leadership(epoch, rank, f"node{rank}", f"10.0.0.{rank + 1}", 29400, "100:1:boot")


def test_rank_zero_leads_at_once_and_the_others_wait_their_turn() -> None:
    assert Candidate(0, 100.0).epoch_to_claim(100.0, None) == 1
    second, third = Candidate(1, 100.0), Candidate(2, 100.0)
    assert second.epoch_to_claim(100.0 + PATIENCE_S + 4.9, None) == 0
    assert second.epoch_to_claim(100.0 + PATIENCE_S + 5.0, None) == 1
    assert third.epoch_to_claim(100.0 + PATIENCE_S + 5.0, None) == 0


def test_a_leader_that_comes_back_claims_the_next_epoch_at_once() -> None:
    assert Candidate(1, 0.0).epoch_to_claim(0.0, claim(4, 1)) == 5


def test_a_follower_is_patient_from_when_it_last_heard_its_leader() -> None:
    candidate = Candidate(0, 0.0)
    candidate.on_connected(50.0)
    assert candidate.epoch_to_claim(50.0 + PATIENCE_S - 0.1, claim(1, 1)) == 0
    assert candidate.epoch_to_claim(50.0 + PATIENCE_S, claim(1, 1)) == 2


def test_a_leader_known_to_be_dead_is_not_waited_for() -> None:
    candidate = Candidate(2, 100.0)
    candidate.on_leader_gone(100.0)
    assert candidate.epoch_to_claim(100.0, claim(1, 0)) == 2


def test_a_leader_yields_to_a_higher_epoch_only() -> None:
    assert not Candidate.must_yield(2, None)
    assert not Candidate.must_yield(2, claim(2, 0))
    assert Candidate.must_yield(2, claim(3, 1))


def test_one_epoch_has_one_leader(tmp_path: Path) -> None:
    assert newest_claim(tmp_path) is None
    assert publish_claim(tmp_path, claim(1, 0))
    assert not publish_claim(tmp_path, claim(1, 1))
    assert newest_claim(tmp_path) == claim(1, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["leader-1.json"]


def test_the_highest_epoch_is_the_newest_also_with_two_digits(tmp_path: Path) -> None:
    for epoch in (9, 10, 2):
        publish_claim(tmp_path, claim(epoch, 0))
    newest = newest_claim(tmp_path)
    assert newest is not None
    assert newest.epoch == 10
