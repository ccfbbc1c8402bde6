"""Observation of jobs at a Slurm site: the queue, how jobs ended, and heartbeats of jobs that have left the queue."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from windlass.backends.site_shell import SiteShell
from windlass.backends.slurm.client import Past, SlurmClient
from windlass.backends.slurm.render import site_folder
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.core.json_text import read_object
from windlass.record.causes import Cause
from windlass.supervise.job import JobDocument
from windlass.supervise.slurm.cancels import end_of_cancelled
from windlass.supervise.slurm.job_listing import JobEnd, SlurmJob

__all__ = ["FRESH_FOR_S", "Look", "forget", "how_ended", "look", "signs_of_life"]

FRESH_FOR_S = 3.0
"""Seconds for which the process reuses a listing."""

_SILENT_FOR_S = 10.0
"""Seconds before an unresponsive controller is queried again: each query to it takes about ten seconds."""

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Snapshot of the queue.

    Attributes:
        began_at: monotonic time before the query was sent; later changes may be missing.
    """

    began_at: float
    by_mark: dict[str, list[SlurmJob]]

    def links(self, mark: str) -> Sequence[SlurmJob]:
        """Return the links of a job in order, except submissions that Slurm rejected."""
        return self.by_mark.get(mark, [])


_looks: dict[_Key, Look] = {}
_silences: dict[_Key, tuple[float, UnreachableError]] = {}
_lock = threading.Lock()


def look(commands: SlurmClient, *, not_before: float | None = None) -> Look:
    """Return the latest listing of the queue, or fetch a newer one; raises UnreachableError.

    Args:
        not_before: earliest acceptable monotonic time of the look; by default some seconds ago.
    """
    key, began_at = _key(commands), time.monotonic()
    oldest = began_at - FRESH_FOR_S if not_before is None else not_before
    with _lock:
        known, silence = _looks.get(key), _silences.get(key)
        if known is not None and known.began_at >= oldest:
            return known
        if silence is not None and silence[0] > began_at - _SILENT_FOR_S:
            raise silence[1]
        try:
            found = Look(began_at=time.monotonic(), by_mark=_by_mark(commands.jobs()))
        except UnreachableError as error:
            _silences[key] = (time.monotonic(), error)
            raise
        _silences.pop(key, None)
        _looks[key] = found
        return found


def forget(commands: SlurmClient) -> None:
    """Discard the latest listing, because the queue has changed or an up-to-date listing is needed."""
    with _lock:
        _looks.pop(_key(commands), None)
        _silences.pop(_key(commands), None)


def _by_mark(jobs: Sequence[SlurmJob]) -> dict[str, list[SlurmJob]]:
    found: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        if job.mark and not job.was_refused:
            found.setdefault(job.mark, []).append(job)
    return {mark: sorted(links, key=lambda job: job.link) for mark, links in found.items()}


def _key(commands: SlurmClient) -> _Key:
    """Return a key that identifies the queue; on this machine it includes SLURM_CONF."""
    local = os.environ.get("SLURM_CONF", "") if commands.shell.is_local else ""
    return (commands.shell.name, commands.profile.scheduler.bin, local)


_DRAINED_WITHIN_S = 1.0
"""Slurm drains the node after the job's end, in a thread that may sleep this many seconds (slurmctld/agent.c, `_wdog`)."""


def how_ended(commands: SlurmClient, job: SlurmJob | Past, folder: Path) -> JobEnd | None:
    """Return how a job ended; None if that is unknown. May block for a second.

    Args:
        folder: the job's folder, whose link files show whether a supervisor ran.

    Raises:
        UnreachableError: Slurm does not respond.
    """
    link = job.link if isinstance(job, SlurmJob) else "*"
    is_number_of_another = isinstance(job, SlurmJob) and _has_begun_as_another(folder, job)
    has_begun = is_number_of_another or any(_number_in(path) for path in folder.glob(f"link-{link}.json"))
    ended = job.how_ended(has_begun=has_begun)
    if ended is None or ended.cause is not Cause.CANCELLED or not job.nodes:
        return ended
    for pause_s in (0.0, _DRAINED_WITHIN_S):
        time.sleep(pause_s)
        by, reasons = commands.cancelled_by(job.id, job.name), commands.reasons(job.nodes)
        found = end_of_cancelled(
            by=by, reasons=reasons, has_begun=has_begun, is_later_start=is_number_of_another, nodes=job.nodes
        )
        if (by or 0) > 0 or found.cause is not Cause.CANCELLED:
            break
    return found


def _has_begun_as_another(folder: Path, job: SlurmJob) -> bool:
    """Return True if another link of the chain has started with the same job id.

    A controller that lost its state reused the id while that link ran: it ended the running link, started the id again,
    was rejected by the nodes, and cancelled it. The nodes may be in use again before the reason is queried.
    """
    others = (path for path in folder.glob("link-*.json") if path.name != f"link-{job.link}.json")
    return any(_number_in(path) == job.id for path in others)


def _number_in(path: Path) -> str:
    """Return the job id in a link file; empty if the file is missing or incomplete, as after a full disk."""
    try:
        return str(read_object(path).get("id", ""))
    except (OSError, ValueError):
        return ""


_TIMEOUT_S = 10.0
_NUM_MISSED = 3
"""Heartbeats to check for even if Slurm reports how the job ended."""

# Opening a file before reading its time makes a network file system's client ask the server.
_SCRIPT = r"""
cd "$1" 2>/dev/null || exit 0
probe=.probe-client-$$
(: > "$probe") 2>/dev/null && stat -c '%Y now' -- "$probe" || date '+%s now'
rm -f -- "$probe"
for file in link-*.json heartbeat-* */heartbeat-*; do
  [ -f "$file" ] && head -c 1 -- "$file" >/dev/null 2>&1 && stat -c '%Y %n' -- "$file"
done
exit 0
"""


def signs_of_life(shell: SiteShell, document: JobDocument, folder: Path, *, is_known: bool) -> str:
    """Describe recent signs that parts of a job still run after it has left the queue; empty if there are none.

    Blocking: one command at the site, or none if replicas write no heartbeats.

    Args:
        folder: the job's folder, on this machine.
        is_known: whether Slurm reports how the job ended; then fewer signs are checked.

    Raises:
        UnreachableError: the site does not respond.
    """
    fencing = document.site.fencing
    if not fencing.renew_s:
        return ""
    try:
        answer = shell.run(["/bin/sh", "-c", _SCRIPT, "sh", str(site_folder(document, folder))], timeout_s=_TIMEOUT_S)
    except PreconditionError as error:
        raise UnreachableError(error.message, code="site-unreachable") from error
    quiet_s = _NUM_MISSED * fencing.renew_s if is_known else fencing.quiet_s
    return newest_sign(answer.out, quiet_s)


def newest_sign(listing: str, quiet_s: float) -> str:
    """Describe the newest sign of life in the output of `_SCRIPT`; empty if none is recent."""
    rows = [line.split(" ", 1) for line in listing.splitlines()]
    times = [(int(row[0]), row[1]) for row in rows if len(row) == 2 and row[0].isdigit()]
    now = max((at for at, name in times if name == "now"), default=None)
    at, name = max(((at, name) for at, name in times if name != "now"), default=(0, ""))
    if now is None or not name or now - at >= quiet_s:
        return ""
    return f"it gave a sign of life {max(0, now - at)} s ago ({name})"
