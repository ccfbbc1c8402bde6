"""`windlass stop`: stop a run."""

from __future__ import annotations

import click

from windlass.cli.screen import tell
from windlass.cli.times import as_duration
from windlass.cli.verb import run_argument, verb
from windlass.core.clock import SystemClock
from windlass.core.errors import UsageError, WaitTimeoutError
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, find

__all__ = ["stop_command"]

_POLL_S = 0.2


@verb("windlass stop last", "windlass stop hello-7hq2mx4p --checkpoint", "windlass stop last --wait 2m", name="stop")
@run_argument()
@click.option(
    "--checkpoint", is_flag=True, help="Let the code save first (report.should_stop); waits up to 10 minutes."
)
@click.option("--now", is_flag=True, help="Kill all its processes at once.")
@click.option("--wait", "wait_s", callback=as_duration, metavar="TIME", help="Wait until it has stopped, at most TIME.")
@click.option("--reason", default="stopped by the user", help="Reason, recorded with the run.")
def stop_command(run: str, checkpoint: bool, now: bool, wait_s: float | None, reason: str) -> None:
    """Stop a run; `windlass resume` continues it.

    Its processes get SIGTERM, and SIGKILL after their grace time. Returns once the request is recorded.
    """
    if checkpoint and now:
        raise UsageError("`--checkpoint` and `--now` are mutually exclusive", hint="give one of them", code="usage")
    from windlass.launcher import control  # lazy: after the cheap checks

    home = Home.default()
    folder = find(home, run)
    state = folder.facts().state
    if state.is_terminal:
        tell(f"{folder.id} has already ended: {state}")
        return
    if now:
        control.kill(folder, home)
        tell(f"killed {folder.id}: {folder.facts().state}")
        return
    tasks = control.stop(folder, home, reason=reason, is_checkpoint_wanted=checkpoint)
    tell(f"asked {folder.id} to {'save and stop' if checkpoint else 'stop'} ({', '.join(tasks) or 'no active task'})")
    if wait_s is not None:
        _wait(folder, home, wait_s)


def _wait(run: RunFolder, home: Home, wait_s: float) -> None:
    from windlass.cli.finding import reconciled  # lazy: only with --wait

    clock = SystemClock()
    deadline = clock.monotonic() + wait_s
    while not run.facts().state.is_terminal:
        if clock.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"{run.id} has not stopped yet",
                hint=f"the request is recorded; to kill it: windlass stop {run.id} --now",
                code="timed-out",
            )
        reconciled(run, home)
        clock.sleep(_POLL_S)
    tell(f"{run.id} {run.facts().state}")
