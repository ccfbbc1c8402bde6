from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from tests.runs.journals import RunScript
from windlass.record import events
from windlass.runs import outputs
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

RUN = "exp-00000001"


@pytest.fixture
def run(home: Path) -> RunFolder:
    script = RunScript(Home(home), RUN).submit().start()
    out = script.run.out("train")
    out.mkdir()
    (out / "result.json").write_text("{}")
    manifest = outputs.write_manifest(out)
    script.job.append(
        events.OUTPUTS,
        task="train",
        attempt=1,
        num_files=1,
        bytes=2,
        digest=manifest.digest,
    )
    found = script.end().close()
    (found.path / "provenance.json").write_text("{}")
    return found


def test_outputs_are_listed_with_digests(windlass: Windlass, run: RunFolder) -> None:
    manifest = outputs.read_manifest(run.out("train"))
    result = windlass("outputs", "ls", RUN)
    assert result.out.splitlines()[0] == f"train  1 file, 2 B, sha256:{manifest.digest}"
    assert manifest.entries[0].sha256 in result.out
    content = json.loads(windlass("outputs", "ls", RUN, "train", "--json").out)
    assert content["schema"] == "windlass.outputs/1"
    assert content["outputs"]["train"]["files"] == [
        {"path": "result.json", "size": 2, "sha256": manifest.entries[0].sha256}
    ]


def test_a_task_that_is_not_there_has_a_nearest_name(windlass: Windlass, run: RunFolder) -> None:
    result = windlass("outputs", "ls", RUN, "trian")
    assert result.code == 4
    assert "hint: did you mean `train`?" in result.err


def test_a_task_without_output_is_noted(windlass: Windlass, home: Path) -> None:
    RunScript(Home(home), RUN).submit().start().end("failed", "user-error").close()
    result = windlass("outputs", "ls", RUN)
    assert (result.code, result.out) == (0, "")
    assert result.err == f"note: task `train` of {RUN} has no output: it is failed\n"
    assert windlass("outputs", "ls", RUN, "train").code == 4


def test_a_pull_and_a_push_name_the_folders(windlass: Windlass, run: RunFolder, tmp_path: Path) -> None:
    result = windlass("outputs", "pull", RUN, "--to", str(tmp_path / "here"))
    assert result.out == f"train  {tmp_path}/here/train\n"
    assert (tmp_path / "here" / "train" / "result.json").read_text() == "{}"
    pushed = json.loads(windlass("outputs", "push", RUN, str(tmp_path / "there"), "--json").out)
    assert pushed["places"] == {"train": f"{tmp_path}/there/{RUN}/train"}
    assert (tmp_path / "there" / RUN / "train.manifest.json").exists()


def test_a_changed_output_is_not_pulled(windlass: Windlass, run: RunFolder, tmp_path: Path) -> None:
    (run.out("train") / "result.json").write_text("[]")
    result = windlass("outputs", "pull", RUN, "--to", str(tmp_path / "here"))
    assert result.code == 8
    assert "does not match its sha256 in the manifest" in result.err
    assert not (tmp_path / "here" / "train" / "result.json").exists()


def test_an_archive_that_is_none_is_refused(windlass: Windlass, home: Path, tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"hello")
    result = windlass("archive", "import", str(tmp_path / "x.tar.gz"))
    assert result.code == 8
    assert "is not a valid archive of a run" in result.err
    assert windlass("archive", "import", str(tmp_path / "none.tar.gz")).code == 4
    assert list(Home(home).runs.iterdir()) == []


def test_a_run_that_goes_on_is_not_exported(windlass: Windlass, home: Path, tmp_path: Path) -> None:
    RunScript(Home(home), RUN).submit().start().close()
    result = windlass("archive", "export", RUN, "-o", str(tmp_path / "x.tar.gz"))
    assert result.code == 8
    assert f"error: run {RUN} is running and has not ended" in result.err
    assert windlass("archive", "export", RUN, "-o", str(tmp_path / "x.zip")).code == 2
    assert list(tmp_path.glob("x.*")) == []
