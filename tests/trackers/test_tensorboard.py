"""Event files of a process, as TensorBoard's own format has them; `tests/tune/followers/test_files.py` has the rest."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.trackers.tensorboard import EventFile


@pytest.fixture
def proto(monkeypatch: pytest.MonkeyPatch) -> Any:
    if "torch" not in sys.modules:
        monkeypatch.setitem(sys.modules, "torch", None)  # it imports torch where it can, and needs seconds for it
    pytest.importorskip("tensorboardX", reason="needs tensorboardX: run the tests with `make test`")
    from tensorboardX.proto import event_pb2

    return event_pb2


def records(path: Path) -> list[bytes]:
    """Events of a file, each behind its length and two checksums that must be right."""
    from tensorboardX.record_writer import masked_crc32c

    data, found = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        event = data[12 : 12 + length]
        assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
        assert int.from_bytes(data[12 + length : 16 + length], "little") == masked_crc32c(event)
        found.append(event)
        data = data[16 + length :]
    return found


def test_steps_are_in_the_file_before_it_is_closed(tmp_path: Path, proto: Any) -> None:
    file = EventFile(tmp_path / "deep", 3)
    file.add(3, {"train/loss": 2.5, "odd": math.nan})
    file.add(4, {"train/loss": math.inf})
    (path,) = (tmp_path / "deep").iterdir()
    version, restart, *steps = [proto.Event.FromString(event) for event in records(path)]
    file.close()
    assert version.file_version == "brain.Event:2"
    assert (restart.step, restart.session_log.status) == (3, proto.SessionLog.START)
    assert [event.step for event in steps] == [3, 4]
    values = [[(value.tag, str(value.simple_value)) for value in event.summary.value] for event in steps]
    assert values == [[("train/loss", "2.5"), ("odd", "nan")], [("train/loss", "inf")]]


def test_a_restart_writes_to_another_file(tmp_path: Path) -> None:
    for step in (1, 5):
        EventFile(tmp_path, step).close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
