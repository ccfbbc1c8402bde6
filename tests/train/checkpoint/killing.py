"""Processes that save again and again and are killed at any moment; what they leave is looked at each time.

python -m tests.train.checkpoint.killing FOLDER NUM_PROCESSES NUM_KILLS SEED
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from windlass.record.manifest import differences, read_manifest
from windlass.train.checkpoint.source import load_newest
from windlass.train.checkpoint.store import open_store
from windlass.train.parallel.world import World

OTHER = ".saving-other-00000000-step-3"


def state(step: int) -> dict[str, Any]:
    """What a checkpoint of a step must hold."""
    return {"model": {f"w{place}": torch.full((1 << 15,), float(step * 10 + place)) for place in range(4)}}


def work(folder: Path, rendezvous: Path, first: int, rank: int, size: int, told: int) -> None:
    """Save from `first` on, for ever; tells of each checkpoint that was acknowledged."""
    if size > 1:
        meeting = dist.FileStore(str(rendezvous), size)
        dist.init_process_group("gloo", store=meeting, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    store = open_store(str(folder), World(rank=rank, size=size, device=torch.device("cpu")))
    for step in range(first, first + 100_000):
        for again in range(1 + (step % 3 == 0)):  # some are replaced by themselves
            pending = store.save(
                state(step),
                {"again": again},
                step=step,
                tokens=step,
                config={},
                is_permanent=True,
                is_async=step % 2 == 0,
            )
            if rank == 0:
                os.write(told, b"%d begun\n" % step)
            pending.wait()
            if rank == 0:
                os.write(told, b"%d saved\n" % step)
        for item in store.committed()[:-2]:
            store.drop(item.path)


def look(folder: Path, saved: int) -> int:
    """The newest step, once everything there was found as it must be."""
    hidden = [name for name in os.listdir(folder) if name.startswith(".")]
    assert len(hidden) <= 4, hidden
    store = open_store(str(folder), World(device=torch.device("cpu")))
    found = store.committed()
    assert found or saved < 0, "nothing is left"
    for item in found:
        assert differences(Path(item.path), read_manifest(Path(item.path))) == [], item
    if not found:
        return 0
    filled = state(-1)
    loaded = load_newest(store, [item.path for item in reversed(found)], filled)
    assert loaded.notes == ()
    step = found[-1].step
    assert step >= saved, (step, saved)
    for name, tensor in state(step)["model"].items():
        assert torch.equal(filled["model"][name], tensor), (step, name)
    return step


def main() -> None:
    folder, size, num_kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(seed)
    (folder / OTHER).mkdir(parents=True)
    saved = -1
    for number in range(num_kills):
        first = look(folder, saved) + 1
        saved = max(saved, cycle(folder, folder.with_name(f"rendezvous-{number}"), first, size, chance))
        sys.stdout.write(f"{number}: from {first}, saved {saved}\n")
        sys.stdout.flush()
    step = look(folder, saved)
    store = open_store(str(folder), World(device=torch.device("cpu")))
    store.save(state(step + 1), {}, step=step + 1, tokens=0, config={}, is_permanent=True, is_async=False)
    assert [name for name in os.listdir(folder) if name.startswith(".")] == [OTHER]


def cycle(folder: Path, rendezvous: Path, first: int, size: int, chance: random.Random) -> int:
    """Start the processes, kill them in the middle of something; returns the last step that was acknowledged."""
    reading, writing = os.pipe()
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            try:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive this process
                work(folder, rendezvous, first, rank, size, writing)
            except BaseException:  # noqa: BLE001  a child must never go on as its parent
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)
        pids.append(pid)
    os.close(writing)
    told = os.read(reading, 1 << 16)
    time.sleep(chance.random() * 0.12)
    for pid in chance.sample(pids, len(pids)):
        os.kill(pid, signal.SIGKILL)
        time.sleep(chance.choice([0, 0, 0.02]))
    for pid in pids:
        os.waitpid(pid, 0)
    while part := os.read(reading, 1 << 16):
        told += part
    os.close(reading)
    return max((int(line.split()[0]) for line in told.splitlines() if line.endswith(b"saved")), default=-1)


if __name__ == "__main__":
    main()
