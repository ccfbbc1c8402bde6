"""Start of a declared sweep, with its head in this process, in a separate process, or in a one-core job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from windlass.core.errors import PreconditionError, UsageError
from windlass.launcher.api import launch
from windlass.launcher.prepare import Options, prepare
from windlass.launcher.run import Run
from windlass.runs.home import Home
from windlass.spec import Checkpoints, Context, Experiment, Limit, Retry, Stall, Task
from windlass.tune.controller.restore import Extension
from windlass.tune.controller.settings import Resume
from windlass.tune.executors.runs.trial_template import read_trial_template
from windlass.tune.sweep.finding import has_head
from windlass.tune.sweep.handle import SweepHandle
from windlass.tune.sweep.head import run_head
from windlass.tune.sweep.pending_requests import write_pending_requests
from windlass.tune.sweep.preparing import PreparedSweep, prepare_sweep
from windlass.tune.sweep.record import read_record

__all__ = ["HEAD_LOG", "launch_sweep", "start_head"]

Log = Callable[[str], None]
HEAD_LOG = "head.log"


def launch_sweep(
    path: str | Path | PreparedSweep,
    overrides: Sequence[str] = (),
    options: Options | None = None,
    *,
    name: str = "",
    detach: bool = False,
    in_process: bool = False,
    log: Log = lambda line: None,
) -> SweepHandle:
    """Start the sweep in an experiment file. Blocks until it is over, unless it is detached.

    Args:
        path: the file, or the result of `prepare_sweep`.
        detach: start a detached head, as a job at the trials' site or as a process, and return.
        in_process: run trials of a `trainable` one at a time in this process, for debuggers.
        log: called with progress lines.

    Raises:
        WindlassError: the file is invalid, and nothing was started; or an error concerns the whole sweep.
    """
    if detach and in_process:
        raise UsageError(
            "a detached sweep cannot run its trials in this process",
            hint="leave out detach, or in_process",
            code="sweep-unsupported",
        )
    made = path if isinstance(path, PreparedSweep) else prepare_sweep(Path(path), overrides, options, name=name)
    handle = SweepHandle(made.create())
    if detach:
        start_head(handle.folder, made.prepared.home, log=log)
    else:
        run_head(handle.folder, in_process=in_process, log=log)
    return handle


def start_head(
    folder: Path,
    home: Home,
    *,
    log: Log = lambda line: None,
    resume: Resume | None = None,
    extend: Extension | None = None,
) -> str:
    """Start a detached head for a sweep, and return where it runs.

    If trials run at a site that this machine belongs to, the head is a job of that site, chained past its walltime and
    restarted when its node is lost. Otherwise it is a process on this machine, because the end of a job here would also
    end the runs that it launched.

    Raises:
        PreconditionError: the sweep already has a head.
    """
    if has_head(folder):
        raise PreconditionError(
            f"sweep {folder.name} already has a head", hint=f"windlass sweep show {folder.name}", code="in-use"
        )
    write_pending_requests(folder, resume, extend)
    profile = read_trial_template(folder).plan.site.profile
    if profile is not None and not profile.ssh:
        return f"run {_head_run(folder, home, log).id}"
    return f"process {_head_process(folder)}"


def _head_run(folder: Path, home: Home, log: Log) -> Run:
    record, plan = read_record(folder), read_trial_template(folder).plan
    task = Task(
        run=(sys.executable, "-m", "windlass.tune.sweep", str(folder)),
        cpus=1,
        stall=Stall(enabled=False),
        checkpoints=Checkpoints(),
        grace=20.0,
    )
    account = plan.experiment.get("context")
    context = Context(account=str(account.get("account", "")) if isinstance(account, dict) else "", group=folder.name)
    experiment = Experiment(
        name=_head_name(folder.name),
        why=f"the head of sweep {folder.name}",
        tasks={"head": task},
        context=context,
        limit=Limit(),
        retry=Retry(interrupted=1000),
    )
    prepared = prepare(experiment, folder, Options(on=record.place, allow_dirty=True), home=home)
    return launch(prepared, log=log)


def _head_name(sweep: str) -> str:
    return f"{sweep[:57].rstrip('-._')}-head"


def _head_process(folder: Path) -> int:
    """Start the head in a new session, with its output going to `head.log` in the sweep's folder."""
    with (folder / HEAD_LOG).open("ab") as words:
        found = subprocess.Popen(
            [sys.executable, "-m", "windlass.tune.sweep", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    return found.pid
