"""`windlass retry` and `windlass resume`: continue a run from its last committed checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from windlass.cli.following import Following, follow_to_verdict
from windlass.cli.screen import emit, emit_json, tell
from windlass.cli.verb import detach_option, json_option, run_argument, verb
from windlass.launcher import control
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, find

__all__ = ["resume_command", "retry_command"]


@verb("windlass retry last", "windlass retry hello-7hq2mx4p -d", name="retry")
@run_argument()
@detach_option
@json_option
def retry_command(run: str, detach: bool, is_json: bool) -> int:
    """Continue a failed run from its last committed checkpoint, and reset its retry budgets.

    Works on stopped runs too. Finished tasks do not run again. The code is the run's own: for changed code use `launch`.
    """
    return _go_on(run, control.retry, "retries", is_detached=detach, is_json=is_json)


@verb("windlass resume last", "windlass resume hello-7hq2mx4p -d", name="resume")
@run_argument()
@detach_option
@json_option
def resume_command(run: str, detach: bool, is_json: bool) -> int:
    """Continue a stopped run from its last committed checkpoint; its retry budgets are kept."""
    return _go_on(run, control.resume, "resumes", is_detached=detach, is_json=is_json)


def _go_on(
    ref: str, action: Callable[[RunFolder, Home], list[str]], word: str, *, is_detached: bool, is_json: bool
) -> int:
    home = Home.default()
    run = find(home, ref)
    following = Following(run, home, logs_to_stderr=is_json, skips_past=True)
    tasks = action(run, home)
    tell(f"{run.id} {word} {', '.join(tasks)}")
    code = 0 if is_detached else follow_to_verdict(following)
    if is_json:
        from windlass.cli.render.run import run_data  # lazy: only with --json

        emit_json("windlass.launch/1", {"is_new": False, **run_data(run, run.facts())})
    elif is_detached:
        emit(run.id)
    return code
