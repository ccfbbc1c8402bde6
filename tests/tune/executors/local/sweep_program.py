"""A sweep of counters on the local executor, as the head of which this program can be killed and started again.

python -m tests.tune.executors.local.sweep_program FOLDER NUM_TRIALS NUM_STEPS OPTIONS_JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.testing.sample_trainables import Counter
from windlass.tune.controller.controller import Controller
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.executors.local import Local
from windlass.tune.executors.protocol import Work
from windlass.tune.schedulers.fifo import FIFO
from windlass.tune.search.basic_variant import BasicVariantGenerator
from windlass.tune.search.protocol import Objectives
from windlass.tune.space.primitives import randint


def controller(
    folder: Path,
    *,
    num_trials: int,
    num_steps: int,
    options: dict[str, Any],
    on_turn: Callable[[Controller], None] | None = None,
) -> Controller:
    """A new sweep, or the next head of the one in the folder."""
    work = Work(
        trainable=Counter,
        name="kills",
        folder=str(folder),
        storage=str(folder / "checkpoints"),
        checkpoint_every=2,
        num_slots=2,
        options=options,
    )
    make = Controller.restore if (folder / "journal").exists() else Controller
    return make(
        settings=SweepSettings(
            name="kills",
            objectives=Objectives(metrics=("value",), is_max=(True,)),
            num_samples=num_trials,
            max_interruptions=1000,
        ),
        space={"num": num_steps, "by": randint(1, 100), "seconds": 0.003},
        searcher=BasicVariantGenerator(),
        scheduler=FIFO(),
        executor=Local(),
        work=work,
        folder=folder,
        on_turn=on_turn,
    )


def main() -> None:
    """The program."""
    folder, num_trials, num_steps, options = sys.argv[1:]
    ending = controller(
        Path(folder), num_trials=int(num_trials), num_steps=int(num_steps), options=json.loads(options)
    ).run()
    sys.exit(0 if ending.is_over else 1)


if __name__ == "__main__":
    main()
