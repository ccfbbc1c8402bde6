"""The docker backend, also for podman: supervisors run on this machine, and user processes in containers beside them.

The containers are created in the job, by `windlass.pyz contain` (windlass.supervise.container.run). In addition to
what the local backend does, it checks that the engine responds before a job starts, and removes containers without a
supervisor.
"""

from __future__ import annotations

from windlass.backends.local.backend import LocalBackend
from windlass.backends.protocol import Rendered, Submission
from windlass.core.errors import UnreachableError
from windlass.supervise.container.engine import ContainerEngine, engine_variables
from windlass.supervise.job import JobDocument

__all__ = ["DockerBackend", "check_engine"]

_NUM_LOOKS = 3


class DockerBackend(LocalBackend):
    """Backend that runs jobs in containers on this machine.

    Args:
        program: `docker` or `podman`.
    """

    name = "docker"

    def __init__(self, program: str = "docker") -> None:
        self._program = program

    def submit(self, rendered: Rendered) -> Submission:
        """Start the job, as the local backend does.

        Raises:
            UnreachableError: the engine is not installed, or does not respond; nothing was started.
        """
        check_engine(self._program)
        return super().submit(rendered)

    def sweep(self, job: Submission) -> int:
        """End the processes, containers and network of a job that no longer has a supervisor."""
        num_ended = super().sweep(job)
        path = job.folder / "job.json"
        if not path.exists():
            return num_ended
        document = JobDocument.read(path)
        engine = ContainerEngine(document.container.engine, document.container.variables)
        for rank in range(document.num_replicas):
            num_ended += engine.sweep(document.token, rank, num_looks=_NUM_LOOKS)
        return num_ended


def check_engine(program: str) -> str:
    """Return an engine's version; if the engine does not respond, raise UnreachableError with what to do."""
    result = ContainerEngine(program, engine_variables()).ask("version", "--format={{.Server.Version}}")
    if result.code == 0:
        return result.stdout.strip()
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    reason = lines[-1] if lines else "it did not respond"
    hint = f"run `{program} version` to see the error"
    raise UnreachableError(f"`{program}` cannot run containers: {reason}", hint=hint, code="engine-failed")
