"""What is known of a run that came here in an archive: when, with which digest, and where it had been.

`imported.json` lies in its folder. Its `places.json` is in there too, not beside it: nothing of the run is to be started,
stopped or asked about from here.
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
    """Whether it came in an archive."""
    return (run.path / IMPORTED).exists()


def import_facts(run: RunFolder) -> Mapping[str, object]:
    """`at`, `digest`, `left_out`, `places`; empty where the run was made here."""
    try:
        content = read_json(run.path / IMPORTED)
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}


def write_import_facts(folder: Path, facts: Mapping[str, object]) -> None:
    """Write `imported.json` into the folder of a run that is being made."""
    write_json(folder / IMPORTED, {"schema": 1, **facts})


def imported_at(run: RunFolder) -> float:
    """When it came, wall time; 0 where the run was made here."""
    at = import_facts(run).get("at", 0.0)
    return float(at) if isinstance(at, int | float) else 0.0


def path_here(run: RunFolder, path: str) -> Path:
    """Where a path that the run recorded lies now: a path in its folder moved with it."""
    places = import_facts(run).get("places")
    stated = places.get("run_dir") if isinstance(places, dict) else None
    found = Path(path)
    if isinstance(stated, str) and found.is_relative_to(stated):
        return run.path / found.relative_to(stated)
    return found


def left_out_of(run: RunFolder) -> dict[str, str]:
    """What of it did not travel, by its path in the archive, with the reason."""
    found = import_facts(run).get("left_out")
    return dict(found) if isinstance(found, dict) else {}


def archived_data(run: RunFolder) -> dict[str, Path]:
    """The data that came with it: the file or folder of each, by its name in the experiment."""
    return {path.parent.name: path for path in sorted(run.path.glob("data/*/*"))} if is_imported(run) else {}
