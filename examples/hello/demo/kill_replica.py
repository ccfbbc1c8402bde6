"""Kill replica 1 of a run on purpose: wait until it has saved some checkpoints, then send SIGKILL to its processes."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from windlass import Run
from windlass.core.errors import NotFoundError
from windlass.core.process import ProcessId, descendants, is_alive

TASK, RANK = "train", 1


def new_run(unlike, give_up_at):
    """The newest run, as soon as it is another one than `unlike`."""
    while time.monotonic() < give_up_at:
        try:
            run = Run.find("last")
        except NotFoundError:
            run = None
        if run is not None and run.id != unlike:
            return run
        time.sleep(0.05)
    sys.exit("no new run appeared")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unlike", type=Path, required=True, help="`windlass show --json` of the run before")
    parser.add_argument("--checkpoints", type=int, default=1)
    args = parser.parse_args()
    give_up_at = time.monotonic() + 300

    run = new_run(json.loads(args.unlike.read_text())["run"], give_up_at)
    saved = run.folder.checkpoints(TASK)
    while len(list(saved.glob("step-*"))) < args.checkpoints:
        if run.state.is_terminal or time.monotonic() > give_up_at:
            sys.exit(f"{run.id} ended before it could be killed")
        time.sleep(0.05)
    process = ProcessId.parse(run.facts.tasks[TASK].attempts[1].replicas[RANK].process)
    if not is_alive(process):
        sys.exit(f"replica {RANK} of {run.id} had ended before it could be killed")
    for pid in [process.pid, *descendants(process.pid)]:
        os.kill(pid, signal.SIGKILL)
    print(f"** replica {RANK}: process {process.pid} killed with SIGKILL", flush=True)


if __name__ == "__main__":
    main()
