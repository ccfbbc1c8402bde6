"""What checkpoints cost the training steps: `python benches/bench_train_checkpoints.py [--device cuda] [--width 512]`.

One process, one model. Every round has a stretch of steps for each way to save, in turn: none, ours in the background, ours at
once, torch's `dcp.async_save`, torch's `dcp.save`, and none again. A stretch begins with its save and ends when that is
committed, as a trainer's next save would wait for it. A share is taken within its round, against the two stretches without
saves; the median over rounds counts, and "none again" shows what this machine's noise makes of nothing.

"step %" is wall time. "no queue %" is wall time without the time that the training thread waited for a core, which other
people's work on the machine makes; what our own thread takes away from it by standing in that queue is lost there, but
memory, the interpreter's lock and waiting for files are not. "main CPU %" and "all CPU %" are CPU time of the training thread
and of the process, "stall ms" how long the call to save takes. Also: seconds to load with and without checksums.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from windlass.train.checkpoint.store import FolderStore, open_store
from windlass.train.parallel.world import World

BUDGET = 0.05
NONE, AGAIN, OURS = "no saves", "none again", "windlass async"


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds of the training thread and of the process so far, or between two readings."""

    wall: float
    queue: float
    main: float
    process: float

    @classmethod
    def now(cls) -> Clock:
        return cls(time.perf_counter(), _queued_s(), time.thread_time(), time.process_time())

    def since(self, begin: Clock) -> Clock:
        return Clock(*(getattr(self, name) - getattr(begin, name) for name in self.__slots__))

    @property
    def own(self) -> float:
        """Wall time without waiting for a core."""
        return self.wall - self.queue


def _queued_s() -> float:
    """How long this thread has waited for a core; source: proc(5), schedstat. 0 where the kernel does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


@dataclass
class Times:
    """One variant's measurements, one of each for every round."""

    stretches: list[Clock] = field(default_factory=list)
    stall: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)


class Job:
    """A model that trains, and its state by name."""

    def __init__(self, width: int, batch: int, device: str) -> None:
        torch.manual_seed(0)
        layers = [
            layer for _ in range(6) for layer in (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        ]
        self.device = torch.device(device)
        self.model = nn.Sequential(*layers).to(self.device)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(batch, width, device=self.device)
        self.step()

    def step(self) -> None:
        self.model(self.x).square().mean().backward()
        self.optim.step()
        self.optim.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state(self) -> dict[str, Any]:
        names: dict[torch.Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        optim = {
            f"{names[weight]}.{key}": value
            for weight, entry in self.optim.state.items()
            for key, value in entry.items()
        }
        return {"model": dict(self.model.state_dict()), "optim": optim}

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for part in self.state().values() for t in part.values())


Save = Callable[[int], Callable[[], object]]


def measure(job: Job, save: Save | None, num_steps: int, number: int, times: Times) -> None:
    """A save and the steps behind it, until that is committed."""
    begin = Clock.now()
    pending = save(number) if save is not None else None
    if pending is not None:
        times.stall.append(time.perf_counter() - begin.wall)
    for _ in range(num_steps):
        job.step()
    if pending is not None:
        pending()
        times.commit.append(time.perf_counter() - begin.wall)
    times.stretches.append(Clock.now().since(begin))


def savers(job: Job, folder: Path) -> dict[str, Save | None]:
    store = open_store(str(folder / "ours"), World(device=job.device))

    def ours(is_async: bool) -> Save:
        def save(number: int) -> Callable[[], object]:
            pending = store.save(
                job.state(), {}, step=number, tokens=0, config={}, is_permanent=True, is_async=is_async
            )
            return pending.wait

        return save

    def torch_async(number: int) -> Callable[[], object]:
        shutil.rmtree(folder / f"async-{number}", ignore_errors=True)
        future: Any = dcp.async_save(job.state(), checkpoint_id=str(folder / f"async-{number}"))
        result: Callable[[], object] = future.result
        return result

    def torch_now(number: int) -> Callable[[], object]:
        shutil.rmtree(folder / f"now-{number}", ignore_errors=True)
        dcp.save(job.state(), checkpoint_id=str(folder / f"now-{number}"))
        return lambda: None

    return {
        NONE: None,
        OURS: ours(True),
        "dcp.async_save": torch_async,
        "windlass": ours(False),
        "dcp.save": torch_now,
        AGAIN: None,
    }


def loading(job: Job, folder: Path) -> list[str]:
    lines = []
    for verifies in (True, False):
        store = open_store(str(folder / "ours"), World(device=job.device), verifies=verifies)
        lines.append(f"load, checksums {'on' if verifies else 'off'}: {_load_s(store, job):.2f} s")
    return lines


def _load_s(store: FolderStore, job: Job) -> float:
    path = store.committed()[-1].path
    found = []
    for _ in range(3):
        began = time.perf_counter()
        store.load(path, job.state())
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> int:
    """Print the table; 1 when our background saves cost the training thread more than the budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20, help="of a stretch: there is a save every so many steps")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ours", action="store_true", help="only no saves, and ours in the background")
    parser.add_argument("--folder", type=Path, default=None)
    told = parser.parse_args()
    if told.device == "cpu":
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=told.folder) as name:
        dist.init_process_group(
            "gloo" if told.device == "cpu" else "cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1
        )
        job = Job(told.width, told.batch, told.device)
        variants = savers(job, Path(name))
        if told.ours:
            variants = {way: save for way, save in variants.items() if way in (NONE, OURS, AGAIN)}
        times = {variant: Times() for variant in variants}
        for number in range(told.rounds + 1):
            for variant, save in variants.items():
                measure(job, save, told.steps, number, Times() if number == 0 else times[variant])
        print(f"state {job.num_bytes / 1e6:.0f} MB, a save every {told.steps} steps, {told.rounds} rounds")
        cost = _table(times, told.steps)
        print("\n".join(loading(job, Path(name))))
        dist.destroy_process_group()
    return int(cost > BUDGET)


def _table(times: dict[str, Times], num_steps: int) -> float:
    """Print it; returns what our background saves cost in wall time that is no queue."""
    bases = list(zip(times[NONE].stretches, times[AGAIN].stretches, strict=True))
    print(f"step {1e3 * statistics.median(base.wall for base, _ in bases) / num_steps:.1f} ms, medians (quartiles)")
    print(
        f"{'':<16}{'step %':>24}{'no queue %':>24}{'main CPU %':>12}{'all CPU %':>11}{'stall ms':>10}{'s to commit':>13}"
    )
    cost = 0.0
    for variant, found in times.items():
        if variant == NONE:
            continue
        wall, own, main, process = (_shares(found, bases, what, variant) for what in ("wall", "own", "main", "process"))
        cost = own[1] if variant == OURS else cost
        stall = 1e3 * statistics.median(found.stall) if found.stall else 0.0
        commit = statistics.median(found.commit) if found.commit else 0.0
        spread = "".join(f"{f'{mid:.1%} ({low:.1%} {high:.1%})':>24}" for low, mid, high in (wall, own))
        print(f"{variant:<16}{spread}{main[1]:>12.1%}{process[1]:>11.1%}{stall:>10.1f}{commit:>13.2f}")
    return cost


def _shares(found: Times, bases: list[tuple[Clock, Clock]], what: str, variant: str) -> list[float]:
    """Quartiles of a variant's share beyond the steps alone, round by round."""
    shares = []
    for own, pair in zip(found.stretches, bases, strict=True):
        first, second = (float(getattr(each, what)) for each in pair)
        base = first if variant == AGAIN else (first + second) / 2
        shares.append(float(getattr(own, what)) / base - 1)
    return statistics.quantiles(shares, n=4)


if __name__ == "__main__":
    sys.exit(main())
