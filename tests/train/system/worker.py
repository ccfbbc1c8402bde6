"""One process of a run that comes to harm, started by torchrun: `worker.py FOLDER STEPS HARM`.

HARM is `none`, `term-N` (at step N rank 0 tells torchrun to end) or `kill-N` (at step N rank 1 is killed).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.train.tiny_recipe import RowLog, tiny_recipe
from windlass import train
from windlass.train.parallel.config import ParallelConfig
from windlass.train.resolve import ResolvedRecipe
from windlass.train.run import run_recipe


class Harm(train.TrainerCallback):
    """Does it, and writes down at which step a wish to stop was heard."""

    def __init__(self, harm: str, folder: Path) -> None:
        self.kind, _, step = harm.partition("-")
        self.step, self.folder = int(step or 0), folder

    def on_step_end(self) -> None:
        trainer = self.trainer
        if trainer.step == self.step and self.kind == "term" and trainer.world.is_main:
            os.kill(os.getppid(), signal.SIGTERM)
        if trainer.step == self.step and self.kind == "kill" and trainer.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.note()

    def on_end(self) -> None:
        self.note()  # it may have come between the end of a step and the boundary behind it

    def note(self) -> None:
        trainer = self.trainer
        heard = self.folder / f"heard-{trainer.world.rank}"
        if trainer.should_stop and not heard.exists():
            heard.write_text(str(trainer.step))


def main(folder: Path, steps: int, harm: str) -> int:
    recipe = tiny_recipe(folder, steps=steps, parallel=ParallelConfig(data="fsdp"))
    attach = train.Trainer.__init__

    def with_callbacks(self: train.Trainer[Any], *args: Any, **settings: Any) -> None:
        attach(self, *args, **settings)
        self.add_callback("harm", Harm(harm, folder))
        self.add_callback("rows", RowLog(str(folder / "rows")))

    train.Trainer.__init__ = with_callbacks  # type: ignore[method-assign]
    code = run_recipe(ResolvedRecipe(recipe=recipe, source="worker.py", origins={}))
    (folder / f"code-{os.environ['RANK']}").write_text(str(code))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
