"""User code of the system tests: a small training whose weights and random numbers are saved, all in plain Python.

    python trainer.py NUM_STEPS PAUSE_S [LATER_PAUSE_S [HOLD_AT]]

LATER_PAUSE_S is between steps from the second attempt on, where nothing is done to the run any more. The first attempt stops
making steps after step HOLD_AT, so that a test ends it there on a machine of any speed.

Every rank computes the same weights (as data-parallel ranks do); rank 0 saves. What is left at the end in
`${out}/digest-<rank>` depends on the number of steps alone, if resuming is exact.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["EVERY", "Training", "main", "note_start"]

EVERY = 4
"""Steps between two checkpoints."""


class Training:
    """Weights and the generator that disturbs them."""

    def __init__(self) -> None:
        self.step = 0
        self.weights = [float(number) for number in range(8)]
        self.random = random.Random(20)

    def advance(self) -> float:
        """One step of noisy gradient descent; returns the loss."""
        self.weights = [weight * 0.97 + self.random.gauss(0.0, 0.01) for weight in self.weights]
        self.step += 1
        return sum(weight * weight for weight in self.weights)

    def digest(self) -> str:
        """What every bit of the state adds up to."""
        return hashlib.sha256(repr(self.to_data()).encode()).hexdigest()

    def to_data(self) -> dict[str, Any]:
        """Everything that the next step depends on; floats keep every bit in JSON."""
        version, internal, gauss = self.random.getstate()
        return {"step": self.step, "weights": self.weights, "random": [version, list(internal), gauss]}

    def load(self, data: dict[str, Any]) -> None:
        """Take up a saved state."""
        version, internal, gauss = data["random"]
        self.step, self.weights = data["step"], data["weights"]
        self.random.setstate((version, tuple(internal), gauss))


def note_start(path: str, attempt: int, rank: int) -> None:
    """Leave a trace that user code began; one write, so that concurrent ones do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, f"{attempt} {rank} {os.getpid()}\n".encode())
    os.close(descriptor)


def main(num_steps: int, pause_s: float, later_pause_s: float, hold_at: int | None = None) -> None:
    """Train to the end from wherever the last checkpoint is."""
    from windlass import report

    place = report.place()
    note_start(os.environ["STARTS"], place.attempt, place.rank)
    training = Training()
    latest = report.latest_checkpoint()
    if latest is not None:
        training.load(json.loads((latest / "state.json").read_text()))
    while training.step < num_steps:
        loss = training.advance()
        report.metrics({"loss": loss}, step=training.step)
        print(f"step {training.step} loss {loss!r}", flush=True)  # noqa: T201 - as user code does
        if place.rank == 0 and training.step % EVERY == 0:
            with report.checkpoint_dir(step=training.step) as folder:
                (folder / "state.json").write_text(json.dumps(training.to_data()))
        if place.attempt == 1 and training.step == hold_at:
            threading.Event().wait()
        time.sleep(pause_s if place.attempt == 1 else later_pause_s)
    Path(place.out / f"digest-{place.rank}").write_text(training.digest())


if __name__ == "__main__":
    steps, pause, *rest = sys.argv[1:]
    main(int(steps), float(pause), float(rest[0] if rest else pause), int(rest[1]) if len(rest) > 1 else None)
