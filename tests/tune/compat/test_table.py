"""The table for users of Ray Tune names everything that Ray Tune exports, and what it calls covered is there."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tune.compat.ported import NEEDS_MORE, PORTED
from windlass import tune

PAGE = Path(__file__).parents[3] / "docs" / "tune-for-ray-users.md"
MODULES = ("ray.tune", "ray.tune.schedulers", "ray.tune.search", "ray.tune.stopper", "ray.tune.logger")
MORE = {
    "ray.tune.schedulers.pb2": ("PB2",),
    "ray.tune.schedulers.resource_changing_scheduler": ("DistributeResources", "DistributeResourcesToTopJob"),
}
OURS_ELSEWHERE = {"Searcher", "LoggerCallback", "CSVLoggerCallback", "JsonLoggerCallback", "TBXLoggerCallback"}
ABSENT = {"SearchAlgorithm", "SearchGenerator", "pretty_print"}


def rows() -> dict[str, list[str]]:
    """The cells of a row, by each name in its first one."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) >= 3:
            found.update(dict.fromkeys(re.findall(r"`([\w.]+)`", cells[0]), cells))
    return found


def exported() -> Iterator[tuple[str, Any]]:
    """Every public name of Ray Tune, with what it is."""
    for module in MODULES:
        home = importlib.import_module(module)
        yield from (
            (name, getattr(home, name)) for name in home.__all__ if not name.startswith("_") and not name.isupper()
        )
    for module, names in MORE.items():
        yield from ((name, getattr(importlib.import_module(module), name)) for name in names)


def parameters(thing: Any) -> list[str]:
    """Names of the arguments that a user may give."""
    try:
        found = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in found if not name.startswith("_")]


@pytest.mark.system  # importing Ray Tune takes seconds
def test_every_name_and_parameter_of_ray_stands_in_the_table(need: Callable[[str], None]) -> None:
    need("ray")
    table, missing = rows(), []
    for name, thing in exported():
        if name not in table:
            missing.append(name)
        else:
            missing += [f"{name}({one})" for one in parameters(thing) if f"`{one}`" not in " ".join(table[name])]
    assert sorted(set(missing)) == []


def test_what_is_called_covered_is_there() -> None:
    for name in sorted(name for name in rows() if name not in ABSENT and "." not in name):
        check_covered(name)


def check_covered(name: str) -> None:
    homes = [tune, tune.schedulers, tune.search, tune.stopper, tune.logger]
    found = [getattr(home, name) for home in homes if hasattr(home, name)]
    if name in ("AxSearch", "BayesOptSearch", "HEBOSearch", "HyperOptSearch", "NevergradSearch", "ZOOptSearch"):
        return
    if name == "TuneBOHB":
        found = [importlib.import_module("windlass.tune.search.bohb").TuneBOHB]
    assert found or name in PORTED | NEEDS_MORE, f"windlass has no {name}"
    if found and inspect.isclass(found[0]) and name not in ("run", "Experiment"):
        said = re.findall(r"`(\w+)`", rows()[name][1].partition(";")[0])
        ours = set(parameters(found[0])) | set(dir(found[0]))
        assert [one for one in said if one not in ours and "kwargs" not in ours] == [], name
