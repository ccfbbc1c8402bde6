"""Comparison of two executions' output files, byte for byte or within tolerances."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from pathlib import Path

from windlass.core.files import sha256_file
from windlass.core.json_text import decode_json
from windlass.runs.compare.tolerance import Tolerance, apart, value_names
from windlass.runs.outputs import Manifest, ManifestEntry

__all__ = ["compare_files", "json_names"]

_LINES = (".jsonl", ".ndjson")
_WHOLE = (".json",)
_MAX_SHOWN = 3


def compare_files(
    before: tuple[Path, Manifest],
    after: tuple[Path, Manifest],
    tolerances: Sequence[Tolerance] = (),
    ignored: Sequence[str] = (),
) -> list[tuple[str, str]]:
    """Return a (path, problem) pair for each file that differs; JSON files are parsed if there are tolerances.

    Args:
        before, after: folder and manifest of the recorded and of the new output.
        ignored: patterns of paths to ignore.
    """
    old = {entry.path: entry for entry in before[1].entries}
    new = {entry.path: entry for entry in after[1].entries}
    found = []
    for path in sorted({*old, *new}):
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in ignored):
            continue
        if path not in old or path not in new:
            found.append((path, "is new" if path not in old else "is missing"))
        elif not _is_same(old[path], new[path]):
            problem = _problem(before[0] / path, old[path], after[0] / path, new[path], tolerances)
            found += [(path, problem)] if problem else []
    return found


def _is_same(old: ManifestEntry, new: ManifestEntry) -> bool:
    return (old.sha256, old.link, old.size) == (new.sha256, new.link, new.size)


def _problem(before: Path, old: ManifestEntry, after: Path, new: ManifestEntry, tolerances: Sequence[Tolerance]) -> str:
    """Describe the difference between two files; empty if it is within the tolerances."""
    if old.size != new.size:
        bytes_differ = f"has {new.size} bytes instead of {old.size}"
    else:
        bytes_differ = f"has different content (sha256:{new.sha256[:12]} instead of {old.sha256[:12]})"
    if not tolerances or before.suffix not in (*_WHOLE, *_LINES) or old.link or new.link:
        return bytes_differ
    if not before.is_file() or sha256_file(before) != old.sha256:
        return f"{bytes_differ}; the recorded file is missing or changed, so its values cannot be compared"
    try:
        wrong = list(apart(_read(before), _read(after), tolerances))
    except ValueError:
        return f"{bytes_differ}; it is not valid JSON"
    more = f" and {len(wrong) - _MAX_SHOWN} more" if len(wrong) > _MAX_SHOWN else ""
    return "; ".join(wrong[:_MAX_SHOWN]) + more


def _read(path: Path) -> object:
    text = path.read_text(encoding="utf-8")
    if path.suffix in _LINES:
        return [decode_json(line) for line in text.splitlines() if line.strip()]
    return decode_json(text)


def json_names(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield the dotted paths of all numbers in the JSON files of an output."""
    for entry in manifest.entries:
        path = folder / entry.path
        if path.suffix in (*_WHOLE, *_LINES) and not entry.link and path.is_file():
            try:
                yield from value_names(_read(path))
            except ValueError:
                continue  # invalid JSON: only its bytes are compared
