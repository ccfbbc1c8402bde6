"""Manifest of a task's output: written when the task succeeds, and checked by `windlass verify`.

It is next to the folder (`out/<task>.manifest.json`), so that it cannot conflict with the user's files.
"""

from __future__ import annotations

import os
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.record.manifest import Manifest, ManifestEntry, commit_manifest, differences, list_entries
from windlass.record.manifest import read_manifest as _read

__all__ = ["Manifest", "ManifestEntry", "OutputDifference", "read_manifest", "verify", "write_manifest"]


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """Output file that differs from its record."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def write_manifest(folder: Path) -> Manifest:
    """Record the path, size and sha256 of every file durably; symbolic links are not followed.

    Raises:
        NotFoundError: the folder does not exist.
        OSError: a file cannot be read or written.
    """
    return commit_manifest(folder, is_beside=True)


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's recorded manifest.

    Raises:
        NotFoundError: there is no manifest.
        PreconditionError: it is damaged.
    """
    return _read(folder, is_beside=True)


def verify(folder: Path, manifest: Manifest) -> list[OutputDifference]:
    """Return the files that are missing, changed or new compared with the manifest. Reads every byte."""
    found = [OutputDifference(path, problem) for path, problem in differences(folder, manifest)]
    known = {entry.path for entry in manifest.entries}
    if os.path.isdir(folder):
        found += [
            OutputDifference(path, "is new") for path in list_entries(folder, is_beside=True) if path not in known
        ]
    return sorted(found, key=lambda difference: difference.path)
