"""Cost of the log of samples: `python benches/bench_post_samples.py [tokens of an answer [samples to reopen]]`.

CPU time of a sample through all states (plan, sample, reservation on disk, commit) in batches of 256, with the time of the
disk beside it; the time to open a log of 100,000 samples again, as its writer does, with a reservation still wanted; and
the growth of resident memory over 10,000 steps of 8 samples with a checkpoint every 100. Exits with 1 beyond a target.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from windlass.post.control.scoring import ScoredSample
from windlass.post.rollout.types import Sample, SampleId, TokenSpan
from windlass.post.samples.frames import LogEntry
from windlass.post.samples.log import SampleLog
from windlass.post.samples.records import PlanGroup, ReserveBatch

US_TARGET, REOPEN_S_TARGET, GROWTH_MB_TARGET = 20.0, 2.0, 5.0
GROUPS, MEMBERS = 32, 8


def answers(num_tokens: int) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Return 64 answers with log-probabilities; numbers are float32, as engines give them."""
    rng = random.Random(0)
    return [
        (
            tuple(rng.randrange(50_000) for _ in range(num_tokens)),
            tuple(-rng.randrange(1 << 20) / (1 << 18) for _ in range(num_tokens)),
        )
        for _ in range(64)
    ]


def batch(step: int, num_groups: int, made: Sequence[tuple[tuple[int, ...], tuple[float, ...]]]) -> list[LogEntry]:
    """Return the entries of a step."""
    entries: list[LogEntry] = []
    groups = range(step * num_groups, (step + 1) * num_groups)
    for group in groups:
        entries.append(PlanGroup(group=group, row=group, oldest_version=step))
        for member in range(MEMBERS):
            ids, logp = made[(group * MEMBERS + member) % len(made)]
            sample = Sample(
                id=SampleId(group=group, member=member),
                ids=ids,
                logp=logp,
                raw_logp=logp,
                spans=(TokenSpan(start=0, stop=len(ids), version=step),),
                finish="stop",
                seconds={"queued": 0.1, "generated": 1.5},
            )
            text, rewards = "an answer of words " * (len(ids) // 5), {"gsm8k": 1.0}
            entries.append(
                ScoredSample(
                    sample=sample, prompt_ids=made[group % len(made)][0], text=text, rewards=rewards, reward=1.0
                )
            )
    entries.append(ReserveBatch(step=step, groups=tuple(groups)))
    return entries


def appending(folder: Path, num_tokens: int, num_steps: int = 40) -> tuple[float, float]:
    """Return the CPU time of a sample, and the wall time of a batch of 256 with its sync; medians."""
    log, made = SampleLog(folder), answers(num_tokens)
    cpu_s, wall_s = [], []
    for step in range(num_steps):
        entries = batch(step, GROUPS, made)
        began, began_cpu = time.perf_counter(), time.process_time()
        log.append(*entries)
        log.flush()
        if step % 10 == 9:
            log.commit(step + 1)
        wall_s.append(time.perf_counter() - began)
        cpu_s.append(time.process_time() - began_cpu)
    log.close()
    return median(cpu_s) / (GROUPS * MEMBERS), median(wall_s)


def reopening(folder: Path, num_tokens: int, num_samples: int) -> tuple[float, float, int]:
    """Return the CPU and wall time to open a log of so many samples, and its bytes."""
    log, made = SampleLog(folder, segment_bytes=1 << 40), answers(num_tokens)
    num_steps = num_samples // (GROUPS * MEMBERS) + 1
    for step in range(num_steps):
        log.append(*batch(step, GROUPS, made))
        log.write()
    log.flush()
    log.close()
    began, began_cpu = time.perf_counter(), time.process_time()
    log = SampleLog(folder, segment_bytes=1 << 40)
    assert len(log.stored(num_steps - 1) or ()) == GROUPS * MEMBERS
    times = time.process_time() - began_cpu, time.perf_counter() - began
    log.close()
    return *times, sum(path.stat().st_size for path in folder.glob("*.samples"))


def growth(folder: Path, num_steps: int = 10_000) -> float:
    """Return the growth of resident memory in MB from step 500 to the last one."""
    log, made = SampleLog(folder, segment_bytes=1 << 22), answers(8)
    before = 0.0
    for step in range(num_steps):
        log.append(*batch(step, 1, made))
        log.flush()
        if step % 100 == 99:
            log.commit(step + 1, oldest_step=step - 200)
        if step == 500:
            before = resident_mb()
    return resident_mb() - before


def resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def main(arguments: Sequence[str]) -> int:
    """Print the figures, and whether they reach their targets."""
    num_tokens = int(arguments[0]) if arguments else 64
    num_samples = int(arguments[1]) if len(arguments) > 1 else 100_000
    with tempfile.TemporaryDirectory(prefix="windlass-bench-", dir=".") as name:
        sample_s, batch_s = appending(Path(name) / "appending", num_tokens)
        print(
            f"{num_tokens} tokens: {1e6 * sample_s:.1f} us of CPU a sample, target {US_TARGET:.0f}; "
            f"a batch of 256 {1e3 * batch_s:.1f} ms with its sync",
            flush=True,
        )
        cpu_s, wall_s, num_bytes = reopening(Path(name) / "reopening", num_tokens, num_samples)
        print(
            f"reopening {num_samples} samples ({num_bytes / 1e6:.0f} MB): {cpu_s:.2f} s of CPU, {wall_s:.2f} s, "
            f"target {REOPEN_S_TARGET:.0f}",
            flush=True,
        )
        grown_mb = growth(Path(name) / "growth")
        print(f"resident memory over 10,000 steps: +{grown_mb:.1f} MB, target {GROWTH_MB_TARGET:.0f}")
    is_reached = 1e6 * sample_s <= US_TARGET and cpu_s <= REOPEN_S_TARGET and grown_mb <= GROWTH_MB_TARGET
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
