from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from tests.golden.make import FOLDER, GOLDEN
from tests.golden.normal import Normaliser
from tests.golden.renew import main
from tests.golden.stage import compact, opened

RUNS_PROCESSES = {"exports.yaml", "journals.yaml"}


def check(name: str, folder: Path) -> None:
    """Fail with a unified diff when a golden file is no longer what windlass writes."""
    before = dict(os.environ)
    with opened(folder) as stage:
        found = GOLDEN[name](stage)
    assert dict(os.environ) == before
    kept, now = (text.splitlines(keepends=True) for text in ((FOLDER / name).read_text(), found))
    difference = "".join(difflib.unified_diff(kept, now, f"tests/golden/files/{name}", "now"))
    assert not difference, f"{difference}\nmeant? python -m tests.golden.renew {Path(name).stem}"


@pytest.mark.parametrize("name", sorted(set(GOLDEN) - RUNS_PROCESSES))
def test_written_as_before(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.system
@pytest.mark.parametrize("name", sorted(RUNS_PROCESSES))
def test_run_as_before(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(GOLDEN)


def test_an_unknown_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 2
    assert "unknown golden file plan: use plans," in capsys.readouterr().err


def test_what_differs_between_two_runs_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "home" / "runs" / "x-abcdefgh").mkdir(parents=True)
    normal = Normaliser(tmp_path, tmp_path / "repository")
    data = {"at": 1.5, "run": "x-abcdefgh", "path": f"{tmp_path}/out", "digest": "a" * 64, "end": {"cause": "ok"}}
    assert normal.data(data) == {
        "at": "<at>",
        "run": "x-<id>",
        "path": "<root>/out",
        "digest": "<sha256>",
        "end": {"cause": "ok"},
    }


def test_a_compact_value_keeps_what_is_set() -> None:
    data = {"a": 0, "b": "", "c": {"d": None}, "e": {"f": 1, "g": []}, "h": ["", 0]}
    assert compact(data) == {"e": {"f": 1}, "h": ["", 0]}
