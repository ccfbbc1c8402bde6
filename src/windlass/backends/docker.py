"""The docker backend, for podman too: supervisors on this machine, and the user's processes in containers beside them.

The containers are made in the job, by `windlass.pyz contain` (windlass.supervise.container.run). What this adds to a tree
of processes: the engine must answer before a job is made, and containers that nobody watches any more are removed.
"""

from __future__ import annotations

from windlass.backends.process_tree import ProcessTree
from windlass.backends.protocol import Rendered, Submission
from windlass.core.errors import UnreachableError
from windlass.supervise.container.engine import Engine, engine_variables
from windlass.supervise.job import JobDocument

__all__ = ["DockerBackend"]

_NUM_LOOKS = 3


class DockerBackend(ProcessTree):
    """Runs jobs in containers of this machine.

    Args:
        program: `docker` or `podman`.
    """

    name = "docker"

    def __init__(self, program: str = "docker") -> None:
        self._program = program

    def submit(self, rendered: Rendered) -> Submission:
        """As on this machine without containers.

        Raises:
            UnreachableError: the engine is not installed, or does not answer; nothing was made.
        """
        check_engine(self._program)
        return super().submit(rendered)

    def sweep(self, job: Submission) -> int:
        """End processes, and remove the containers and the network, of a job that has no supervisor any more."""
        num_ended = super().sweep(job)
        path = job.folder / "job.json"
        if not path.exists():
            return num_ended
        document = JobDocument.read(path)
        engine = Engine(document.container.engine, document.container.variables)
        for rank in range(document.num_replicas):
            num_ended += engine.sweep(document.token, rank, num_looks=_NUM_LOOKS)
        return num_ended


def check_engine(program: str) -> str:
    """Ask an engine for its version; raises UnreachableError with what to do when it does not answer."""
    told = Engine(program, engine_variables()).ask("version", "--format={{.Server.Version}}")
    if told.code == 0:
        return told.stdout.strip()
    said = [line.strip() for line in told.stderr.splitlines() if line.strip()]
    reason = said[-1] if said else "it did not answer"
    hint = f"try it by hand: {program} version; `windlass doctor` says what else a run needs"
    raise UnreachableError(f"`{program}` cannot run containers: {reason}", hint=hint, code="engine-unreachable")
