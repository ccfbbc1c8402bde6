"""History of site checks: WINDLASS_HOME/sites/NAME.checks.jsonl, one line per check."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal, TypeAlias

from windlass.core.dataclass import dataclass
from windlass.core.json_text import decode_json
from windlass.sites.store import sites_folder

__all__ = ["CheckResult", "SiteCheck", "Status", "last_check", "past_checks", "save_check"]

Status: TypeAlias = Literal["ok", "failed", "not-tried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check.

    Attributes:
        nodes: number of nodes of the job that checked it; 0 if no job was needed.
    """

    name: str
    nodes: int
    status: Status
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCheck:
    """Results of one `site check`.

    Attributes:
        at: start time, `2026-11-21T05:04:09Z`.
        facts: properties of the nodes, by host.
    """

    site: str
    at: str
    jobs: tuple[str, ...] = ()
    results: tuple[CheckResult, ...] = ()
    facts: Mapping[str, Mapping[str, object]]

    @property
    def is_ok(self) -> bool:
        """Return whether all checks passed."""
        return all(result.status != "failed" for result in self.results)


def save_check(home: Path, check: SiteCheck) -> None:
    """Append a check to the history of its site; `home` is WINDLASS_HOME."""
    path = _history(home, check.site)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "w") as file:
        file.write(json.dumps(asdict(check), sort_keys=True) + "\n")


def past_checks(home: Path, name: str) -> list[SiteCheck]:
    """Return all checks of a site, oldest first; invalid lines are skipped."""
    try:
        lines = _history(home, name).read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            data = decode_json(line)
            results = tuple(CheckResult(**each) for each in data["results"])
            found.append(SiteCheck(**{**data, "results": results, "jobs": tuple(data["jobs"])}))
        except (ValueError, TypeError, KeyError):
            continue  # truncated by a full disk, or written by a later version
    return found


def last_check(home: Path, name: str) -> SiteCheck | None:
    """Return a site's latest check, or None."""
    found = past_checks(home, name)
    return found[-1] if found else None


def _history(home: Path, name: str) -> Path:
    return sites_folder(home) / f"{name}.checks.jsonl"
