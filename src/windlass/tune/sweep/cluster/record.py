"""Place of a sweep on a cluster: a file in its folder on this machine, and the plan of its trials on the cluster's head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.core.files import write_json
from windlass.core.json_text import read_json

__all__ = ["SweepPlace", "TrialPlan", "is_on_cluster"]

_PLACE = "cluster.json"
_PLAN = "trials.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlace:
    """The cluster that a sweep runs on, as this machine knows it.

    Attributes:
        cluster: name of the cluster; `id` is the one that it had then.
        folder: the sweep's folder on the head, below the user's home.
        run: name of the head's command on the cluster.
        is_running: whether that command ran when it was last asked.
    """

    cluster: str
    id: str
    folder: str
    run: str
    is_running: bool = True

    def write(self, folder: Path) -> None:
        """Write the record to the sweep's folder on this machine."""
        write_json(folder / _PLACE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> SweepPlace:
        """Read what `write` wrote.

        Raises:
            PreconditionError: it is missing or damaged (`run-damaged`).
        """
        try:
            data = read_json(folder / _PLACE)
            assert isinstance(data, dict)
            return cls(**data)
        except (OSError, ValueError, TypeError, AssertionError) as error:
            message = f"cannot read where the sweep runs in {folder / _PLACE}: {error}"
            raise PreconditionError(message, code="run-damaged") from error


def is_on_cluster(folder: Path) -> bool:
    """Return whether a sweep of this machine runs on a cluster."""
    return (folder / _PLACE).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """Facts that the head on the cluster needs beside the sweep's record.

    Attributes:
        resources: resources of a trial.
        code: the experiment's code folder, below the sweep's folder.
    """

    resources: Mapping[str, float] = field(default_factory=dict)
    code: str = "code"

    def write(self, folder: Path) -> None:
        """Write the plan to a folder."""
        write_json(folder / _PLAN, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> TrialPlan:
        """Read what `write` wrote.

        Raises:
            PreconditionError: it is missing or damaged (`run-damaged`).
        """
        try:
            data = read_json(folder / _PLAN)
            assert isinstance(data, dict)
            return cls(**data)
        except (OSError, ValueError, TypeError, AssertionError) as error:
            message = f"cannot read the plan of the trials in {folder / _PLAN}: {error}"
            raise PreconditionError(message, code="run-damaged") from error
