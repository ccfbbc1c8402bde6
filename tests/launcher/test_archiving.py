"""Archives of real runs: carried to a home that knows nothing, shown, verified, run again; attacked and cut off."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.launcher.deadly import killed_at
from tests.system.stage import PYTHON, Stage
from windlass import Options, Run
from windlass.cli.program import main
from windlass.core.errors import PreconditionError, UsageError
from windlass.launcher.verify.verify import verify
from windlass.plan.plan import PLAN_SCHEMA
from windlass.record.state import State
from windlass.runs.archive.contents import LIST, Contents, Item
from windlass.runs.archive.origin import is_imported
from windlass.runs.archive.stream import member
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.secrets.lookup import open_secrets

pytestmark = pytest.mark.system

PROGRAM = """
import os, sys
from pathlib import Path
from windlass import report
out, text = Path(sys.argv[1]), Path(sys.argv[2]).read_text()
print("hello from the job")
with report.checkpoint_dir(step=1) as folder:
    (folder / "w").write_text("weights")
(out / "deep").mkdir()
(out / "deep" / "result.txt").write_text(text.upper())
os.symlink("deep/result.txt", out / "latest")
os.symlink("/etc/hostname", out / "outside")
"""


def git(stage: Stage, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=stage.code, check=True, capture_output=True)


@pytest.fixture
def run(stage: Stage) -> Run:
    """A run of a commit that has a parent, with data, a checkpoint, and links in its output."""
    git(stage, "init", "-q")
    stage.write("data.txt", "words")
    stage.write("user.py", "old")
    git(stage, "add", "-A")
    git(stage, "commit", "-qm", "first")
    stage.write("user.py", PROGRAM)
    spec = {
        "data": {"text": "file:data.txt"},
        "tasks": {"main": {"run": [PYTHON, "user.py", "${out}", "${data.text}"]}},
    }
    stage.experiment(spec)
    git(stage, "add", "-A")
    git(stage, "commit", "-qm", "second")
    found = stage.launch(spec, options=Options())
    assert stage.end(found) is State.SUCCEEDED, stage.story(found)
    return found


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Another machine's home, as far as windlass can tell."""
    home = Home(tmp_path / "elsewhere")
    monkeypatch.setenv("WINDLASS_HOME", str(home.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other-cache"))
    return home


def findings(run: RunFolder) -> dict[str, str]:
    return {found.what: found.status for found in verify(run)}


def test_a_run_is_carried_shown_verified_and_run_again(
    stage: Stage, run: Run, elsewhere: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "run.tar.gz"
    made = run.export(archive, checkpoints=True, data=True)
    assert made.left_out == {"run/out/main/outside": "a link out of the run: /etc/hostname"}
    shutil.rmtree(stage.home.path)
    shutil.rmtree(stage.code)

    found = Run.import_archive(archive)
    assert found.id == run.id
    assert found.state is State.SUCCEEDED
    assert (found.output("main") / "latest").read_text() == "WORDS"
    assert main(["show", found.id]) == 0
    assert main(["logs", found.id]) == 0
    assert "hello from the job" in capsys.readouterr().out
    statuses = findings(found.folder)
    proven = {"journal", "plan", "code", "data text", "checkpoint main", "outputs main"}
    assert {what for what, status in statuses.items() if status == "ok"} >= proven, list(verify(found.folder))
    assert "failed" not in statuses.values()

    again = found.rerun()
    assert again.wait(300.0) is State.SUCCEEDED
    assert (again.output("main") / "deep" / "result.txt").read_text() == "WORDS"
    assert again.plan.plan_hash == found.plan.plan_hash

    found.export(tmp_path / "again.tar.gz", checkpoints=True, data=True)
    first, second = contents(archive), contents(tmp_path / "again.tar.gz")
    assert [item for item in first.items if item.path != "ro-crate-metadata.json"] == [
        item for item in second.items if item.path != "ro-crate-metadata.json"
    ]
    with pytest.raises(PreconditionError) as caught:
        found.retry()
    assert caught.value.code == "run-imported"
    with pytest.raises(PreconditionError) as caught:
        Run.import_archive(archive)
    assert caught.value.code == "already-exists"
    assert not [path for path in elsewhere.runs.iterdir() if path.name.startswith(".import")]


def test_prepared_data_that_does_not_travel_is_told_and_made_again(
    stage: Stage, elsewhere: Home, tmp_path: Path
) -> None:
    stage.write("raw.txt", "words")
    git(stage, "init", "-q")
    data = {"raw": "file:raw.txt", "tokens": {"from": "raw", "build": "tr a-z A-Z < ${from} > ${out}/t"}}
    spec = {"data": data, "tasks": {"main": {"run": "cp ${data.tokens}/t ${out}/t"}}}
    stage.experiment(spec)
    git(stage, "add", "-A")
    git(stage, "commit", "-qm", "first")
    run = stage.launch(spec, options=Options())
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    made = run.export(tmp_path / "run.tar.gz", data=True)
    key = run.plan.pins.builds["tokens"].key
    assert made.left_out == {"data/tokens": f"prepared data; a rerun builds it again: key {key[:12]}"}
    found = Run.import_archive(tmp_path / "run.tar.gz")
    told = {each.what: each for each in verify(found.folder)}["data tokens"]
    assert (told.status, told.message) == ("skipped", "not included in the archive; a rerun builds it again")
    again = found.rerun()
    assert again.wait(300.0) is State.SUCCEEDED
    assert (again.output("main") / "t").read_text() == "WORDS"


def contents(path: Path) -> Contents:
    with tarfile.open(path) as archive:
        first = archive.next()
        assert first is not None
        file = archive.extractfile(first)
        assert file is not None
        return Contents.from_bytes(file.read())


def test_the_same_run_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run.export(tmp_path / f"{name}.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_zstd_carries_it_too(run: Run, elsewhere: Home, tmp_path: Path, need: Callable[[str], None]) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("needs zstd: apt-get install zstd")
    run.export(tmp_path / "run.tar.zst")
    found = Run.import_archive(tmp_path / "run.tar.zst")
    statuses = findings(found.folder)
    assert statuses["checkpoint main"] == "skipped"
    assert statuses["code"] == "ok"
    assert sorted(path.name for path in tmp_path.glob("*run.tar*")) == ["run.tar.zst"]


def test_a_crate_of_others_tools_is_in_it(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "run.tar.gz", data=True)
    with tarfile.open(tmp_path / "run.tar.gz") as archive:
        file = archive.extractfile(f"{run.id}/ro-crate-metadata.json")
        assert file is not None
        graph = {each["@id"]: each for each in json.load(file)["@graph"]}
        names = set(archive.getnames())
    for each in graph.values():
        if "File" in each["@type"]:
            assert f"{run.id}/{each['@id']}" in names
    assert graph["#author"]["name"] == "a"
    assert graph["#task-main"]["result"] == [{"@id": "run/out/main/deep/result.txt"}]
    assert {"@id": "#data-text"} in graph["#task-main"]["object"]


def test_what_cannot_be_exported_is_said(run: Run, stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run.export(tmp_path / "run.zip")
    (tmp_path / "run.tar.gz").write_text("mine")
    with pytest.raises(PreconditionError, match="exists"):
        run.export(tmp_path / "run.tar.gz")
    assert (tmp_path / "run.tar.gz").read_text() == "mine"
    live = stage.launch(stage.python("import time; time.sleep(600)"))
    with pytest.raises(PreconditionError) as caught:
        live.export(tmp_path / "live.tar.gz")
    assert caught.value.code == "run-active"
    live.stop(now=True)


def tampered(archive: Path, path: str, change: Callable[[bytes], bytes], *, heals_list: bool) -> Path:
    """A copy with one file changed, and the list made to fit it where the attacker is that careful."""
    listing = contents(archive)
    new: dict[str, bytes] = {}
    with tarfile.open(archive) as old:
        for info in old:
            file = old.extractfile(info) if info.isreg() else None
            content = file.read() if file is not None else b""
            new[info.name] = change(content) if info.name == f"{listing.run_id}/{path}" else content
    if heals_list:
        content = new[f"{listing.run_id}/{path}"]
        fitting = replace(
            next(item for item in listing.items if item.path == path),
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )
        listing = replace(listing, items=tuple(fitting if item.path == path else item for item in listing.items))
    target = archive.with_name("tampered.tar.gz")
    with tarfile.open(target, mode="w:gz") as archived:
        text = listing.to_bytes()
        archived.addfile(member(f"{listing.run_id}/{LIST}", len(text)), io.BytesIO(text))
        for item in listing.items:
            content = new[f"{listing.run_id}/{item.path}"]
            info = member(
                f"{listing.run_id}/{item.path}",
                len(content),
                is_executable=item.is_executable,
                mtime=item.mtime,
                link=item.link,
            )
            archived.addfile(info, io.BytesIO(content))
    return target


TAMPERINGS = [
    ("run/out/main/deep/result.txt", False, "result.txt does not match its sha256"),
    ("run/out/main/deep/result.txt", True, "differs from the file that the job recorded"),
    ("run/out/main.manifest.json", True, "main.manifest.json is damaged"),
    ("run/plan.json", True, "the plan was changed"),
    ("run/code/user.py", True, "is not a checkout of"),
    ("code.pack", True, "the code in the archive is not commit"),
    ("data/text/data.txt", True, "data `text` differs from what the run pinned"),
    ("run/journal/main.0.wj", True, "records of its journal are damaged"),
]


def test_a_changed_archive_is_refused_and_leaves_nothing(run: Run, elsewhere: Home, tmp_path: Path) -> None:
    run.export(tmp_path / "run.tar.gz", data=True)
    for path, heals_list, said in TAMPERINGS:
        bad = tampered(
            tmp_path / "run.tar.gz", path, spoilt if "plan" not in path else replanned, heals_list=heals_list
        )
        with pytest.raises(PreconditionError) as caught:
            Run.import_archive(bad)
        assert said in caught.value.message
        assert caught.value.code == "archive-damaged"
        assert list(elsewhere.runs.iterdir()) == []


def test_a_run_whose_provenance_cannot_be_read_is_refused(run: Run, elsewhere: Home, tmp_path: Path) -> None:
    run.export(tmp_path / "run.tar.gz")
    bad = tampered(tmp_path / "run.tar.gz", "run/provenance.json", lambda _: b"[]", heals_list=True)
    with pytest.raises(PreconditionError, match=r"provenance\.json is damaged"):
        Run.import_archive(bad)
    assert list(elsewhere.runs.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["run/mirror.json", "run/imported.json", "run/x/y", "elsewhere", "data/text", "run/out", "code.pack/x"]
)
def test_what_no_export_writes_is_refused(elsewhere: Home, tmp_path: Path, path: str) -> None:
    content = b"{}"
    item = Item(path=path, size=2, sha256=hashlib.sha256(content).hexdigest())
    listing = Contents(run_id="exp-00000001", items=(item,))
    with tarfile.open(tmp_path / "x.tar.gz", mode="w:gz") as archive:
        text = listing.to_bytes()
        archive.addfile(member(f"exp-00000001/{LIST}", len(text)), io.BytesIO(text))
        archive.addfile(member(f"exp-00000001/{path}", 2), io.BytesIO(content))
    with pytest.raises(PreconditionError, match="unexpected file"):
        Run.import_archive(tmp_path / "x.tar.gz")
    assert list(elsewhere.runs.iterdir()) == []


def spoilt(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def replanned(content: bytes) -> bytes:
    return content.replace(b"user.py", b"evil.py")


def test_no_room_is_said_before_anything_is_written(
    run: Run, elsewhere: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.export(tmp_path / "run.tar.gz")
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr("windlass.launcher.archive.importing.shutil.disk_usage", lambda path: usage)
    with pytest.raises(PreconditionError) as caught:
        Run.import_archive(tmp_path / "run.tar.gz")
    assert caught.value.code == "disk-full"
    assert list(elsewhere.runs.iterdir()) == []


_CALLS = ("fsync", "rename", "replace", "link", "symlink", "utime", "mkdir")


def test_a_full_disk_leaves_nothing(run: Run, elsewhere: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("windlass.runs.archive.stream.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run.export(tmp_path / "run.tar.gz")
    assert list(tmp_path.glob("*run.tar*")) == []
    run.export(tmp_path / "run.tar.gz")
    with monkeypatch.context() as patch:
        patch.setattr("windlass.runs.archive.contents.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            Run.import_archive(tmp_path / "run.tar.gz")
    assert list(elsewhere.runs.iterdir()) == []
    assert Run.import_archive(tmp_path / "run.tar.gz").id == run.id


def test_a_killed_export_leaves_no_archive(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "run.tar.gz"
    number, codes = 1, []
    while not target.exists() and number < 40:
        codes.append(killed_at(number, _CALLS, "archive", "export", run.id, "-o", str(target)))
        number += 1
    assert codes.count(-9) >= 3
    whole = target.read_bytes()
    run.export(tmp_path / "other.tar.gz")
    assert (tmp_path / "other.tar.gz").read_bytes() == whole
    (tmp_path / "run.tar.gz").unlink()
    run.export(tmp_path / "run.tar.gz")  # and takes away what the killed ones left
    assert [path.name for path in tmp_path.glob(".run.tar.gz*")] == []


def test_a_killed_import_leaves_no_run(run: Run, elsewhere: Home, tmp_path: Path) -> None:
    archive = tmp_path / "run.tar.gz"
    run.export(archive, data=True)
    num_killed = 0
    for number in (2, 20, 40, 50, 56, 60, 64, 70, 140):
        code = killed_at(number, _CALLS, "archive", "import", str(archive))
        if code != -9:
            assert code in (0, PreconditionError.exit_code)
            break
        num_killed += 1
        whole = elsewhere.runs / run.id
        assert not whole.exists() or findings(RunFolder(whole))["code"] == "ok"
        if whole.exists():
            break
    assert num_killed >= 4
    if not (elsewhere.runs / run.id).exists():
        Run.import_archive(archive)
    found = Run.find(run.id, elsewhere)
    assert is_imported(found.folder)
    assert "failed" not in findings(found.folder).values()
    for left in elsewhere.runs.glob(".import.*"):
        os.utime(left, (1.0, 1.0))
    assert main(["gc"]) == 0
    assert [path.name for path in elsewhere.runs.iterdir()] == [run.id]


LEAKING = """
import gzip, os, sys
from pathlib import Path
out, value = Path(sys.argv[1]), os.environ["API_KEY"]
(out / "config.json").write_text('{"key": "' + value.replace("&", "\\\\u0026") + '"}')
(out / "large.bin").write_bytes(b"x" * ((1 << 20) - 5) + value.encode() + b"y" * 100)
with gzip.open(out / "log.gz", "wb") as file:
    file.write(b"z" * 5000 + value.encode())
(out / "fine.txt").write_text("nothing")
"""


def test_an_archive_with_the_value_of_a_secret_is_refused(stage: Stage, tmp_path: Path) -> None:
    value = "sk-Qw3&rTy+uI0pA5dF"
    open_secrets(stage.home.path).store.set("API_KEY", value.encode())
    open_secrets(stage.home.path).store.set("OTHER_KEY", b"never-written-anywhere")
    stage.write("leak.py", LEAKING)
    spec = {"env": {"secrets": ["API_KEY"]}, "tasks": {"main": {"run": [PYTHON, "leak.py", "${out}"]}}}
    run = stage.launch(spec)
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    target = tmp_path / "run.tar.gz"
    with pytest.raises(PreconditionError) as caught:
        run.export(target)
    assert caught.value.code == "archive-secrets"
    held = [f"run/out/main/{name} contains API_KEY" for name in ("config.json", "large.bin", "log.gz")]
    assert caught.value.message == f"the archive would contain secrets: {'; '.join(held)}"
    assert caught.value.hint.endswith(f"windlass archive export {run.id} --with-secrets")
    assert value not in str(caught.value)
    assert not target.exists()
    assert run.export(target, with_secrets=True).path == target
    for name in ("config.json", "large.bin", "log.gz"):
        (run.folder.out("main") / name).unlink()
    assert run.export(tmp_path / "clean.tar.gz").num_files > 0


def test_a_run_of_another_version_is_named_as_such(run: Run, elsewhere: Home, tmp_path: Path) -> None:
    """Neither its archive nor its plan is called damaged."""
    plan = run.folder.path / "plan.json"
    plan.write_text(plan.read_text().replace(PLAN_SCHEMA, "windlass.plan/1"))
    with pytest.raises(PreconditionError, match="another version of windlass") as caught:
        run.export(tmp_path / "run.tar.gz")
    assert caught.value.code == "other-version"
