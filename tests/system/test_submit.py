from __future__ import annotations

import json
import subprocess
from unittest import mock

import pytest

from tests.system.stage import PYTHON, Stage, until
from windlass.backends.registry import backend_for
from windlass.core.json_text import read_json
from windlass.launcher import start
from windlass.launcher.client import job_of
from windlass.plan.site import LOCAL
from windlass.supervise.archive import ensure_archive

pytestmark = pytest.mark.system


SUBMIT = """
import os, sys
from pathlib import Path
from windlass.backends.registry import backend_for
from windlass.plan.site import LOCAL
from windlass.backends.protocol import Rendered
import json
data = json.loads(Path(sys.argv[1]).read_text())
rendered = Rendered(folder=Path(data["folder"]), files=data["files"], argv=tuple(data["argv"]), token=data["token"])
if sys.argv[2] == "die":
    from windlass.backends.local import submit as process_tree
    process_tree.write_json = lambda *args, **kwargs: os.kill(os.getpid(), 9)
print(backend_for(LOCAL).submit(rendered).backend_id)
"""


class Submitting:
    """A job that is rendered and not submitted; its user code leaves a trace of each start."""

    def __init__(self, stage: Stage) -> None:
        stage.write(
            "user.py",
            "import os; open(os.environ['STARTS'], 'a').write(f'1 0 {os.getpid()}\\n')\nimport time; time.sleep(1)\n",
        )
        self.stage = stage
        with mock.patch.object(start, "submit_all", side_effect=SystemExit), pytest.raises(SystemExit):
            stage.launch(stage.task([PYTHON, "-u", "user.py"]))  # furnishes the folder and intends the job
        (self.run,) = stage.runs("play")
        token = self.run.facts.task("main").jobs[1].token
        document = job_of(self.run.folder, self.run.plan, "main", 1, token)
        archive = ensure_archive(stage.home.cache / "archives")
        self.rendered = backend_for(LOCAL).render(document, self.run.folder.job_folder("main", 1), archive)
        self.path = stage.write(
            "rendered.json",
            json.dumps(
                {
                    "folder": str(self.rendered.folder),
                    "files": dict(self.rendered.files),
                    "argv": list(self.rendered.argv),
                    "token": self.rendered.token,
                }
            ),
        )
        stage.write("submit.py", SUBMIT)

    def client(self, how: str = "live") -> subprocess.Popen[str]:
        line = [PYTHON, str(self.stage.code / "submit.py"), str(self.path), how]
        return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)

    def started(self) -> int:
        """How often user code was started, once everything is over."""
        folder = self.rendered.folder
        until((folder / "guard-0.json").exists, "the guard has started its supervisor")
        until(lambda: not self.stage.survivors(self.run, 0.0), "the job has ended")
        return len(self.stage.starts_of())


def test_submitting_twice_makes_one_job(stage: Stage) -> None:
    job = Submitting(stage)
    backend = backend_for(LOCAL)
    first, second = backend.submit(job.rendered), backend.submit(job.rendered)
    assert first == second
    assert job.started() == 1


def test_two_processes_at_once_make_one_job(stage: Stage) -> None:
    job = Submitting(stage)
    clients = [job.client() for _ in range(4)]
    said = {client.communicate(timeout=300)[0] for client in clients}
    assert len(said) == 1
    assert job.started() == 1


def test_a_client_that_dies_between_start_and_record(stage: Stage) -> None:
    job = Submitting(stage)
    dead = job.client("die")
    dead.communicate(timeout=300)
    assert dead.returncode == -9
    assert not (job.rendered.folder / "submitted.json").exists()
    found = backend_for(LOCAL).submit(job.rendered)
    assert job.started() == 1
    guard = read_json(job.rendered.folder / "guard-0.json")
    assert isinstance(guard, dict)
    assert found.backend_id == guard["guard"]
