"""Finished data build: its files, the digest of their content, and checks that they are unchanged.

<state>/data/built/<key>/data/                 output of the command
                         data.manifest.json    paths, sizes, sha256
                         .ready                facts of the build
                   .<key>.<generation>/        being built
                   .last/<label>.json          size of the last build of the data of this name
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

from windlass.core.errors import WindlassError
from windlass.record.manifest import Manifest, differences, read_manifest

__all__ = [
    "CONTENT",
    "GENERATION",
    "GENERATION_NAME",
    "LAST",
    "RECORD",
    "content_digest",
    "full_differences",
    "generation_folder",
    "quick_difference",
]

CONTENT = "data"
LAST = ".last"
RECORD = "built.json"
"""File in the output of the build task: the data for the other tasks of the run."""

GENERATION = "generation"
"""Placeholder for the generation's name in the command and its variables, replaced when the build begins."""

GENERATION_NAME = "WINDLASS_GENERATION"
"""Variable with that name, for the program that creates the container of a build."""


def generation_folder(place: Path) -> Path:
    """Return the command's output folder; `.<key>.generation` is replaced when the build begins."""
    return place.with_name(f".{place.name}.{GENERATION}") / CONTENT


def quick_difference(place: Path) -> str:
    """Return the first file that is missing or has a different size than recorded, or ""; reads no content."""
    try:
        manifest = read_manifest(place / CONTENT, is_beside=True)
    except WindlassError as error:
        return error.message
    for entry in manifest.entries:
        try:
            found = os.lstat(str(place / CONTENT / entry.path))
        except OSError:
            return f"{entry.path} is missing"
        if not entry.link and found.st_size != entry.size:
            return f"{entry.path} has {found.st_size} bytes instead of {entry.size}"
    return ""


def content_digest(folder: Path, manifest: Manifest) -> str:
    """Return the digest of a folder: sha256 over `<mode> <size> <sha256> <path>`, sorted by path."""
    digest = hashlib.sha256()
    for entry in sorted(manifest.entries, key=lambda entry: os.fsencode(entry.path)):
        is_executable = not entry.link and os.lstat(str(folder / entry.path)).st_mode & stat.S_IXUSR
        mode = "l" if entry.link else "x" if is_executable else "-"
        name = json.dumps(os.fsencode(entry.path).decode("utf-8", "backslashreplace"))[1:-1]
        digest.update(f"{mode} {entry.size} {entry.sha256} {name}\n".encode())
    return digest.hexdigest()


def full_differences(place: Path) -> list[tuple[str, str]]:
    """Return a (path, problem) pair for each changed file of a finished build; reads every byte."""
    return differences(place / CONTENT, read_manifest(place / CONTENT, is_beside=True))
