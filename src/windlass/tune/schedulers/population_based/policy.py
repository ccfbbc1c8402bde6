"""Schedule that population based training found for a trial, as rows like those in Ray Tune's policy files.

A row is one exploit: `[trial, clone of, its iteration, the clone's iteration, configuration cloned, new one]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.core.json_text import decode_json
from windlass.record.frames import read_frames
from windlass.tune.errors import BadValueError, MissingError
from windlass.tune.folder import SweepFolder

__all__ = ["PolicyRow", "lineage", "policy_rows", "read_policy", "schedule_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """Exploit, after which the trial continues from the source's checkpoint with another configuration."""

    trial: str
    source: str
    iteration: int
    source_iteration: int
    old_config: dict[str, Any]
    new_config: dict[str, Any]

    def to_line(self) -> str:
        """Return the row as Ray Tune writes it to `pbt_global.txt`."""
        return json.dumps(
            [self.trial, self.source, self.iteration, self.source_iteration, self.old_config, self.new_config]
        )


def policy_rows(records: Iterable[tuple[str, Mapping[str, Any]]]) -> list[PolicyRow]:
    """Return every exploit in a sweep in order, given the records (kind, data) of its journal."""
    configs: dict[str, dict[str, Any]] = {}
    iterations: dict[str, int] = {}
    rows = []
    for kind, data in records:
        if kind == "trial-suggested":
            configs[data["trial"]] = data["config"]
        elif kind == "trial-reported":
            iterations[data["trial"]] = int(data["metrics"].get("training_iteration", 0))
        for act in data.get("acts", ()):
            if act["act"] != "exploit":
                continue
            trial, source = act["trial"], act["source"]
            rows.append(
                PolicyRow(
                    trial=trial,
                    source=source["trial"],
                    iteration=iterations.get(trial, 0),
                    source_iteration=source["iteration"],
                    old_config=configs[source["trial"]],
                    new_config=act["config"],
                )
            )
            configs[trial], iterations[trial] = act["config"], source["iteration"]
    return rows


def lineage(rows: Sequence[PolicyRow], trial: str) -> list[PolicyRow]:
    """Return the exploits that led to a trial's state, including those of the trials that it cloned."""
    found: list[PolicyRow] = []
    for row in reversed(rows):
        if row.trial == trial:
            found.append(row)
            trial = row.source
    return found[::-1]


def schedule_of(rows: Sequence[PolicyRow]) -> tuple[dict[str, Any] | None, list[tuple[int, dict[str, Any]]]]:
    """Return the first configuration, and the later ones with their iterations.

    The rows come from `lineage` or Ray's file.
    """
    changes: list[tuple[int, dict[str, Any]]] = []
    first: dict[str, Any] | None = None
    source = ""
    for row in reversed(rows):
        if source and row.trial != source:
            break  # this clone overwrote all earlier values
        source, first = row.source, row.old_config
        changes.append((row.source_iteration, row.new_config))
    return first, changes[::-1]


def read_policy(path: Path | str, trial: str | None = None) -> list[PolicyRow]:
    """Read the rows for one trial, from a sweep's folder or from a policy file written by Ray Tune.

    Args:
        trial: of a folder; its id, or its number.

    Raises:
        NotFoundError: there is no such file or trial (`no-policy`).
        UsageError: the file is none of these (`no-policy`).
    """
    path = Path(path).expanduser()
    if path.is_file():
        return _rows_of_file(path)
    journal = SweepFolder(path).head_journal
    if not journal.is_file():
        hint = "pass the folder of a sweep, or a pbt_policy_*.txt file of Ray Tune"
        raise MissingError(f"no policy at {path}", hint=hint, code="no-policy")
    if trial is None:
        raise BadValueError(
            f"{path} is a sweep: add the trial, as in SWEEP/TRIAL",
            hint='pass the trial: trial="00003"',
            code="invalid-value",
        )
    name = f"{int(trial):05d}" if str(trial).isdigit() else trial
    records = [(record.kind, record.data) for record in read_frames(journal.read_bytes())[0]]
    if not any(kind == "trial-suggested" and data["trial"] == name for kind, data in records):
        raise MissingError(
            f"the sweep in {path} has no trial {name}", hint="`windlass sweep show` lists its trials", code="no-policy"
        )
    return lineage(policy_rows(records), name)


def _rows_of_file(path: Path) -> list[PolicyRow]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            trial, source, iteration, source_iteration, old_config, new_config = decode_json(line)
        except ValueError:
            raise BadValueError(
                f"{path}:{number} is not a row of a PBT policy: {line[:80]!r}",
                hint="each line is [trial, source trial, iteration, source iteration, old configuration, new configuration]",
                code="no-policy",
            ) from None
        rows.append(
            PolicyRow(
                trial=trial,
                source=source,
                iteration=iteration,
                source_iteration=source_iteration,
                old_config=old_config,
                new_config=new_config,
            )
        )
    return rows
