"""`windlass.pyz mpi`: runs the command on the first replica, with a host file for mpirun and deepspeed.

The other replicas hold their nodes until the first has ended; the command starts processes on them.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from windlass.record.causes import Cause
from windlass.supervise.launchers.wrapped import WrappedCommand, become
from windlass.supervise.replica.exit_report import log_line, report_end
from windlass.supervise.replica.scratch import host_addresses

__all__ = ["host_lines", "mpi_main"]


def mpi_main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command on rank 0; on other ranks, wait until the supervisor ends this process."""
    wrapped = WrappedCommand.parse(arguments)
    if environ["WINDLASS_RANK"] != "0":
        log_line(f"replica {environ['WINDLASS_RANK']} serves replica 0")
        return _wait_to_be_ended()
    hosts = environ.get("WINDLASS_HOSTS", "")
    if not hosts:
        return report_end(environ, Cause.NEVER_READY, "the host list of this attempt was lost with its leader")
    path = Path(environ["WINDLASS_HOSTFILE"])
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(host_lines(hosts, int(wrapped.number("slots", 1))))
    return become(wrapped.command, wrapped.driver.apply(environ))


def host_lines(hosts: str, slots: int) -> str:
    """Return the host file: one line `<address> slots=<n>` per host; replicas with the same address share a line.

    Source: deepspeed, launcher/runner.py, fetch_hostfile; Open MPI, mpirun(1), `--hostfile`.
    """
    counts: dict[str, int] = {}
    for _, address in host_addresses(hosts):
        counts[address] = counts.get(address, 0) + slots
    return "".join(f"{address} slots={count}\n" for address, count in counts.items())


def _wait_to_be_ended() -> int:
    """Wait forever: a worker has nothing to save and ends with its head."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
