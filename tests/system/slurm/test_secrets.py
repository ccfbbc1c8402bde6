"""A planted secret, and a search of everything that a run at a Slurm site leaves or shows."""

from __future__ import annotations

import base64
import contextlib
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.slurm.slurm_stage import SITE, SlurmStage
from tests.system.stage import PYTHON, until
from windlass import Options, Run
from windlass.record.state import State

pytestmark = pytest.mark.system

SECRET = f"qV3-planted/secret+value=44&{os.getpid()}"  # looked for on the whole machine, where others test as well
_RAW = SECRET.encode()
FORMS = (_RAW, base64.b64encode(_RAW), _RAW.hex().encode(), urllib.parse.quote(SECRET, safe="").encode())

_SHOUT = """
import base64, json, os, sys, time, urllib.parse
it = os.environ["PLANTED"]
print(len(it), flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
raw = it.encode()
forms = [it, base64.b64encode(raw).decode(), raw.hex(), urllib.parse.quote(it, safe=""), json.dumps([it]), repr(it)]
for form in forms:
    print("out", form, flush=True)
    print("err", form, file=sys.stderr, flush=True)
from windlass import report
report.metrics({it: 1.0}, step=1)
report.finish(1, "user-error", f"401 for {it}")
raise ValueError(it)
"""


@pytest.fixture(params=["slurm_stage", "accounting_stage", "far_stage"], ids=["here", "with accounting", "over ssh"])
def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SlurmStage:
    """The secret comes from the client's environment, which is the easiest one to pass on by mistake."""
    found: SlurmStage = request.getfixturevalue(request.param)
    monkeypatch.setenv("WINDLASS_SECRET_PLANTED", SECRET)
    found.write("shout.py", _SHOUT)
    return found


def launch(stage: SlurmStage, **limit: str) -> Run:
    spec = stage.task([PYTHON, "-u", "shout.py"], nodes=2)
    spec["env"] = {"secrets": ["PLANTED"], "vars": {"GO": str(stage.code.parent / "go")}}
    spec["limit"] = limit
    is_far = (stage.code / ".git").exists()
    return stage.launch(spec, options=Options(on=SITE, snapshot=is_far, allow_dirty=not is_far))


def test_a_secret_is_where_the_users_code_is_and_nowhere_else(stage: SlurmStage) -> None:
    run = launch(stage, time="10m", per_job="2m")
    until(lambda: len(holders()) >= 2, f"user code runs: {stage.queue()}", timeout_s=300)
    assert sorted(holders().values()) == [f"{PYTHON} -u shout.py"] * 2
    assert shown_on_command_lines(*FORMS, run.facts.task("main").jobs[1].token.encode()) == []
    assert len(stage.queue()) == 2, "the next link is queued"
    assert told_by_slurm(stage, *FORMS, run.facts.task("main").jobs[1].token.encode()) == []
    assert delivered(stage) != []
    assert found_below(stage.lab.folder, *FORMS, run.facts.task("main").jobs[1].token.encode()) == []
    assert len(found_below(stage.lab.folder / "state", run.id.encode())) >= 4, "scripts and environments are seen"
    (stage.code.parent / "go").touch()
    assert stage.end(run) is State.FAILED, stage.story(run)
    run.wait(timeout_s=300)
    assert "401 for [secret PLANTED]" in stage.story(run)
    assert stage.log(run, 1, 1).count("[secret PLANTED]") >= 12
    stage.wait_until_queue_is_empty()
    assert delivered(stage) == []
    assert told_by_slurm(stage, *FORMS) == []
    for folder in (stage.lab.folder, stage.home.path, stage.code.parent / "cluster", stage.code):
        assert found_below(folder, *FORMS) == []


def test_the_secret_of_a_run_that_never_begins_is_taken_away(stage: SlurmStage) -> None:
    blocker = stage.lab.command(
        *("sbatch", "--parsable", "--nodes=4", "--exclusive", "--time=20", "--output=/dev/null", "--wrap=sleep 900")
    )
    run = launch(stage)
    assert delivered(stage) != []
    run.stop()
    assert stage.end(run) is State.STOPPED, stage.story(run)
    assert delivered(stage) == []
    stage.lab.command("scancel", blocker)
    stage.wait_until_queue_is_empty()


def holders() -> dict[int, str]:
    """Command lines of the processes with the secret in their environment, this one left out."""
    own = Path("/proc/self").resolve().name
    found = {}
    for pid, name, text in _process_files():
        if name == "environ" and _RAW in text and pid != own:
            with contextlib.suppress(OSError):
                found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def shown_on_command_lines(*words: bytes) -> list[str]:
    """Command lines that hold one of some words."""
    return [
        text.decode(errors="replace")
        for _, name, text in _process_files()
        if name == "cmdline" and any(word in text for word in words)
    ]


def _process_files() -> Iterator[tuple[str, str, bytes]]:
    for entry in Path("/proc").iterdir():
        for name in ("cmdline", "environ") if entry.name.isdigit() else ():
            with contextlib.suppress(OSError):
                yield entry.name, name, (entry / name).read_bytes()


def told_by_slurm(stage: SlurmStage, *words: bytes) -> list[str]:
    """Questions whose answer holds one of some words."""
    ids = list(stage.queue())
    asked = [["scontrol", "show", "job", "-dd"], ["squeue", "--array", "--states=all", "--Format=comment:200,name:200"]]
    asked += [["scontrol", "write", "batch_script", number, "-"] for number in ids]
    if stage.lab.options.has_accounting:
        asked += [["sacct", "--parsable", "--starttime=now-1hours", "--format=ALL"]]
        asked += [["sacct", "--starttime=now-1hours", option, "-j", ",".join(ids)] for option in ("--env-vars", "-B")]
    answers = [(" ".join(argv), stage.lab.command(*argv, check=False).encode()) for argv in asked]
    assert answers[0][1]
    return [question for question, answer in answers if any(word in answer for word in words)]


def found_below(folder: Path, *words: bytes) -> list[str]:
    """Files that hold one of some words: Slurm's state, spools, logs and database, runs, journals, checkouts."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            is_plain = path.is_file() and not path.is_symlink() and not path.is_relative_to(folder / "gpu")
            if is_plain and "delivery" not in path.parts:
                content = path.read_bytes()
                found += [str(path)] if any(word in content for word in words) else []
    return found


def delivered(stage: SlurmStage) -> list[Path]:
    """Files with secrets that lie ready for supervisors."""
    here, there = stage.home.path, stage.code.parent / "cluster" / "windlass"
    return [path for folder in (here, there) for path in (folder / "delivery").glob("*") if path.is_file()]
