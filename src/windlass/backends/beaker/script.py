"""The first lines of every job: find a Python that is new enough, and become the supervisor.

The image is the user's, so nothing but a POSIX shell is taken for granted. A job that cannot begin says why on its
standard error, which Beaker keeps as its log, in its results, and in the job's folder, where that is there.
"""

from __future__ import annotations

from pathlib import PurePath

from windlass.backends.beaker.causes import SETUP_FAILED_CODE
from windlass.supervise.job import JobDocument

__all__ = ["BUNDLE_PATH", "SETUP_NOTE", "command_of"]

SETUP_NOTE = "setup-failed.txt"
"""Beside job.json: why no supervisor of ours could run."""

BUNDLE_PATH = "/windlass-bundle"
"""Where a job sees the dataset with its folder."""

_BOOTSTRAP = rf"""
archive=$1 folder=$2 wanted=$3 results=$4 bundle=$5
failed() {{
  printf 'windlass: %s\n' "$1" >&2
  for place in "$folder" "$results"; do
    [ -d "$place" ] && printf '%s\n' "$1" >"$place/{SETUP_NOTE}"
  done
  exit {SETUP_FAILED_CODE}
}}
is_new_enough='import sys; sys.exit(sys.version_info < (3, 9))'
python=
for candidate in "$wanted" python3 python /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python; do
  command -v "$candidate" >/dev/null 2>&1 || continue
  "$candidate" -I -S -c "$is_new_enough" >/dev/null 2>&1 && python=$candidate && break
done
[ -n "$python" ] || failed "the image has no Python 3.9 or newer on its PATH ($PATH), which the supervisor needs"
if [ -n "$bundle" ]; then
  exec "$python" -I -S "$bundle/windlass.pyz" beaker-bundle "$bundle" "$folder" "$results"
fi
[ -f "$folder/job.json" ] || failed "$folder is not there: do this cluster's machines have the storage mounted?"
[ -f "$archive" ] || failed "$archive is not there: do this cluster's machines have the storage mounted?"
exec "$python" -I -S "$archive" beaker "$folder"
"""


def command_of(document: JobDocument, folder: PurePath, archive: PurePath) -> list[str]:
    """The command of a task of Beaker.

    Args:
        folder: the job's folder as the job sees it.
        archive: the zipapp as the job sees it.
    """
    ask = document.beaker
    bundle = BUNDLE_PATH if ask.bundle else ""
    words = [str(archive), str(folder), document.queue.python, ask.results, bundle]
    return ["/bin/sh", "-c", _BOOTSTRAP.strip(), "windlass", *words]
