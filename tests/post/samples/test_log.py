"""The log of samples: what was written is read again, whatever happens to its writer or its files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.post import StoredSample, read_samples
from windlass.post.control.scoring import ScoredSample
from windlass.post.rollout.types import Sample, SampleId, TokenSpan
from windlass.post.samples.log import SampleLog
from windlass.post.samples.reader import SampleFolder
from windlass.post.samples.records import DropGroup, PlanGroup, ReserveBatch, Scored

SEGMENT = "000000.samples"


def scored(group: int, member: int = 0, *, tokens: int = 3, reward: float = 1.0, text: str = "a") -> ScoredSample:
    return ScoredSample(
        sample=Sample(
            id=SampleId(group=group, member=member),
            ids=tuple(range(tokens)),
            logp=(-0.5,) * tokens,
            raw_logp=(-0.25,) * tokens,
            spans=(TokenSpan(start=0, stop=tokens, version=group),),
            finish="stop",
            seconds={"generated": 0.5},
        ),
        prompt_ids=(group, 7),
        text=text,
        rewards={"exact": reward},
        reward=reward,
    )


def group(number: int, size: int = 2) -> list[PlanGroup | ScoredSample]:
    plan = PlanGroup(group=number, row=number + 100, oldest_version=number)
    return [plan, *(scored(number, member) for member in range(size))]


def add_step(log: SampleLog, step: int, groups: tuple[int, ...]) -> None:
    for number in groups:
        log.append(*group(number))
    log.append(ReserveBatch(step=step, groups=groups))
    log.flush()


def steps_of(folder: Path) -> list[tuple[int | None, int, int]]:
    return [(each.step, each.scored.sample.id.group, each.scored.sample.id.member) for each in read_samples(folder)]


floats = st.floats(max_value=0, allow_nan=False, allow_infinity=False)


@st.composite
def samples(draw: st.DrawFn, number: int, member: int, prompt: tuple[int, ...]) -> ScoredSample:
    count = draw(st.integers(0, 5))
    single = st.lists(draw(st.sampled_from([floats, st.floats(width=32, max_value=0)])), min_size=count, max_size=count)
    reward = draw(st.none() | st.floats(allow_nan=False))
    return ScoredSample(
        sample=Sample(
            id=SampleId(group=number, member=member, attempt=draw(st.integers(0, 3))),
            ids=tuple(draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count))),
            logp=tuple(draw(single)),
            raw_logp=draw(st.none() | single.map(tuple)),
            spans=(
                TokenSpan(
                    start=0, stop=count, version=draw(st.integers(0, 9)), oldest_read=draw(st.none() | st.just(0))
                ),
            ),
            finish=draw(st.sampled_from(["stop", "length", "cancelled"])),
            seconds={"generated": draw(st.floats(0, 9))},
        ),
        prompt_ids=prompt,
        text=draw(st.text()),
        rewards={"exact": reward, "é": 0.0},
        reward=0.5 if reward is None else reward,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), segment_bytes=st.sampled_from([1, 2000, 1 << 20]))
def test_what_was_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, segment_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = SampleLog(folder, segment_bytes=segment_bytes)
    want: dict[int | None, list[ScoredSample]] = {None: []}
    number = 0
    for step in range(data.draw(st.integers(0, 4))):
        groups = tuple(range(number, number + data.draw(st.integers(1, 2))))
        number = groups[-1] + 1
        want[step] = []
        for each in groups:
            prompt = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
            log.append(PlanGroup(group=each, row=each, oldest_version=0))
            if data.draw(st.booleans()):
                log.write()
            made = [data.draw(samples(each, member, prompt)) for member in range(data.draw(st.integers(1, 2)))]
            log.append(*made)
            want[step] += made
        log.append(ReserveBatch(step=step, groups=groups))
        if data.draw(st.booleans()):  # close and open again
            log.flush()
            log.close()
            log = SampleLog(folder, segment_bytes=segment_bytes)
    log.append(PlanGroup(group=99, row=0, oldest_version=0))
    want[None] = [data.draw(samples(99, 0, ()))]
    log.append(*want[None])
    log.flush()
    assert {step: log.stored(step) for step in log.steps} == {
        step: made for step, made in want.items() if step is not None
    }
    log.close()
    log = SampleLog(folder, segment_bytes=segment_bytes)
    assert {step: log.stored(step) for step in log.steps} == {
        step: made for step, made in want.items() if step is not None
    }
    ids = sorted(each.sample.id for made in want.values() for each in made)
    assert sorted(each.id for each in log.records() if isinstance(each, Scored)) == ids
    log.close()
    found: dict[int | None, list[ScoredSample]] = {None: []}
    for sample in read_samples(folder):
        found.setdefault(sample.step, []).append(sample.scored)
    assert found == want


def test_a_reward_that_is_not_a_number_stays_none(tmp_path: Path) -> None:
    log = SampleLog(tmp_path)
    odd = replace(scored(0), rewards={"exact": None}, reward=float("nan"))
    log.append(odd, ReserveBatch(step=0, groups=(0,)))
    log.flush()
    [found] = log.stored(0) or []
    assert found.rewards == {"exact": None}
    assert found.reward != found.reward


def test_a_torn_tail_is_cut_at_every_byte(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = SampleLog(folder)
    ends = []
    for step in range(3):
        add_step(log, step, (step,))
        ends.append((folder / SEGMENT).stat().st_size)
    log.close()
    content = (folder / SEGMENT).read_bytes()
    for length in range(ends[0], len(content)):
        (folder / SEGMENT).write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        assert [step for step, _, _ in steps_of(folder)] == [step for step in range(whole) for _ in range(2)]
        log = SampleLog(folder)
        assert list(log.steps) == list(range(whole))
        assert (folder / SEGMENT).stat().st_size == ends[whole - 1]
        add_step(log, whole, (10,))
        log.close()
        assert steps_of(folder)[-1] == (whole, 10, 1)


def test_a_tail_that_a_power_cut_left_in_pieces_is_cut(tmp_path: Path) -> None:
    """Frames after the last sync may be on disk in any order."""
    log = SampleLog(tmp_path)
    add_step(log, 0, (0,))
    end = (tmp_path / SEGMENT).stat().st_size
    for number in (1, 2):
        log.append(*group(number))
        log.write()
    log.close()
    with (tmp_path / SEGMENT).open("r+b") as file:
        file.seek(end)
        file.write(b"\0" * 30)
    log = SampleLog(tmp_path)
    assert list(log.steps) == [0]
    assert (tmp_path / SEGMENT).stat().st_size == end


def test_damage_in_the_middle_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    log = SampleLog(tmp_path)
    add_step(log, 0, (0,))
    end = (tmp_path / SEGMENT).stat().st_size
    add_step(log, 1, (1,))
    add_step(log, 2, (2,))
    log.close()
    content = bytearray((tmp_path / SEGMENT).read_bytes())
    for place in (end, end + 10, end + 40, end + 200):  # its length, its checksum, its header, its arrays
        damaged = bytearray(content)
        damaged[place] ^= 1
        (tmp_path / SEGMENT).write_bytes(damaged)
        for open_it in (lambda: SampleLog(tmp_path), lambda: list(read_samples(tmp_path))):
            with pytest.raises(PreconditionError, match=rf"{SEGMENT} is damaged at byte {end}") as caught:
                open_it()
            assert caught.value.code == "samples-damaged"
        assert (tmp_path / SEGMENT).read_bytes() == damaged  # nothing was cut


def test_damage_in_an_older_segment_is_an_error(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, segment_bytes=1)
    for step in range(3):
        add_step(log, step, (step,))
    log.close()
    path = tmp_path / "000001.samples"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(PreconditionError, match=r"000001\.samples is damaged at byte"):
        list(read_samples(tmp_path))


def test_a_second_writer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.post.samples.log._LOCK_WAIT_S", 0.1)
    log = SampleLog(tmp_path)
    with pytest.raises(PreconditionError, match="another process writes the samples") as caught:
        SampleLog(tmp_path)
    assert caught.value.code == "in-use"
    log.close()
    log = SampleLog(tmp_path)
    del log  # an object that nobody holds has no lock
    SampleLog(tmp_path).close()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from windlass.post.samples.log import SampleLog\n"
        f"log = SampleLog(Path({str(tmp_path)!r}))\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode < 0
    SampleLog(tmp_path).close()


@pytest.mark.parametrize("num_written", [None, 0, 1, 100])
def test_a_full_disk_leaves_no_half_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_written: int | None
) -> None:
    log = SampleLog(tmp_path)
    add_step(log, 0, (0,))
    size = (tmp_path / SEGMENT).stat().st_size
    real, left = os.pwrite, [2]

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        left[0] -= 1
        if left[0] > 0 and num_written is not None:
            return real(descriptor, data[:num_written], offset) if num_written else 0
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(PreconditionError, match=r"(?i)cannot write .*000000\.samples: no space left") as caught:
            add_step(log, 1, (1,))
    assert caught.value.code == "not-writable"
    assert (tmp_path / SEGMENT).stat().st_size == size
    assert log.stored(1) is None
    log.flush()  # there is room again: what was collected is written
    assert len(log.stored(1) or []) == 2
    assert len(steps_of(tmp_path)) == 4


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreconditionError, match=f"cannot write {tmp_path}/file/samples") as caught:
        SampleLog(tmp_path / "file" / "samples")
    assert caught.value.code == "not-writable"


def test_other_facts_begin_anew_at_their_step(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, facts={"key": "a"})
    for step in range(4):
        add_step(log, step, (step,))
    log.append(*group(9))
    log.flush()
    log.close()
    log = SampleLog(tmp_path, step=2, facts={"key": "b"})
    assert list(log.steps) == [0, 1]
    add_step(log, 2, (2,))
    log.close()
    assert [step for step, _, _ in steps_of(tmp_path)] == [0, 0, 1, 1, 2, 2]
    log = SampleLog(tmp_path, step=2, facts={"key": "b"})  # the same again: nothing is lost
    assert log.stored(2) is not None
    log.close()
    log = SampleLog(tmp_path, step=1, facts={"key": "b"})  # step 1 was reserved under other facts
    assert list(log.steps) == [0]
    log.close()
    assert [SampleFolder(tmp_path).first(number)["facts"]["key"] for number in range(3)] == ["a", "b", "b"]
    SampleLog(tmp_path, facts={"key": "b"}, is_fresh=True).close()
    assert steps_of(tmp_path) == []


def test_segments_that_no_checkpoint_needs_are_deleted(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, segment_bytes=1)
    log.append(*group(50))  # stays open
    log.flush()
    for step in range(6):
        add_step(log, step, (step,))
    log.commit(5, oldest_step=4)
    assert len(list(tmp_path.glob("*.samples"))) > 6  # group 50 is in the first one
    log.append(DropGroup(group=50, reason="late", length=6))
    add_step(log, 6, (6,))
    add_step(log, 7, (7,))
    assert list(log.steps) == [5, 6, 7]
    log.commit(7, oldest_step=7)
    log.close()
    assert {step for step, _, _ in steps_of(tmp_path)} == {7}
    log = SampleLog(tmp_path, step=7, segment_bytes=1)
    assert log.stored(7) is not None
    add_step(log, 8, (8,))


def test_dropped_groups_are_read_with_their_reason(tmp_path: Path) -> None:
    log = SampleLog(tmp_path)
    log.append(
        *group(0), *group(1), *group(2), ReserveBatch(step=0, groups=(1,)), DropGroup(group=0, reason="old", length=6)
    )
    log.flush()
    assert [(each.step, each.scored.sample.id.group, each.dropped) for each in read_samples(tmp_path)] == [
        (0, 1, ""),
        (0, 1, ""),
        (None, 0, "old"),
        (None, 0, "old"),
        (None, 2, ""),
        (None, 2, ""),
    ]
    assert [each.scored.sample.id.group for each in read_samples(tmp_path, step=0)] == [1, 1]
    assert [each.scored.sample.id.member for each in read_samples(tmp_path, group=2)] == [0, 1]
    scores = [Scored(id=SampleId(group=2, member=member), oldest_version=2, length=3) for member in range(2)]
    dropped = DropGroup(group=0, reason="old", length=6)
    found = [each for each in log.records() if each not in group(1)][-4:]
    assert found == [*scores, ReserveBatch(step=0, groups=(1,)), dropped]
    assert [each.group for each in log.records() if isinstance(each, PlanGroup)] == [1, 2]
    log.append(ReserveBatch(step=1, groups=(2,)))
    log.flush()
    assert dropped not in list(log.records())


def test_a_folder_without_samples_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=f"no samples in {tmp_path}") as caught:
        list(read_samples(tmp_path))
    assert caught.value.code == "no-samples"
    assert list(tmp_path.iterdir()) == []  # looking makes nothing


def test_a_reader_beside_a_writer_sees_whole_steps(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, segment_bytes=4000)
    add_step(log, 0, (0, 1))
    is_over, is_read = threading.Event(), threading.Event()
    written, began = [0], [0]  # newest step, and the newest when the last read began

    def write() -> None:
        for step in range(1, 200):
            while step - began[0] > 80 and not is_read.is_set():
                time.sleep(0.001)
            add_step(log, step, (2 * step, 2 * step + 1))
            written[0] = step
            if step % 20 == 0:
                log.commit(step, oldest_step=max(0, step - 100))  # a read that takes 100 steps loses the newest
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    newest = 0
    try:
        while not is_over.is_set():
            began[0] = written[0]
            found: dict[int | None, list[StoredSample]] = {}
            for each in read_samples(tmp_path):
                found.setdefault(each.step, []).append(each)
            assert None not in found
            assert all(len(each) == 4 for each in found.values())
            assert max((step for step in found if step is not None), default=newest) >= newest
            newest = max((step for step in found if step is not None), default=newest)
    finally:
        is_read.set()
    writer.join()
    assert max(step for step, _, _ in steps_of(tmp_path) if step is not None) == 199
