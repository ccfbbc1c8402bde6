"""Peak memory of the device, retries by its allocator, and resident memory of the process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Memory", "resident_bytes"]

GIB = 1024.0**3


class Memory(TrainerCallback):
    """Callback that records the maximum resident memory over all processes.

    On a GPU it also records the peak, the reserved memory and the retries.

    The peak covers the last step only. A retry means that the allocator had to return memory to the driver: it is
    slow, and the next step may fail.
    """

    def on_start(self) -> None:
        """Reset the peak statistics."""
        if self.trainer.world.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.trainer.world.device)

    def on_step_end(self) -> None:
        """Record the allocator's statistics, without synchronizing with the device."""
        self.trainer.record("memory/resident_gib", resident_bytes() / GIB, "max")
        device = self.trainer.world.device
        if device.type == "cuda":
            facts = torch.cuda.memory_stats(device)
            self.trainer.record("memory/peak_gib", facts.get("allocated_bytes.all.peak", 0) / GIB, "max")
            self.trainer.record("memory/reserved_gib", facts.get("reserved_bytes.all.peak", 0) / GIB, "max")
            self.trainer.record("memory/retries", float(facts.get("num_alloc_retries", 0)), "max")
            torch.cuda.reset_peak_memory_stats(device)


def resident_bytes() -> int:
    """Return the resident memory of this process or, without /proc, its maximum so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()
