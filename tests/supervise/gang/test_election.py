from __future__ import annotations

from pathlib import Path

from windlass.supervise.gang.election import (
    PATIENCE_S,
    Candidate,
    Claims,
    Leadership,
    job_number,
    other_jobs,
    publish_claim,
    read_claims,
)

NOBODY = Claims()


def claim(epoch: int, rank: int, incarnation: str = "") -> Leadership:
    return Leadership(epoch, rank, f"node{rank}", f"10.0.0.{rank + 1}", 29400, "100:1:boot", incarnation)


def led(epoch: int, rank: int) -> Claims:
    return Claims(claim(epoch, rank), claim(epoch, rank))


def test_rank_zero_leads_at_once_and_the_others_wait_their_turn() -> None:
    assert Candidate(0, 100.0).epoch_to_claim(100.0, NOBODY) == 1
    second, third = Candidate(1, 100.0), Candidate(2, 100.0)
    assert second.epoch_to_claim(100.0 + PATIENCE_S + 4.9, NOBODY) == 0
    assert second.epoch_to_claim(100.0 + PATIENCE_S + 5.0, NOBODY) == 1
    assert third.epoch_to_claim(100.0 + PATIENCE_S + 5.0, NOBODY) == 0


def test_a_leader_that_comes_back_claims_the_next_epoch_at_once() -> None:
    assert Candidate(1, 0.0).epoch_to_claim(0.0, led(4, 1)) == 5


def test_a_follower_is_patient_from_when_it_last_heard_its_leader() -> None:
    candidate = Candidate(0, 0.0)
    candidate.on_connected(50.0)
    assert candidate.epoch_to_claim(50.0 + PATIENCE_S - 0.1, led(1, 1)) == 0
    assert candidate.epoch_to_claim(50.0 + PATIENCE_S, led(1, 1)) == 2


def test_a_leader_known_to_be_dead_is_not_waited_for() -> None:
    candidate = Candidate(2, 100.0)
    candidate.on_leader_gone(100.0)
    assert candidate.epoch_to_claim(100.0, led(1, 0)) == 2


def test_a_leader_yields_to_a_higher_epoch_only() -> None:
    assert not Candidate.must_yield(2, NOBODY)
    assert not Candidate.must_yield(2, led(2, 0))
    assert Candidate.must_yield(2, led(3, 1))


def test_one_epoch_has_one_leader(tmp_path: Path) -> None:
    assert read_claims(tmp_path) == NOBODY
    assert publish_claim(tmp_path, claim(1, 0))
    assert not publish_claim(tmp_path, claim(1, 1))
    assert read_claims(tmp_path) == led(1, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["leader-1.json"]


def test_the_highest_epoch_is_the_newest_also_with_two_digits(tmp_path: Path) -> None:
    for epoch in (9, 10, 2):
        publish_claim(tmp_path, claim(epoch, 0))
    newest = read_claims(tmp_path).newest
    assert newest is not None
    assert newest.epoch == 10


def test_a_new_start_of_the_job_claims_the_next_epoch_though_another_start_led() -> None:
    other = Claims(None, claim(3, 0, "7.0"))
    assert Candidate(0, 0.0).epoch_to_claim(0.0, other) == 4
    assert Candidate(1, 0.0).epoch_to_claim(0.0, other) == 0
    assert Candidate(1, 0.0).epoch_to_claim(PATIENCE_S + 5.0, other) == 4


def test_a_start_that_another_one_followed_never_claims_again() -> None:
    superseded = Claims(claim(3, 0, "7.0"), claim(4, 0, "8.0"))
    assert superseded.is_superseded
    assert Candidate(0, 0.0).epoch_to_claim(1000.0, superseded) == 0
    assert not Claims(claim(5, 1, "8.0"), claim(5, 1, "8.0")).is_superseded


def test_claims_are_read_from_the_view_of_one_start(tmp_path: Path) -> None:
    for found in (claim(1, 0, "7.0"), claim(2, 1, "7.0"), claim(3, 0, "8.0")):
        publish_claim(tmp_path, found)
    assert read_claims(tmp_path, "7.0") == Claims(claim(2, 1, "7.0"), claim(3, 0, "8.0"))
    assert read_claims(tmp_path, "8.0") == Claims(claim(3, 0, "8.0"), claim(3, 0, "8.0"))
    assert read_claims(tmp_path, "9.0") == Claims(None, claim(3, 0, "8.0"))


def test_a_claim_of_a_later_job_of_the_task_supersedes(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("train-2", "train-1", "train-3", "train-2-9", "other-9", "train-10")}
    for folder in folders.values():
        folder.mkdir()
    mine = folders["train-2"]
    publish_claim(mine, claim(1, 0, "7.0"))
    for name in ("train-1", "train-2-9", "other-9"):
        publish_claim(folders[name], claim(5, 0, "8.0"))
    assert not read_claims(mine, "7.0").is_superseded
    publish_claim(folders["train-10"], claim(1, 0, "9.0"))
    assert read_claims(mine, "7.0").is_superseded
    assert read_claims(mine, "6.0").is_superseded, "nor does a start begin that comes too late"
    assert not read_claims(folders["train-10"], "9.0").is_superseded
    assert not read_claims(mine).is_superseded, "a job of one machine has no such neighbours"
    assert Candidate(0, 0.0).epoch_to_claim(1000.0, read_claims(mine, "6.0")) == 0


def test_jobs_of_a_task_are_told_by_their_whole_name(tmp_path: Path) -> None:
    for name in ("train-1", "train-2", "train-12", "train-2-1", "strain-3", "train-4.old", ".train-5"):
        (tmp_path / name).mkdir()
    assert other_jobs(tmp_path / "train-2") == {1: tmp_path / "train-1", 12: tmp_path / "train-12"}
    assert other_jobs(tmp_path / "train-2-1") == {}
    assert other_jobs(tmp_path / "job") == {}
    assert [job_number(Path(name)) for name in ("train-2-1", "train-12", "job")] == [1, 12, 0]
