"""Jobs that are a tree of processes on this machine, started once and left alone: what `local` and `docker` share.

Submitting starts one process, the guard of rank 0; the leader's supervisor starts the other virtual nodes. So there
is one side effect, and a lock held by the guard for life keeps a second one of the same job from doing anything.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from windlass.backends.early import guard_environment, tell_early
from windlass.backends.gone import why_gone
from windlass.backends.protocol import JobState, Observation, Rendered, Submission
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.core.files import lock, write_atomic, write_json
from windlass.core.json_text import read_json
from windlass.core.process import (
    ProcessId,
    descendants,
    find_by_environment,
    identify,
    is_alive,
    process_world,
    send_signal,
)
from windlass.record.events import METRICS
from windlass.record.journal import read_journal
from windlass.record.state import fold
from windlass.supervise.fencing.guard_file import guard_path
from windlass.supervise.job import JobDocument
from windlass.supervise.replica.environment import TOKEN_NAME
from windlass.supervise.replica.process_tree import sweep

__all__ = ["ProcessTree"]

_SUBMITTED = "submitted.json"
_SUBMISSION_NAME = "WINDLASS_SUBMISSION"


class ProcessTree:
    """Runs jobs as processes of the user on this machine; a backend is one with its own name."""

    name = ""

    def render(self, document: JobDocument, folder: Path, archive: Path) -> Rendered:
        """job.json and the guard's command line."""
        content = json.dumps(document.to_data(), indent=1, sort_keys=True) + "\n"
        argv = (sys.executable, "-I", "-S", str(archive), "guard", str(folder), "0")
        return Rendered(folder=folder, files={"job.json": content}, argv=argv, token=document.token)

    def submit(self, rendered: Rendered) -> Submission:
        """Write the files and start the guard, unless an earlier call already has."""
        folder = rendered.folder
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / "submit.lock"):
            known = self._find(rendered)
            if known is not None:
                return known
            for name, content in rendered.files.items():
                write_atomic(folder / name, content.encode(), syncs_folder=False)  # made again should it be gone
            return self._start(rendered)

    def _find(self, rendered: Rendered) -> Submission | None:
        """The job of an earlier call with this token, also one whose client died before it wrote anything down."""
        marker = rendered.folder / _SUBMITTED
        if marker.exists():
            return _submission(rendered.folder, str(_dictionary(marker)["guard"]))
        if not (rendered.folder / "job.json").exists():
            return None
        written = guard_path(rendered.folder, 0)
        if written.exists():
            return _submission(rendered.folder, str(_dictionary(written)["guard"]))
        for pid in find_by_environment(_SUBMISSION_NAME, rendered.token):
            found = identify(pid)
            if found is not None:
                write_json(marker, {"guard": str(found), "where": process_world()})
                return _submission(rendered.folder, str(found))
        return None

    def _start(self, rendered: Rendered) -> Submission:
        folder = rendered.folder
        try:
            process = tell_early(rendered.argv) or self._start_guard(rendered)
        except OSError as error:
            raise PreconditionError(
                f"cannot start {rendered.argv[0]}: {error.strerror}", code="start-failed"
            ) from error
        identity = str(identify(process.pid) or ProcessId(process.pid, 0, ""))
        write_json(folder / _SUBMITTED, {"guard": identity, "where": process_world()}, is_durable=False)
        process.returncode = 0  # it is not ours to wait for: it outlives us
        return _submission(folder, identity)

    def _start_guard(self, rendered: Rendered) -> subprocess.Popen[bytes]:
        with (rendered.folder / "guard.out").open("ab") as output:
            return subprocess.Popen(
                rendered.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**guard_environment(), _SUBMISSION_NAME: rendered.token},
            )

    def observe(self, jobs: Sequence[Submission]) -> Mapping[str, Observation]:
        """Running while any guard or supervisor of the job lives on this machine."""
        return {job.backend_id: self._observe(job) for job in jobs}

    def _observe(self, job: Submission) -> Observation:
        if not _is_visible(job.folder):
            return Observation(state=JobState.UNKNOWN, detail="its processes are those of another machine or container")
        try:
            living = [process for process in _processes(job) if is_alive(process)]
        except (PreconditionError, ValueError) as error:
            return Observation(state=JobState.UNKNOWN, detail=f"its records are damaged: {error}")
        if living:
            return Observation(state=JobState.RUNNING, detail=f"{len(living)} processes of ours")
        cause, detail = why_gone(job.folder, ProcessId.parse(job.backend_id))
        return Observation(state=JobState.GONE, detail=detail, cause=cause)

    def cancel(self, job: Submission) -> None:
        """SIGKILL guards, supervisors and all below them; first they are stopped, so that nothing new is forked."""
        if not _is_visible(job.folder):
            raise UnreachableError(
                f"the processes of {job.folder.name} are those of another machine or container",
                hint="run the command where the run was launched",
                code="other-machine",
            )
        ours = [process.pid for process in _processes(job) if is_alive(process)]
        for pid in ours:
            send_signal(pid, signal.SIGSTOP)
        below = descendants(*ours)
        for pid in (*ours, *below):
            send_signal(pid, signal.SIGKILL)
        self.sweep(job)

    def sweep(self, job: Submission) -> int:
        """End processes that carry the job's token and have no supervisor any more."""
        path = job.folder / "job.json"
        if not path.exists():
            return 0
        document = JobDocument.read(path)
        task = fold(read_journal(Path(document.run_dir) / "journal", skip=(METRICS,))).task(document.task)
        attempts = [attempt for attempt in task.attempts.values() if attempt.job == document.job]
        roots = [replica.process for attempt in attempts for replica in attempt.replicas.values()]
        tokens = [f"{document.token}.{rank}" for rank in range(document.num_replicas)]
        return len(sweep(TOKEN_NAME, tokens, set(), roots=roots))

    def explain(self, job: Submission) -> str:
        """Nothing waits outside its own supervisor here; the reason is in the journal."""
        return ""


def _submission(folder: Path, guard: str) -> Submission:
    pid = guard.partition(":")[0]
    return Submission(backend_id=guard, locator=f"local://{os.uname().nodename}/{pid}{folder}", folder=folder)


def _is_visible(folder: Path) -> bool:
    """Whether the job's process numbers mean anything here; a reboot of the same machine ends processes, so it does."""
    try:
        where = _dictionary(folder / _SUBMITTED).get("where")
    except (FileNotFoundError, PreconditionError):
        return True
    here = process_world()
    if not isinstance(where, dict) or where["machine"] != here["machine"]:
        return not isinstance(where, dict)
    return bool(where["boot"] != here["boot"] or where["namespace"] == here["namespace"])


def _processes(job: Submission) -> list[ProcessId]:
    """Guards and supervisors of a job that were ever written down."""
    found = [ProcessId.parse(job.backend_id)]
    for path in job.folder.glob("guard-*.json"):
        found.extend(ProcessId.parse(str(text)) for text in _dictionary(path).values() if text != "None")
    return found


def _dictionary(path: Path) -> dict[str, object]:
    try:
        value = read_json(path)
    except ValueError as error:
        raise PreconditionError(f"{path} is damaged: {error}", code="job-broken") from error
    if not isinstance(value, dict):
        raise PreconditionError(f"{path} is damaged", code="job-broken")
    return value
