from __future__ import annotations

import os

import pytest

from windlass.supervise.replica import process_tree
from windlass.supervise.replica.process_tree import end_all


def test_what_may_not_be_signalled_is_given_up_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(process_tree, "descendants", lambda root: [root + 1])
    assert end_all([1000], set, deadline_s=0.03) == [1001]
