"""Training run from a resolved recipe to an exit code; `windlass train` calls it.

Exit codes: 0 finished; 75 stopped with its state saved, to be resumed; else an error.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from windlass import report
from windlass.core.errors import WindlassError
from windlass.train.errors import TrainingError

if TYPE_CHECKING:
    from windlass.train.parallel.world import World
    from windlass.train.resolve import ResolvedRecipe
    from windlass.train.trainer import Outcome

__all__ = ["EXIT_STOPPED", "run_recipe"]

EXIT_STOPPED = 75
"""Stopped before its end with its state saved (EX_TEMPFAIL of sysexits.h)."""


def run_recipe(resolved: ResolvedRecipe) -> int:
    """Train within torchrun's process group, if there is one, and return the exit code."""
    from windlass.train.parallel.world import World  # lazy: torch takes seconds, and --help does not need it

    world = None
    try:
        with _leaving_at_once():
            world = World.begin(resolved.recipe.device)
            _tell_suspects(resolved, world)
            from windlass.train.build import build_trainer  # lazy: as above

            trainer = build_trainer(resolved, world)
        outcome = trainer.fit()
    except _StoppedEarly:
        sys.stderr.write("stopped before the first step; run the same command to resume\n")
        if world is not None:
            world.abandon()
        report.finish(EXIT_STOPPED)
        return EXIT_STOPPED
    except Exception as error:
        if world is None:
            raise
        code = _tell_error(error, world)
        world.abandon()
        return code
    code = _tell_outcome(outcome, world)
    world.end()
    return code


def _tell_suspects(resolved: ResolvedRecipe, world: World) -> None:
    from windlass.train.plan.warnings import suspects_of  # lazy: after the process group, which may take long

    for warning in suspects_of(resolved.recipe) if world.is_main else ():
        sys.stderr.write(f"warning: {warning}\n")


class _StoppedEarly(BaseException):
    """Exception for a stop signal that arrives before there is anything to save."""


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Raise on SIGTERM and SIGUSR1 until the trainer handles them. Main thread only."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise _StoppedEarly

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _tell_outcome(outcome: Outcome, world: World) -> int:
    code = 0 if outcome.is_finished else EXIT_STOPPED
    where = f"; checkpoint: {outcome.checkpoint}" if outcome.checkpoint else ""
    if not code and world.is_main:
        sys.stderr.write(f"finished after step {outcome.step}{where}\n")
    if code:
        if world.is_main:
            sys.stderr.write(
                f"stopped after step {outcome.step} ({outcome.reason}){where}; run the same command to resume\n"
            )
        if world.local_rank == 0:
            report.finish(code)  # torchrun turns every exit code into 1; windlass reads this one
    return code


def _tell_error(error: Exception, world: World) -> int:
    """Print an error once for all processes and return its exit code."""
    error = _named(error)
    if _is_first(world):
        sys.stderr.write(error.render() + "\n" if isinstance(error, WindlassError) else traceback.format_exc())
        sys.stderr.flush()
    return error.exit_code if isinstance(error, WindlassError) else 1


def _named(error: Exception) -> Exception:
    """Return the error itself or, if memory ran out, an error with a hint."""
    import torch

    if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator: can't allocate" not in str(error):
        return error
    return TrainingError(
        f"out of memory: {str(error).splitlines()[0]}",
        hint="lower `data.microbatch_tokens`; `--plan` shows the memory of each part",
        code="out-of-memory",
    )


def _is_first(world: World) -> bool:
    """Return whether this process is the first to fail and reports the error; the others only lost a peer."""
    if world.size == 1:
        return True
    with contextlib.suppress(Exception):  # the store's process may have exited: then report the error
        from torch.distributed.distributed_c10d import _get_default_store

        return int(_get_default_store().add("windlass/errors", 1)) == 1
    return True
