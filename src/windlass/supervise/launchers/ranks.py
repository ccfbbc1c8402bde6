"""`windlass.pyz ranks`: runs one process per GPU, like `srun --ntasks-per-node`; the first failure ends all of them.

The rank of each process is in the variables of `torch.distributed` and of Slurm. All processes print to the replica's
pipe.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from windlass.record.causes import Cause
from windlass.supervise.launchers.wrapped import WrappedCommand
from windlass.supervise.replica.exit_report import log_line, report_end
from windlass.supervise.replica.termination import targets_of

__all__ = ["rank_variables", "ranks_main"]

_AFTER_FAILURE_S = 10.0
"""Time after a failure for the other processes to save and print, before they are killed."""

_TICK_S = 0.2


def ranks_main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the processes of one replica; return 0 if all succeeded, otherwise the first failure's code."""
    wrapped = WrappedCommand.parse(arguments)
    num_here = int(wrapped.number("procs", 1))
    base = wrapped.driver.apply(environ)
    group = _Group(is_shell=wrapped.command[:2] == ("/bin/sh", "-c"))
    signal.signal(signal.SIGTERM, lambda *_: group.terminate())
    for local in range(num_here):
        variables = {**base, **rank_variables(environ, local, num_here)}
        try:
            group.start(wrapped.command, variables)
        except OSError as error:
            group.end(0.0)
            message = f"`{wrapped.command[0]}` cannot be executed: {error.strerror}"
            return report_end(environ, Cause.START_FAILED, message, code=127)
    local, code = group.wait()
    if code:
        rank = rank_variables(environ, local, num_here)["RANK"]
        log_line(f"rank {rank} (number {local} of this node) exited with code {code}; stopping the others")
        group.end(_AFTER_FAILURE_S)
    return code


def rank_variables(environ: Mapping[str, str], local: int, num_here: int) -> dict[str, str]:
    """Return the rank variables of one process; `SLURM_` variables as in srun(1)."""
    node, num_nodes = int(environ["WINDLASS_RANK"]), int(environ["WINDLASS_NUM_REPLICAS"])
    rank, size = node * num_here + local, num_nodes * num_here
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": local,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": num_here,
        "NODE_RANK": node,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": local,
        "SLURM_NTASKS": size,
        "SLURM_NPROCS": size,
        "SLURM_NTASKS_PER_NODE": num_here,
        "SLURM_NNODES": num_nodes,
        "SLURM_NODEID": node,
    }
    return {name: str(number) for name, number in numbers.items()}


class _Group:
    """Processes of one replica."""

    def __init__(self, *, is_shell: bool) -> None:
        self._is_shell = is_shell
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the next process; raises OSError."""
        program = command[0]
        self._processes.append(subprocess.Popen([program, *command[1:]], env=dict(environ)))

    def wait(self) -> tuple[int, int]:
        """Block until all have succeeded or one has failed.

        Return its local rank and exit code (128 + n for signal n).
        """
        while True:
            codes = [process.poll() for process in self._processes]
            for local, code in enumerate(codes):
                if code:
                    return local, code if code > 0 else 128 - code
            if all(code == 0 for code in codes):
                return 0, 0
            _wait_for_a_child()

    def terminate(self) -> None:
        """Send SIGTERM to the processes."""
        for process in self._processes:
            if process.poll() is None:
                for pid in targets_of(process.pid, is_shell=self._is_shell):
                    _signal(pid, signal.SIGTERM)

    def end(self, patience_s: float) -> None:
        """End all live processes; blocks for at most `patience_s` plus the time that killing takes."""
        self.terminate()
        deadline = time.monotonic() + patience_s
        while any(process.poll() is None for process in self._processes) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _wait_for_a_child() -> None:
    """Wait until a child has ended, without reaping it."""
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
