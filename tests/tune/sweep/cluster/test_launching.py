"""What goes to a cluster with a sweep, what is refused before anything is sent, and what its head replies."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any, cast

import pytest

from windlass.backends.site_shell import RawShellResult
from windlass.cluster.nodes.commands import ClusterNode
from windlass.core.errors import NotFoundError, PreconditionError, SpecError, UnreachableError, UsageError
from windlass.launcher.prepare import Options
from windlass.runs.home import Home
from windlass.tune.folder import SweepFolder
from windlass.tune.sweep.cluster.launching import check_python, cluster_named, create_sweep, prepare_cluster_sweep
from windlass.tune.sweep.cluster.reading import fetch_sweep, refresh, send_request
from windlass.tune.sweep.cluster.record import SweepPlace, TrialPlan
from windlass.tune.sweep.finding import has_head

FILE = """
name: climb
tasks: {train: {run: "true", cpus: 2, gpus: 1, memory: 1GiB}}
sweep:
  metric: height
  mode: max
  samples: 1
  trainable: train:climb
  space: {rate: {grid: [0.1, 0.4]}}
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "repo" / "lib"
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text(FILE)
    (folder / "train.py").write_text("def climb(config): ...\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path / "repo", check=True)
    return folder


def _prepare(code: Path, *overrides: str, home: Home, options: Options | None = None) -> Any:
    path = code / "experiment.yaml"
    return prepare_cluster_sweep(path, overrides, options or Options(), name="s", cluster="lab", home=home)


def test_the_head_gets_the_record_the_resources_and_the_pinned_code(code: Path, tmp_path: Path) -> None:
    made = _prepare(code, home=Home(tmp_path / "home"))
    (code / "train.py").write_text("changed after it was pinned\n")
    with tarfile.open(fileobj=io.BytesIO(made.content())) as tar:
        tar.extractall(tmp_path / "there", filter="data")
    there = tmp_path / "there"
    assert TrialPlan.read(there) == TrialPlan(
        resources={"CPU": 2.0, "GPU": 1.0, "memory": float(1 << 30)}, code="code/lib"
    )
    assert (there / "code" / "lib" / "train.py").read_text() == "def climb(config): ...\n"
    assert (there / "sweep.json").exists()


@pytest.mark.parametrize(
    ("override", "code_", "words"),
    [
        ("~sweep.trainable", "sweep-unsupported", "the sweep names none"),
        ("limit.time=1h", "unsupported-setting", "trials on a cluster do not support `limit`"),
        ("tasks.train.nodes=2", "unsupported-setting", "`tasks.train.nodes`"),
        ("tasks.train.gpus=4 x gh200", "unsupported-setting", "`tasks.train.gpus`"),
    ],
)
def test_what_trials_on_a_cluster_do_not_have_is_refused(
    override: str, code_: str, words: str, code: Path, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        _prepare(code, override, home=Home(tmp_path / "home"))
    assert [problem.code for problem in caught.value.problems] == [code_]
    assert words in caught.value.problems[0].message


@pytest.mark.parametrize("option", ["allow_dirty", "best_effort", "reshape", "debug"])
def test_options_that_mean_nothing_there_are_refused(option: str, code: Path, tmp_path: Path) -> None:
    given: Any = {option: True}
    with pytest.raises(SpecError) as caught:
        _prepare(code, home=Home(tmp_path / "home"), options=Options(**given))
    assert caught.value.problems[0].code == "unsupported-setting"
    assert f"`--{option.replace('_', '-')}` is not supported on the cluster lab" in caught.value.problems[0].message


def test_a_name_means_a_cluster_a_site_or_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert cluster_named("lab", home) is None
    (tmp_path / "clusters" / "lab").mkdir(parents=True)
    (tmp_path / "clusters" / "lab" / "id").write_text("lab-1")
    found = cluster_named("lab", home)
    assert found is not None
    assert found.name == "lab"
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "lab.yaml").write_text("{}\n")
    with pytest.raises(UsageError) as caught:
        cluster_named("lab", home)
    assert caught.value.code == "ambiguous-name"


class _Shell:
    name = "h1"

    def __init__(self, journal: bytes) -> None:
        self.journal = journal

    def run_bytes(self, argv: list[str], *, timeout_s: float) -> RawShellResult:
        return RawShellResult(0, self.journal[int(argv[-1]) :], "")


class _Head:
    """A head of a cluster, as far as these functions use one."""

    def __init__(self, *, exits: int | None = None, errors: bytes = b"", journal: bytes = b"") -> None:
        self.exits, self.said = exits, errors
        self.home, self.host, self.shell = self, self, _Shell(journal)
        self.name, self.id = "lab", "lab-1"
        self.stored: list[tuple[str, bytes]] = []

    def start(self, run: str, command: Any) -> None:
        """Start nothing."""

    def follow(self, run: str, reader: Any, **more: Any) -> int | None:
        reader.errors(self.said)
        return self.exits

    def store_file(self, folder: str, name: str, content: bytes) -> None:
        self.stored.append((folder, content))


def test_a_python_that_cannot_run_sweeps_says_what_to_put_into_setup() -> None:
    said = b"Traceback\nModuleNotFoundError: No module named 'windlass'\n"
    with pytest.raises(PreconditionError) as caught:
        check_python(cast("ClusterNode", _Head(exits=1, errors=said)))
    assert caught.value.code == "extra-missing"
    assert "No module named 'windlass'" in caught.value.message
    assert "setup: [\"python3 -m pip install 'windlass[ray,tune]'\"]" in caught.value.hint
    check_python(cast("ClusterNode", _Head(exits=0)))


@pytest.fixture
def sweep(code: Path, tmp_path: Path) -> Path:
    folder = create_sweep(_prepare(code, home=Home(tmp_path / "home")))
    SweepPlace(cluster="lab", id="lab-1", folder="there/s", run="s-1").write(folder)
    return folder


def test_a_journal_is_fetched_in_pieces_of_whole_records(sweep: Path) -> None:
    journal = SweepFolder(sweep).head_journal
    assert fetch_sweep(sweep, cast("ClusterNode", _Head(journal=b"one\ntw"))).is_running
    assert journal.read_bytes() == b"one\n"
    assert has_head(sweep)
    assert not fetch_sweep(sweep, cast("ClusterNode", _Head(exits=0, journal=b"one\ntwo\n"))).is_running
    assert journal.read_bytes() == b"one\ntwo\n"
    assert not has_head(sweep)


def test_a_request_goes_to_the_folder_of_the_head(sweep: Path) -> None:
    head = _Head()
    send_request(sweep, cast("ClusterNode", head), "stop-trial", {"trial": "00001"})
    assert head.stored == [("there/s/control", b'{"what": "stop-trial", "trial": "00001"}')]


@pytest.mark.parametrize(
    ("error", "is_running"),
    [
        (NotFoundError("no cluster `lab`", code="not-found"), False),
        (UnreachableError("cannot connect to h1", code="ssh-unreachable"), True),
    ],
)
def test_a_cluster_that_does_not_respond_leaves_the_last_known_state(
    error: Exception, is_running: bool, sweep: Path
) -> None:
    def find(name: str) -> ClusterNode:
        raise error

    notes: list[str] = []
    refresh(sweep, find, notes.append)
    assert notes == [f"{error.args[0]}; this is the last known state"]
    assert SweepPlace.read(sweep).is_running is is_running


def test_a_cluster_of_the_same_name_is_another_one(sweep: Path) -> None:
    head, notes = _Head(), list[str]()
    head.id = "lab-2"
    refresh(sweep, lambda name: cast("ClusterNode", head), notes.append)
    assert notes == ["the cluster lab of this sweep has ended; this is the last known state"]
    assert not has_head(sweep)
