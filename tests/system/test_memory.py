from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.stage import Stage
from windlass.record.state import State

pytestmark = pytest.mark.system

CHECKPOINT = """
import os, resource, sys, time
from windlass import report
with report.checkpoint_dir(step=7) as folder:
    (folder / "state").write_text("seven")
"""


@pytest.fixture
def memory_group(tmp_path: Path, need: Callable[[str], None]) -> Iterator[Path]:
    need("memory-cgroup")
    group = Path("/sys/fs/cgroup/memory") / f"windlass-test-{tmp_path.name}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    yield group
    group.rmdir()


def check(stage: Stage, text: str, message: str, **settings: object) -> None:
    run = stage.launch(stage.python(CHECKPOINT + text, **settings))
    assert stage.end(run) is State.FAILED
    assert stage.causes(run) == ["out-of-memory"], stage.story(run)
    assert message in stage.ends(run)[0].message
    assert (run.folder.checkpoints("main") / "step-7/state").read_text() == "seven"
    assert stage.survivors(run) == {}


def test_more_than_the_task_asked_for(stage: Stage) -> None:
    text = "held = bytearray(os.urandom(1)) * (300 << 20); time.sleep(600)"
    check(stage, text, "of memory, the limit is 200 MiB", memory="200MiB")


def test_each_replica_has_its_own_limit(stage: Stage) -> None:
    text = "held = bytearray(os.urandom(1)) * (120 << 20); time.sleep(2.5)"
    run = stage.launch(
        stage.python(CHECKPOINT.replace("step=7", "step=report.place().rank") + text, memory="200MiB", nodes=2)
    )
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)


def test_an_address_space_limit(stage: Stage) -> None:
    text = "resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)); held = bytearray(1 << 30)"
    check(stage, text, "MemoryError")


def test_a_kill_by_the_kernel(stage: Stage, memory_group: Path) -> None:
    text = (
        f"open({str(memory_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(5)\n"  # its supervisor looks every second where it is; on a busy machine later
        "held = [bytearray(os.urandom(1)) * (1 << 20) for _ in range(500)]"
    )
    check(stage, text, "the kernel killed one of its processes for lack of memory")
