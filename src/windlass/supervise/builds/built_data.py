"""A finished build of data: where its parts lie, what its content is called, and whether it still is what was built.

<state>/data/built/<key>/data/                 what the command wrote
                         data.manifest.json    paths, sizes, sha256
                         .ready                what is known of the build
                   .<key>.<generation>/        being built
                   .last/<label>.json          how big the last build of data of this name was
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
"""In the output of the task that built it: what the other tasks of that run were given."""

GENERATION = "generation"
"""Stands for the generation's name in the command and its variables, which are written before it is known."""

GENERATION_NAME = "WINDLASS_GENERATION"
"""Variable with that name, for the program that makes the container of a build."""


def generation_folder(place: Path) -> Path:
    """What a command is told as its output folder; the part `.<key>.generation` is replaced when the build begins."""
    return place.with_name(f".{place.name}.{GENERATION}") / CONTENT


def quick_difference(place: Path) -> str:
    """What is wrong with a finished build by its files' sizes, in words; empty when nothing is. Reads no content."""
    try:
        manifest = read_manifest(place / CONTENT, is_beside=True)
    except WindlassError as error:
        return error.message
    for entry in manifest.entries:
        try:
            found = os.lstat(str(place / CONTENT / entry.path))
        except OSError:
            return f"{entry.path} is gone"
        if not entry.link and found.st_size != entry.size:
            return f"{entry.path} has {found.st_size} bytes instead of {entry.size}"
    return ""


def content_digest(folder: Path, manifest: Manifest) -> str:
    """The digest of a folder by the rule for data: sha256 over `<mode> <size> <sha256> <path>`, sorted by path."""
    digest = hashlib.sha256()
    for entry in sorted(manifest.entries, key=lambda entry: os.fsencode(entry.path)):
        is_executable = not entry.link and os.lstat(str(folder / entry.path)).st_mode & stat.S_IXUSR
        mode = "l" if entry.link else "x" if is_executable else "-"
        name = json.dumps(os.fsencode(entry.path).decode("utf-8", "backslashreplace"))[1:-1]
        digest.update(f"{mode} {entry.size} {entry.sha256} {name}\n".encode())
    return digest.hexdigest()


def full_differences(place: Path) -> list[tuple[str, str]]:
    """(path, what is wrong) of every file of a finished build that is not what was built; reads every byte."""
    return differences(place / CONTENT, read_manifest(place / CONTENT, is_beside=True))
