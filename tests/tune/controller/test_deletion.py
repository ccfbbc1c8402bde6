"""Checkpoints that are deleted beside the sweep."""

from __future__ import annotations

from windlass.tune.controller.checkpoint_retention import Deletion


def test_one_that_cannot_be_deleted_is_told_and_holds_up_no_other() -> None:
    gone: list[str] = []

    def drop(path: str) -> None:
        if path == "bad":
            raise ValueError("the bucket says no")
        gone.append(path)

    deletion = Deletion(drop)
    deletion.take(["a", "bad", "b"])
    deletion.close()
    assert gone == ["a", "b"]
    assert list(deletion.problems) == ["bad: the bucket says no"]
