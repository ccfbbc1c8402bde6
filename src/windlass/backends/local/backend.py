"""The local backend: a job is a tree of processes on this machine, started once and then independent of the client.

Submitting starts one process, the guard of rank 0; the leader's supervisor starts the other virtual nodes. So there
is one side effect, and a lock that the guard holds while it lives stops a second guard of the same job.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from windlass.backends.local.observe import is_visible, observation_of, processes_of
from windlass.backends.local.submit import submit
from windlass.backends.protocol import Observation, Rendered, Submission
from windlass.core.errors import UnreachableError
from windlass.core.process import descendants, is_alive, send_signal
from windlass.record.events import METRICS
from windlass.record.journal import read_journal
from windlass.record.state import fold
from windlass.supervise.job import JobDocument
from windlass.supervise.replica.environment import TOKEN_NAME
from windlass.supervise.replica.process_tree import sweep

__all__ = ["LocalBackend"]


class LocalBackend:
    """Backend that runs jobs as the user's processes on this machine."""

    name = "local"

    def render(self, document: JobDocument, folder: Path, archive: Path) -> Rendered:
        """Return the rendered job: job.json and the guard's command line."""
        content = json.dumps(document.to_data(), indent=1, sort_keys=True) + "\n"
        argv = (sys.executable, "-I", "-S", str(archive), "guard", str(folder), "0")
        return Rendered(folder=folder, files={"job.json": content}, argv=argv, token=document.token)

    def submit(self, rendered: Rendered) -> Submission:
        """Write the files and start the guard, unless an earlier call already has."""
        return submit(rendered)

    def observe(self, jobs: Sequence[Submission]) -> Mapping[str, Observation]:
        """Return the states of jobs: RUNNING while any guard or supervisor of a job lives on this machine."""
        return {job.backend_id: observation_of(job) for job in jobs}

    def cancel(self, job: Submission) -> None:
        """Send SIGKILL to guards, supervisors and their descendants; they are stopped first, so that none forks."""
        if not is_visible(job.folder):
            raise UnreachableError(
                f"the processes of {job.folder.name} run on another machine or in another container",
                hint="run the command where the run was launched",
                code="other-machine",
            )
        living = [process.pid for process in processes_of(job) if is_alive(process)]
        for pid in living:
            send_signal(pid, signal.SIGSTOP)
        below = descendants(*living)
        for pid in (*living, *below):
            send_signal(pid, signal.SIGKILL)
        self.sweep(job)

    def sweep(self, job: Submission) -> int:
        """End processes that have the job's token and no longer have a supervisor."""
        path = job.folder / "job.json"
        if not path.exists():
            return 0
        document = JobDocument.read(path)
        task = fold(read_journal(Path(document.paths.run_dir) / "journal", skip=(METRICS,))).task(document.task)
        attempts = [attempt for attempt in task.attempts.values() if attempt.job == document.job]
        roots = [replica.process for attempt in attempts for replica in attempt.replicas.values()]
        tokens = [f"{document.token}.{rank}" for rank in range(document.num_replicas)]
        return len(sweep(TOKEN_NAME, tokens, set(), roots=roots))

    def explain(self, job: Submission) -> str:
        """Return an empty string: a local job waits only in its supervisor, which records the reason in the journal."""
        return ""
