"""Record of a declared sweep in its folder, beside the journal, written only once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from windlass.config.encode import to_data
from windlass.config.loading import from_data
from windlass.core.errors import PreconditionError
from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.runs.home import Home
from windlass.spec import Sweep

__all__ = ["RECORD", "SweepRecord", "read_record", "sweeps_folder"]

RECORD = "sweep.json"
_SCHEMA = 1


def sweeps_folder(home: Home) -> Path:
    """Return the folder of all sweeps, which has one folder for each."""
    return home.sweeps


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecord:
    """Sweep as declared in an experiment file.

    Attributes:
        file: path of the file.
        place: where trials run, as `--on` takes it.
    """

    name: str
    sweep: Sweep
    file: str = ""
    place: str = "local"
    created_at: float = field(default_factory=time.time)

    def write(self, folder: Path) -> None:
        """Write the record, which is the last file of a new sweep and shows that all others exist."""
        data = {
            "schema": _SCHEMA,
            "name": self.name,
            "sweep": to_data(self.sweep),
            "file": self.file,
            "place": self.place,
            "created_at": self.created_at,
        }
        write_json(folder / RECORD, data)


def read_record(folder: Path) -> SweepRecord:
    """Read what `write` wrote.

    Raises:
        PreconditionError: the record is damaged, or the sweep was not declared in a file.
    """
    path = folder / RECORD
    try:
        data = read_json(path)
        assert isinstance(data, dict)
        return SweepRecord(
            name=data["name"],
            sweep=from_data(Sweep, data["sweep"], source=str(path)),
            file=data["file"],
            place=data["place"],
            created_at=data["created_at"],
        )
    except FileNotFoundError as error:
        raise PreconditionError(
            f"the sweep in {folder} was not declared in an experiment file",
            hint="resume it from Python: tune.Tuner.restore(path, trainable).fit()",
            code="sweep-not-declared",
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise PreconditionError(f"{path} is damaged: {error}", code="run-damaged") from error
