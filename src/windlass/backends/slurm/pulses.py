"""Signs of life of a job that Slurm calls over, or does not know: a controller that lost its memory forgets jobs that run.

Every replica renews its pulse in the job's folder (`supervise/fencing/fence.py`), and each start of a link writes a file there.
Their times are compared with that of a file written now, on the clock of the file system that holds them all.
"""

from __future__ import annotations

from pathlib import Path

from windlass.backends.site_shell import SiteShell
from windlass.backends.slurm.submission import site_folder
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.supervise.job import JobDocument

__all__ = ["signs_of_life"]

_TIMEOUT_S = 10.0
_NUM_MISSED = 3
"""Signs of life that must be missing although Slurm says how the job ended."""

# A file is opened before it is asked for its time: a client of a network file system asks the server then.
_SCRIPT = r"""
cd "$1" 2>/dev/null || exit 0
probe=.probe-client-$$
(: > "$probe") 2>/dev/null && stat -c '%Y now' -- "$probe" || date '+%s now'
rm -f -- "$probe"
for file in link-*.json pulse-* */pulse-*; do
  [ -f "$file" ] && head -c 1 -- "$file" >/dev/null 2>&1 && stat -c '%Y %n' -- "$file"
done
exit 0
"""


def signs_of_life(shell: SiteShell, document: JobDocument, folder: Path, *, is_known: bool) -> str:
    """Why something of a job that is not in the queue may run, in words; empty when no sign of it is recent.

    Blocking: one command at the site, or none where replicas give no signs of life.

    Args:
        folder: the job's folder, on this machine.
        is_known: whether Slurm says how the job ended; then fewer signs need to be missing.

    Raises:
        UnreachableError: the site does not answer.
    """
    fencing = document.fencing
    if not fencing.renew_s:
        return ""
    try:
        answer = shell.run(["/bin/sh", "-c", _SCRIPT, "sh", str(site_folder(document, folder))], timeout_s=_TIMEOUT_S)
    except PreconditionError as error:
        raise UnreachableError(error.message, code="site-unreachable") from error
    quiet_s = _NUM_MISSED * fencing.renew_s if is_known else fencing.quiet_s
    return newest_sign(answer.out, quiet_s)


def newest_sign(listing: str, quiet_s: float) -> str:
    """Read what `_SCRIPT` printed."""
    rows = [line.split(" ", 1) for line in listing.splitlines()]
    times = [(int(row[0]), row[1]) for row in rows if len(row) == 2 and row[0].isdigit()]
    now = max((at for at, name in times if name == "now"), default=None)
    at, name = max(((at, name) for at, name in times if name != "now"), default=(0, ""))
    if now is None or not name or now - at >= quiet_s:
        return ""
    return f"it gave a sign of life {max(0, now - at)} s ago ({name})"
