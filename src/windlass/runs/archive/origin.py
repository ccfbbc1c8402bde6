"""Origin of an imported run: the time of the import, the digest and original paths, in the run's `imported.json`.

The run's `places.json` becomes part of that file, so that its jobs are not started, stopped or observed from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.runs.store import RunFolder

__all__ = [
    "IMPORTED",
    "archived_data",
    "import_facts",
    "imported_at",
    "is_imported",
    "left_out_of",
    "path_here",
    "write_import_facts",
]

IMPORTED = "imported.json"


def is_imported(run: RunFolder) -> bool:
    """Return whether a run was imported from an archive."""
    return (run.path / IMPORTED).exists()


def import_facts(run: RunFolder) -> Mapping[str, object]:
    """Return `at`, `digest`, `left_out` and `places`; empty if the run was not imported."""
    try:
        content = read_json(run.path / IMPORTED)
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}


def write_import_facts(folder: Path, facts: Mapping[str, object]) -> None:
    """Write `imported.json` to a run's folder during its import."""
    write_json(folder / IMPORTED, {"schema": 1, **facts})


def imported_at(run: RunFolder) -> float:
    """Return the wall time of the import; 0 if the run was not imported."""
    at = import_facts(run).get("at", 0.0)
    return float(at) if isinstance(at, int | float) else 0.0


def path_here(run: RunFolder, path: str) -> Path:
    """Return where a recorded path is now; paths in the run's folder moved with it."""
    places = import_facts(run).get("places")
    stated = places.get("run_dir") if isinstance(places, dict) else None
    found = Path(path)
    if isinstance(stated, str) and found.is_relative_to(stated):
        return run.path / found.relative_to(stated)
    return found


def left_out_of(run: RunFolder) -> dict[str, str]:
    """Return why parts of the run are not in the archive, by path."""
    found = import_facts(run).get("left_out")
    return dict(found) if isinstance(found, dict) else {}


def archived_data(run: RunFolder) -> dict[str, Path]:
    """Return the paths of imported data, by its name in the experiment."""
    return {path.parent.name: path for path in sorted(run.path.glob("data/*/*"))} if is_imported(run) else {}
