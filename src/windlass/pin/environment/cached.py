"""Building of something once for any number of processes, so that an incomplete build is never used.

    <place>.lock            held while building
    <place>/<generation>/   the build itself, made in its final place (a virtual environment cannot be moved)
    <place>/complete.json   written last, atomically; names the generation

Every build gets a new generation, so the orphan of a killed builder (a uv that still writes) cannot affect a later build.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.files import is_locked, lock, write_json
from windlass.core.json_text import read_json
from windlass.core.names import new_token

__all__ = ["Cached", "build_once", "find_built"]

_MARKER = "complete.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Finished build: its folder, the builder's notes, and whether it already existed."""

    folder: Path
    notes: dict[str, object]
    is_hit: bool


def find_built(place: Path, proof: str) -> Cached | None:
    """Return the finished build at `place`, or None; `proof` names a file in it that must exist."""
    try:
        marker = read_json(place / _MARKER)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if not isinstance(marker, dict) or not (place / str(marker.get("generation")) / proof).exists():
        return None
    with contextlib.suppress(OSError):  # a shared cache may be read-only; the time is only used by `windlass gc`
        os.utime(place / _MARKER)
    return Cached(folder=place / str(marker["generation"]), notes=marker, is_hit=True)


def build_once(
    place: Path, proof: str, build: Callable[[Path], Mapping[str, object]], log: Callable[[str], None]
) -> Cached:
    """Return the build at `place`, building it under a lock if missing. Blocks while another process builds it.

    Args:
        proof: a file in the build; without it the build is broken (its base interpreter was deleted).
        build: fills the given folder and returns notes for the marker; if it raises, nothing is left behind.
    """
    found = find_built(place, proof)
    if found is not None:
        return found
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreconditionError(
            f"cannot create the cache folder {place}: {error.strerror}",
            hint="set WINDLASS_HOME",
            code="not-writable",
        ) from error
    gate = place.with_name(place.name + ".lock")
    if is_locked(gate):
        log(f"waiting for another process that builds {place.name[:12]}")
    with lock(gate):
        found = find_built(place, proof)
        if found is not None:
            return found
        _clear(place)
        folder = place / new_token()[:12]
        try:
            folder.mkdir(parents=True)
            notes = dict(build(folder))
            if not (folder / proof).exists():
                raise PreconditionError(
                    f"the build at {folder} exited 0 but did not create {proof}",
                    hint="the log next to it has its output",
                    code="build-failed",
                )
            write_json(place / _MARKER, {**notes, "generation": folder.name})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return Cached(folder=folder, notes=notes, is_hit=False)


def _clear(place: Path) -> None:
    """Remove what killed builders left behind, the marker first, so that nothing is mistaken for complete."""
    place.mkdir(parents=True, exist_ok=True)
    (place / _MARKER).unlink(missing_ok=True)
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            # An orphan may still be writing; the next build removes what is left.
            shutil.rmtree(entry, ignore_errors=True)
