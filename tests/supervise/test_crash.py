from __future__ import annotations

from pathlib import Path

from windlass.supervise.replica.loop import keep_crash


def crash(path: Path, text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        keep_crash(path)


def test_crashes_are_kept_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "supervisor-0.crash"
    for number in range(5):
        crash(path, f"crash {number} " + "x" * 40_000)
    assert path.stat().st_size < 120_000
    assert "ValueError: crash 4" in path.read_text()
    assert "crash 0" not in path.read_text()


def test_a_crash_that_cannot_be_kept_hides_nothing(tmp_path: Path) -> None:
    crash(tmp_path / "no" / "folder", "crash")
