"""`windlass.pyz data-build`: whole or not at all, once per key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.supervise.data_build_scene import NUM_FILES, SLOW, DataMill, strike
from windlass.pin.data.pinning import pin_data
from windlass.supervise.builds.once import find_ready

pytestmark = pytest.mark.system


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[DataMill]:
    found = DataMill(tmp_path)
    yield found
    found.close()


def test_what_was_written_is_published_with_its_digest(mill: DataMill) -> None:
    code, said = mill.run(
        "mkdir $WINDLASS_OUT/a; echo hi > $WINDLASS_OUT/a/b; cp /bin/true $WINDLASS_OUT/true; ln -s a $WINDLASS_OUT/c"
    )
    assert code == 0, said
    ready = find_ready(mill.place)
    assert ready is not None
    assert ready.notes["digest"] == pin_data("x", f"file:{mill.content}", mill.folder).digest
    assert json.loads(mill.record.read_bytes())["digest"] == ready.notes["digest"]
    assert os.stat(mill.content / "a" / "b").st_mode & 0o222 == 0
    assert mill.left_overs() == []


def test_the_second_finds_it(mill: DataMill) -> None:
    assert mill.run(SLOW)[0] == 0
    code, said = mill.run(SLOW)
    assert (code, mill.num_builds) == (0, 1)
    assert f"data x exists: {NUM_FILES} files" in said
    assert json.loads(mill.record.read_bytes())["is_hit"] is True


def test_twenty_at_once_build_once(mill: DataMill) -> None:
    started = [mill.start(SLOW) for _ in range(20)]
    assert [process.wait(300) for process in started] == [0] * 20
    assert mill.num_builds == 1
    assert mill.left_overs() == []


def test_those_who_wait_for_a_build_that_fails_do_not_repeat_it(mill: DataMill) -> None:
    started = [mill.start("echo x >> $COUNT; sleep 2; exit 7", WINDLASS_RUN=f"run-{number}") for number in range(5)]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [7] * 5
    assert mill.num_builds == 1
    assert sum("which this one waited for" in text for text in said) == 4
    assert mill.run(SLOW)[0] == 0  # whoever comes later tries again
    assert mill.left_overs() == []


def test_sigterm_is_for_the_command_and_leaves_nothing(mill: DataMill) -> None:
    process = mill.start(
        "trap 'echo saved >&2; exit 75' TERM; echo > $WINDLASS_OUT/half; echo ready >&2; while :; do sleep 0.05; done"
    )
    assert process.stderr is not None
    while process.stderr.readline() != "ready\n":
        continue
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=300)[1]
    assert (process.returncode, "saved" in said) == (75, True)
    assert find_ready(mill.place) is None
    assert mill.left_overs() == [f"{mill.place.name}.failed"]


def test_a_command_that_is_not_there(mill: DataMill) -> None:
    code, said = mill.run("exec nothing-of-this-name")
    assert code == 127
    assert "data x could not be built: its command exited with code 127" in said


def test_kills_at_random_moments_never_leave_half(tmp_path: Path) -> None:
    assert {seed: found for seed in range(10) if (found := strike(tmp_path / str(seed), seed))} == {}


@pytest.mark.soak
def test_kills_at_a_hundred_random_moments(tmp_path: Path) -> None:
    assert {seed: found for seed in range(100, 200) if (found := strike(tmp_path / str(seed), seed))} == {}


def test_a_disk_without_room_is_said(mill: DataMill, need: Callable[[str], None]) -> None:
    need("tmpfs")
    built = mill.place.parent
    built.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(built)], check=True)
    try:
        code, said = mill.run("head -c 4000000 /dev/zero > $WINDLASS_OUT/much 2>/dev/null || exit 5")
        assert (code, "no space left on device" in said) == (5, True)
        assert find_ready(mill.place) is None
        code, said = mill.run("echo fits > $WINDLASS_OUT/little")
        assert code == 0, said
    finally:
        subprocess.run(["umount", "--lazy", str(built)], check=True)
