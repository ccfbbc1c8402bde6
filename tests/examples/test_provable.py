"""The example of a chain that can be proven: on this machine, in a container, in an archive, and broken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.docker import BASE, DockerLab
from windlass import Run
from windlass.record.manifest import ManifestEntry
from windlass.runs.home import Home
from windlass.runs.outputs import read_manifest
from windlass.runs.store import run_ids

pytestmark = pytest.mark.system

_EXAMPLE = Path(__file__).parents[2] / "examples" / "provable"
_IN_IMAGE = ("--on", "docker", "env.image=Dockerfile", f"env.image.args.BASE={BASE}")
_NUM_LAUNCHES = 20


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The example as a repository of its own; the file `which` makes its image another than that of any other test."""
    folder = tmp_path / "provable"
    shutil.copytree(_EXAMPLE, folder)
    (folder / "which").write_text(str(tmp_path))
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "provable"]):
        subprocess.run(["git", *argv], cwd=folder, check=True)
    return folder


def windlass(folder: Path, *argv: str, code: int = 0) -> str:
    """What a command says, on both streams; fails when it ends with another code."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("windlass")), *argv],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def results(run: Run) -> dict[str, tuple[ManifestEntry, ...]]:
    """What the tasks of a run put out, by task."""
    return {task: read_manifest(run.output(task)).entries for task in ("train", "score")}


def newest(home: Path) -> Run:
    return Run.find("last", home=Home(home))


def test_the_same_bits_here_and_in_a_container_and_an_unchanged_commit_builds_nothing(
    project: Path, home: Path, at_docker: DockerLab
) -> None:
    windlass(project, "launch", "experiment.yaml")
    here = newest(home)
    windlass(project, "archive", "export", here.id, "-o", "provable.tar.gz")  # the README's order: the tree stays clean
    assert "building the image" in windlass(project, "launch", "experiment.yaml", *_IN_IMAGE)
    contained = newest(home)
    assert contained.id != here.id
    assert results(contained) == results(here)
    again = windlass(project, "launch", "experiment.yaml", *_IN_IMAGE, "params.seed=2", "~tasks.score")
    assert "building the image" not in again
    assert "data.tokens" not in newest(home).facts.tasks


def test_an_archive_is_shown_and_rerun_elsewhere_and_verify_names_the_link_that_broke(
    project: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windlass(project, "launch", "experiment.yaml")
    first = newest(home)
    assert "bit-identical" in windlass(project, "verify", first.id)
    windlass(project, "archive", "export", first.id, "-o", str(tmp_path / "run.tar.gz"), "--data")
    corpus = project / "corpus.txt"
    corpus.write_text(corpus.read_text().replace("rope", "rapE"))
    said = windlass(project, "verify", first.id, code=1)
    assert "data corpus" in said
    assert "corpus.txt" in said
    shutil.rmtree(project)
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("WINDLASS_HOME", str(elsewhere))
    windlass(tmp_path, "archive", "import", str(tmp_path / "run.tar.gz"))
    assert "bits per letter" in windlass(tmp_path, "logs", first.id)
    windlass(tmp_path, "rerun", first.id)
    assert results(newest(elsewhere)) == results(first)


def test_twenty_launches_at_once_build_image_and_data_once(project: Path, home: Path, at_docker: DockerLab) -> None:
    argv = ("launch", "experiment.yaml", *_IN_IMAGE, "params.steps=1", "~tasks.score")
    with ThreadPoolExecutor(max_workers=_NUM_LAUNCHES) as pool:
        said = list(pool.map(lambda number: windlass(project, *argv, f"params.seed={number}"), range(_NUM_LAUNCHES)))
    assert sum("building the image" in text for text in said) == 1
    assert sum("data tokens was built:" in text for text in said) == 1
    runs = run_ids(Home(home))
    assert len(runs) == _NUM_LAUNCHES
    alphabets = [json.loads((home / "runs" / run / "out/train/model.json").read_text())["alphabet"] for run in runs]
    assert alphabets[1:] == alphabets[:-1]
