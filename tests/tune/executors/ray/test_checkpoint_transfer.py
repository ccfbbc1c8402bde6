"""Checkpoints between a slot's disk and the head's storage, without Ray: its calls are made right here."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from windlass.record.manifest import commit_manifest
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    Go,
    Order,
    StartAttempt,
)
from windlass.tune.executors.ray import checkpoint_transfer
from windlass.tune.executors.ray.checkpoint_transfer import CheckpointTransfer, TransferSteps, bring, fetch
from windlass.tune.executors.ray.slot_actor import SlotDisk
from windlass.tune.storage import local_folder
from windlass.tune.trial import ONE_CPU


@pytest.fixture
def disk(tmp_path: Path) -> SlotDisk:
    return SlotDisk("slot", tmp_path / "node")


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_transfer, "PIECE_BYTES", 7)


def checkpoint(folder: Path, trial: str = "t", name: str = "000002-1", text: str = "x" * 20) -> Path:
    path = folder / trial / name
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "weights").write_text(text)
    (path / "empty").touch()
    commit_manifest(path, step=2)
    return path


def carry(shipment: TransferSteps, disk: SlotDisk) -> str:
    result: Any = None
    while True:
        try:
            method, *arguments = shipment.send(result)
        except StopIteration as end:
            return str(end.value)
        result = getattr(disk, method)(*arguments)


def test_a_checkpoint_arrives_whole_in_pieces(disk: SlotDisk, tmp_path: Path) -> None:
    made = checkpoint(disk.path / "checkpoints")
    path = carry(fetch(str(made), str(tmp_path / "storage")), disk)
    assert path == str(tmp_path / "storage" / "t" / "000002-1")
    with local_folder(path) as folder:
        assert Path(folder, "deep", "weights").read_text() == "x" * 20
        assert Path(folder, "empty").read_bytes() == b""
    assert [child.name for child in (tmp_path / "storage" / "t").iterdir()] == ["000002-1"]


def test_one_that_is_there_is_not_fetched_again(disk: SlotDisk, tmp_path: Path) -> None:
    made = checkpoint(disk.path / "checkpoints")
    checkpoint(tmp_path / "storage")
    shipment = fetch(str(made), str(tmp_path / "storage"))
    with pytest.raises(StopIteration):
        next(shipment)


def test_one_that_breaks_off_leaves_nothing(disk: SlotDisk, tmp_path: Path) -> None:
    shipment = fetch(str(checkpoint(disk.path / "checkpoints")), str(tmp_path / "storage"))
    method, *arguments = shipment.send(None)
    shipment.send(getattr(disk, method)(*arguments))
    shipment.close()
    assert not list((tmp_path / "storage" / "t").iterdir())


def test_older_checkpoints_go_from_the_node_and_newer_stay(disk: SlotDisk, tmp_path: Path) -> None:
    for name in ("000002-1", "000010-1", "000100-1"):
        checkpoint(disk.path / "checkpoints", name=name)
    carry(fetch(str(disk.path / "checkpoints" / "t" / "000010-1"), str(tmp_path / "storage")), disk)
    assert sorted(path.name for path in (disk.path / "checkpoints" / "t").iterdir()) == ["000010-1", "000100-1"]


def test_a_checkpoint_is_brought_and_what_was_there_goes(disk: SlotDisk, tmp_path: Path) -> None:
    checkpoint(disk.path / "checkpoints")
    source = checkpoint(tmp_path / "storage", text="y" * 15)
    folder = carry(bring(str(source), f"{disk.path}/restored/t-2"), disk)
    with local_folder(folder) as found:
        assert Path(found, "deep", "weights").read_text() == "y" * 15
    assert not list((disk.path / "checkpoints").iterdir())


def test_a_slots_disk_gives_nothing_else_of_its_node(disk: SlotDisk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    for folder, name in ((str(tmp_path), "secret"), ("checkpoints", "../../../secret")):
        with pytest.raises(ValueError, match="is not in"):
            disk.read(folder, name, 0, 9)


def test_folders_of_slots_that_were_killed_go_with_the_next_one(tmp_path: Path) -> None:
    dead = SlotDisk("dead", tmp_path / "node")
    (dead.path / ".owner").write_text("999999999:1:boot")
    living = SlotDisk("living", tmp_path / "node")
    SlotDisk("third", tmp_path / "node")
    assert not dead.path.exists()
    assert living.path.exists()


class FakeSlot:
    """Keeps orders, and calls that are to be answered."""

    def __init__(self) -> None:
        self.orders: list[StartAttempt | Order] = []
        self.calls: list[tuple[Any, ...]] = []

    def queue(self, order: StartAttempt | Order) -> None:
        self.orders.append(order)

    def call(self, method: str, *arguments: Any) -> None:
        assert method == "disk"
        self.calls.append(arguments)

    def answer(self, disk: SlotDisk) -> Any:
        method, *arguments = self.calls.pop(0)
        return getattr(disk, method)(*arguments)


def transfer(slot: FakeSlot, disk: SlotDisk, tmp_path: Path) -> CheckpointTransfer:
    return CheckpointTransfer(slot.queue, partial(slot.call, "disk"), str(disk.path), str(tmp_path / "storage"))


def reported(saved: str = "") -> AttemptReported:
    return AttemptReported(trial="t", attempt=1, metrics={}, saved=saved)


ENDED = AttemptEnded(trial="t", attempt=1, how=AttemptOutcome.DONE)


def test_nothing_behind_a_checkpoint_is_told_before_the_head_has_it(disk: SlotDisk, tmp_path: Path) -> None:
    made, slot = str(checkpoint(disk.path / "checkpoints")), FakeSlot()
    carrier = transfer(slot, disk, tmp_path)
    assert carrier.receive([reported(), reported(made), ENDED]) == [reported()]
    told: list[Any] = []
    while slot.calls:
        assert not told
        told += carrier.returned(slot.answer(disk))
    assert told == [reported(str(tmp_path / "storage" / "t" / "000002-1")), ENDED]


def test_orders_wait_for_the_checkpoint_that_a_trial_goes_on_from(disk: SlotDisk, tmp_path: Path) -> None:
    source, slot = str(checkpoint(tmp_path / "storage")), FakeSlot()
    carrier = transfer(slot, disk, tmp_path)
    carrier.tell(StartAttempt(trial="t", attempt=2, config={}, resources=ONE_CPU, restore_from=source))
    carrier.tell(Go(trial="t", attempt=2))
    while slot.calls:
        assert not slot.orders
        carrier.returned(slot.answer(disk))
    start, go = slot.orders
    assert isinstance(start, StartAttempt)
    assert start.restore_from == f"{disk.path}/restored/t-2"
    assert isinstance(go, Go)


def test_a_checkpoint_that_went_with_its_node_is_not_told(disk: SlotDisk, tmp_path: Path) -> None:
    made, slot = str(checkpoint(disk.path / "checkpoints")), FakeSlot()
    carrier = transfer(slot, disk, tmp_path)
    saved = AttemptSaved(trial="t", attempt=1, iteration=2, path=made)
    carrier.receive([reported(made), saved, reported()])
    assert carrier.give_up() == [reported(), reported()]
    assert not list((tmp_path / "storage").glob("t/*"))


def test_a_checkpoint_that_cannot_be_read_costs_only_itself(disk: SlotDisk, tmp_path: Path) -> None:
    made, slot = str(checkpoint(disk.path / "checkpoints")), FakeSlot()
    carrier = transfer(slot, disk, tmp_path)
    carrier.receive([reported(made), ENDED])
    assert carrier.failed() == [reported(), ENDED]
    carrier.tell(StartAttempt(trial="t", attempt=2, config={}, resources=ONE_CPU, restore_from=made))
    assert carrier.failed() is None


def test_a_root_that_another_user_may_write_to_is_not_used(tmp_path: Path) -> None:
    root = tmp_path / "node"
    root.mkdir()
    root.chmod(0o777)
    disk = SlotDisk("slot", root)
    assert disk.path.parent != root
    assert disk.path.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(root)
    assert SlotDisk("slot", tmp_path / "link").path.parent.name.startswith("link-")
