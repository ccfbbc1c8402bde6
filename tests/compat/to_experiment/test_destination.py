"""The place of `--on`, and what comes up while a launch is brought there."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.compat.to_experiment.constraints import priority_at, retry_policy, size_bytes_of
from windlass.compat.to_experiment.destination import Destination, destination_at
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics
from windlass.core.errors import SpecError, WindlassError

_SITE = """
name: lab
scheduler: {priority: {high: {nice: -5}}}
partitions: {big: {gpus: 8}}
fs: {shared: /shared}
brought: {paths: {/weka/a: /shared/a}}
"""


def test_this_machine_has_no_profile(tmp_path: Path) -> None:
    paths = {"/weka": "/data"}
    assert destination_at("local", tmp_path, paths=paths) == Destination(paths=paths)
    assert destination_at("podman", tmp_path).kind == "docker"


def test_a_site_brings_its_paths_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "lab.yaml").write_text(_SITE)
    place = destination_at("lab/big", tmp_path, paths={"/weka/a": "/mine"})
    assert (place.partition, dict(place.paths), place.gpus_per_node(("big",))) == ("big", {"/weka/a": "/mine"}, 8)
    with pytest.raises(WindlassError):
        destination_at("nowhere", tmp_path)


@pytest.mark.parametrize(
    ("wish", "kind", "there", "notes"),
    [
        ("high", "slurm", "high", 0),
        ("low", "slurm", "normal", 1),
        ("immediate", "local", "urgent", 1),
        ("immediate", "beaker", "urgent", 0),
    ],
)
def test_a_priority_is_what_the_place_has(wish: str, kind: str, there: str, notes: int) -> None:
    diagnostics = ConversionDiagnostics(code="x")
    place = Destination(kind=kind, priorities=frozenset({"normal", "high"}))
    assert (priority_at(wish, place, diagnostics), len(diagnostics.notes)) == (there, notes)


def test_what_is_refused_is_told_all_at_once() -> None:
    diagnostics = ConversionDiagnostics(code="x")
    assert size_bytes_of("--memory", "2GiB", diagnostics) == 2 << 30
    assert size_bytes_of("--memory", "many", diagnostics) is None
    assert size_bytes_of("--memory", None, diagnostics) is None
    diagnostics.refuse("no", "yes")
    with pytest.raises(SpecError) as caught:
        diagnostics.check()
    assert [problem.code for problem in caught.value.problems] == ["x", "x"]


def test_what_beaker_must_not_resume_is_not_started_again() -> None:
    assert (retry_policy(2, is_resumed=True).failed, retry_policy(2, is_resumed=False).interrupted) == (2, 0)
