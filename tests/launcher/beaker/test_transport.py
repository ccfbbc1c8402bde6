"""What a transport keeps, sends and takes in, with a service that is a folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from windlass.core.errors import NotFoundError, PreconditionError, WaitTimeoutError
from windlass.core.files import lock
from windlass.launcher.beaker.transport import BeakerTransport
from windlass.runs.store import RunFolder
from windlass.supervise.beaker.bundle import CONTENT, RESULTS
from windlass.supervise.job import BeakerRequest, JobDocument, JobPaths, ReplicaCommand

STATE = PurePosixPath("/weka/far/windlass")
ROOT = STATE / "runs" / "r-abcdefgh"


@dataclass
class FileOf:
    path: str
    size: int


@dataclass
class JobOf:
    rank: int
    results: str


class FolderService:
    """Datasets are folders; one job, whose results are the folder `results`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_reads = 0

    def user(self) -> str:
        return "me"

    def create_dataset(self, name: str, folder: Path, **_: Any) -> str:
        shutil.copytree(folder, self.folder / name, dirs_exist_ok=True)
        return name

    def jobs(self, experiment: str) -> list[JobOf]:
        assert experiment == "ex"
        return [JobOf(rank=1, results="other"), JobOf(rank=0, results="results")]

    def files(self, dataset: str, *, prefix: str = "") -> list[FileOf]:
        base = self.folder / dataset
        found = [FileOf(path.relative_to(base).as_posix(), path.stat().st_size) for path in base.rglob("*.*")]
        return [file for file in found if file.path.startswith(prefix)]

    def read(self, dataset: str, path: str, offset: int = 0, length: int = -1) -> bytes:
        self.num_reads += 1
        content = (self.folder / dataset / path).read_bytes()[offset:]
        return content if length < 0 else content[:length]


@pytest.fixture
def service(tmp_path: Path) -> FolderService:
    return FolderService(tmp_path / "service")


@pytest.fixture
def transport(tmp_path: Path, service: FolderService) -> BeakerTransport:
    run = RunFolder(tmp_path / "r-abcdefgh")
    (run.path / "jobs" / "main-1").mkdir(parents=True)
    (run.path / "jobs" / "main-1" / "submitted.json").write_text('{"id": "ex"}')
    archive = tmp_path / "windlass-1.pyz"
    archive.write_bytes(b"zip")
    found = BeakerTransport(run, service, STATE, archive, site="lab")  # type: ignore[arg-type]
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("pass")
    found.send_folders({ROOT: [("code", code)]}, empty={ROOT: ("journal", "logs")})
    return found


def sync(transport: BeakerTransport, sizes: dict[str, int] | None = None, *, logs: bool = False, **puts: bytes) -> Any:
    header = {
        "root": str(ROOT),
        "appends": [],
        "puts": [f"jobs/main-1/{name}" for name in puts],
        "own": [],
        "sizes": sizes,
        "logs": logs,
        "closed": [],
        "limit": 1 << 20,
    }
    return transport.request("sync", header, puts.values())


def test_all_messages_become_the_bundle_of_the_next_job(
    transport: BeakerTransport, service: FolderService, tmp_path: Path
) -> None:
    document = JobDocument(
        run="r-abcdefgh",
        task="main",
        job=1,
        token="t" * 32,
        paths=JobPaths(str(ROOT)),
        command=ReplicaCommand(("true",), cwd="/"),
        beaker=BeakerRequest(workspace="lab/main"),
    )
    addressed = transport.with_bundle(document)
    owner, _, name = addressed.beaker.bundle.partition("/")
    assert owner == "me"
    folder = tmp_path / "r-abcdefgh" / "jobs" / "main-1"
    (folder / "job.json").write_text(json.dumps(addressed.to_data()))
    sync(transport, job=b"1")
    transport.finish_upload(folder)
    content = json.loads((service.folder / name / CONTENT).read_text())
    assert [command for command, _ in content["messages"]] == ["unpack", "sync"]
    assert content["archive"] == str(STATE / "archives" / "windlass-1.pyz")
    assert (service.folder / name / "windlass.pyz").read_bytes() == b"zip"
    message = (service.folder / name / content["messages"][1][1]).read_bytes()
    assert str(ROOT).encode() in message
    assert str(tmp_path).encode() not in message


def test_news_come_from_the_results_of_the_first_replica_alone(
    transport: BeakerTransport, service: FolderService
) -> None:
    there = service.folder / "results" / RESULTS / "r-abcdefgh" / "jobs" / "main-1"
    there.mkdir(parents=True)
    (there / "link-1.json").write_bytes(b"{}")
    answer, pieces = sync(transport, sizes={})
    assert (answer["deltas"], pieces) == ([["jobs/main-1/link-1.json", 0]], [b"{}"])
    reads = service.num_reads
    transport._looked_at = -10.0
    answer, pieces = sync(transport, sizes={"jobs/main-1/link-1.json": 2})
    assert (answer["deltas"], service.num_reads) == ([], reads)


def test_what_was_received_is_noted_while_nobody_else_receives(
    transport: BeakerTransport, service: FolderService, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = service.folder / "results" / RESULTS / "r-abcdefgh" / "journal"
    there.mkdir(parents=True)
    (there / "0-main.jsonl").write_bytes(b"{}\n")
    noted: list[str] = []

    def note(name: str) -> None:
        with pytest.raises(WaitTimeoutError), lock(transport._folder / "receive.lock", timeout_s=0.0):
            noted.append("nobody holds it")
        noted.append(name)

    monkeypatch.setattr(transport, "_note_received", note)
    sync(transport, sizes={})
    assert noted == ["0-main.jsonl"]


def test_a_file_deleted_after_the_listing_is_passed_over_and_one_that_stays_listed_is_an_error(
    transport: BeakerTransport, service: FolderService, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = service.folder / "results" / RESULTS / "r-abcdefgh" / "journal"
    there.mkdir(parents=True)
    (there / ".main.0.reserve").write_bytes(b"\0")
    job = there.parent / "jobs" / "main-1"
    job.mkdir(parents=True)
    (job / "link-1.json").write_bytes(b"{}")
    read = service.read

    def deleted(dataset: str, path: str, offset: int = 0, length: int = -1) -> bytes:
        if path.endswith(".reserve"):
            (there / ".main.0.reserve").unlink()
            raise NotFoundError(f"dataset {dataset} has no file `{path}`", hint="", code="beaker-not-found")
        return read(dataset, path, offset, length)

    monkeypatch.setattr(service, "read", deleted)
    answer, pieces = sync(transport, sizes={})
    assert (answer["deltas"], pieces) == ([["jobs/main-1/link-1.json", 0]], [b"{}"])

    def unreadable(dataset: str, path: str, offset: int = 0, length: int = -1) -> bytes:
        raise NotFoundError(f"dataset {dataset} has no file `{path}`", hint="", code="beaker-not-found")

    (job / "link-2.json").write_bytes(b"{}")
    monkeypatch.setattr(service, "read", unreadable)
    transport._looked_at = -10.0
    with pytest.raises(NotFoundError, match=r"link-2\.json"):
        sync(transport, sizes={})


def test_a_name_that_leads_out_is_refused(
    transport: BeakerTransport, service: FolderService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = FileOf(f"{RESULTS}/r-abcdefgh/jobs/../../../x.y", 1)
    monkeypatch.setattr(service, "files", lambda dataset, prefix: [outside])
    with pytest.raises(PreconditionError, match="is outside the run's folder"):
        sync(transport, sizes={})
    assert not (tmp_path / "x.y").exists()


def test_a_request_that_needs_a_server_is_refused(transport: BeakerTransport) -> None:
    with pytest.raises(PreconditionError) as caught:
        transport.request("deliver", {"root": str(ROOT)})
    assert caught.value.code == "site-without-ssh"
