"""What the agent of a node writes when its machine is taken away, as a slot reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.tune.executors.ray.slot_actor import SlotNotice, read_notice


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ('{"at": 12.5, "kind": "terminate"}', SlotNotice(gone_at=12.5, why="its machine is taken away (terminate)")),
        ('{"at": 12}', SlotNotice(gone_at=12.0)),
        ('{"at": 12, "kind": "rebalance"}', None),
        ('{"at": null}', SlotNotice()),
        ("[1]", SlotNotice()),
        ('{"at": 1', SlotNotice()),
    ],
)
def test_a_notice_is_read_and_a_damaged_one_has_no_time(text: str, notice: SlotNotice | None, tmp_path: Path) -> None:
    path = tmp_path / "notice.json"
    path.write_text(text)
    assert read_notice(path) == notice


def test_a_node_without_a_notice_has_none(tmp_path: Path) -> None:
    assert read_notice(tmp_path / "notice.json") is None
