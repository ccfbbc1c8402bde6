from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.system.stage import Stage, living
from windlass.record.state import State
from windlass.secrets.vault import Vault

pytestmark = pytest.mark.system

DUMP = "import json, os; print(json.dumps(dict(os.environ)))"
SECRET = f"jE7-planted/secret+value=43{os.getpid()}"  # looked for on the whole machine, where others test as well


def variables(stage: Stage, spec: dict[str, object]) -> dict[str, str]:
    run = stage.launch(spec)
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    found: dict[str, str] = json.loads(stage.log(run))
    return found


def test_nothing_of_the_shell_gets_in(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-shell")
    monkeypatch.setenv("PYTHONPATH", "/from/the/shell")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    found = variables(stage, stage.python(DUMP, vars={"MINE": "yes"}))
    assert "AWS_SECRET_ACCESS_KEY" not in found
    assert "OMP_NUM_THREADS" not in found or found["OMP_NUM_THREADS"] != "64"
    assert "/from/the/shell" not in found["PYTHONPATH"]
    assert found["MINE"] == "yes"
    assert found["WINDLASS_TASK"] == "main"
    assert found["WINDLASS_RANK"] == "0"
    assert found["WINDLASS_ATTEMPT"] == "1"
    assert found["WINDLASS_NUM_REPLICAS"] == "1"
    assert Path(found["WINDLASS_OUT"]).is_absolute()


def test_a_secret_is_in_the_users_process_alone(stage: Stage) -> None:
    Vault(stage.home.vault).set("PLANTED", SECRET.encode())
    spec = stage.python("import os, time; print(len(os.environ['PLANTED']), flush=True); time.sleep(600)", nodes=2)
    spec["env"] = {"secrets": ["PLANTED"]}
    run = stage.launch(spec)
    stage.wait_for_line(run, str(len(SECRET)))
    stage.wait_for_line(run, str(len(SECRET)), rank=1)
    users = {stage.user(run), stage.user(run, rank=1)}
    assert set(living(SECRET)) == users
    run.stop()
    assert stage.end(run) is State.STOPPED


@pytest.mark.parametrize("form", ["PLANTED", {"name": "PLANTED", "as": "file"}], ids=["variable", "file"])
def test_a_secret_that_the_code_reports_reaches_no_file(stage: Stage, form: object) -> None:
    Vault(stage.home.vault).set("PLANTED", SECRET.encode())
    text = (
        "import os; from windlass import report; it = os.environ['PLANTED']; "
        "it = open(it).read() if it[0] == '/' else it; "
        "report.metrics({it: 1.0}, step=1); report.finish(1, 'user-error', f'401 for {it}'); "
        "os.environ.clear(); raise SystemExit(1)"
    )
    spec = stage.python(text)
    spec["env"] = {"secrets": [form]}
    run = stage.launch(spec)
    assert stage.end(run) is State.FAILED, stage.story(run)
    end = run.folder.facts().tasks["main"].attempts[1].end
    assert end is not None
    assert end.message == "401 for [secret PLANTED]"
    for path in run.folder.path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


def test_a_secret_as_a_file(stage: Stage) -> None:
    Vault(stage.home.vault).set("PLANTED", SECRET.encode())
    text = (
        "import os; path = os.environ['PLANTED']; print(oct(os.stat(path).st_mode)[-3:], len(open(path).read()), path)"
    )
    spec = stage.python(text)
    spec["env"] = {"secrets": [{"name": "PLANTED", "as": "file"}]}
    run = stage.launch(spec)
    assert stage.end(run) is State.SUCCEEDED
    mode, length, path = stage.log(run).split()
    assert (mode, length) == ("600", str(len(SECRET)))
    assert not path.startswith(str(run.folder.path))
    deadline = time.monotonic() + 120
    while os.path.exists(path):
        assert time.monotonic() < deadline, "the delivery is still there after the verdict"
        time.sleep(0.05)
