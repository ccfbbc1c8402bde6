"""Runs whose storage only the jobs see: everything goes up as datasets and comes down from results."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.beaker.beaker_stage import SITE, BeakerStage
from tests.system.stage import PYTHON, until
from windlass import Options, Run
from windlass.record.state import State
from windlass.runs.home import Home
from windlass.testing.beaker import FakeBeaker

pytestmark = pytest.mark.system

_PROFILE = """\
name: lab
kind: beaker
fs: {{shared: "{shared}", stall: 12s}}
beaker:
  workspace: lab/main
  clusters: [lab/alpha]
  image: beaker:me/image
  mounts: {mounts}
partitions:
  lab/alpha: {{gpus: 8, gpu_type: fake, notice: 5s}}
net: {{interface: lo, interconnect: none}}
"""

_SAVES = """
import os, sys, time
from windlass import report
found = report.latest_checkpoint()
step = int((found / "step").read_text()) if found else 0
print("begins at", step, flush=True)
for step in range(step + 1, 41):
    time.sleep(0.1)
    if step % 5 == 0 or report.should_stop():
        with report.checkpoint_dir(step=step) as folder:
            (folder / "step").write_text(str(step))
        print("saved", step, flush=True)
    if report.should_stop():
        report.finish(75)
        sys.exit(75)
report.place().out.joinpath("done").write_text(str(step))
"""


@pytest.fixture
def laptop(tmp_path: Path, fake: FakeBeaker, monkeypatch: pytest.MonkeyPatch) -> Iterator[BeakerStage]:
    """A stage with a home of its own; jobs see a bucket under a path that is nowhere on this machine."""
    home = tmp_path / "laptop"
    home.mkdir()
    monkeypatch.setenv("WINDLASS_HOME", str(home))
    stage = BeakerStage(tmp_path, Home(home), fake, "courier")
    mounts = f"[{{path: /weka/far, weka: {bucket_of(stage)}}}]"
    write_site(stage, shared="/weka/far/me", mounts=mounts)
    yield stage
    stage.close()


def bucket_of(stage: BeakerStage) -> str:
    """The bucket of this stage alone."""
    return "far-" + stage.home.path.parent.name.replace("_", "-").lower()


def write_site(stage: BeakerStage, *, shared: str, mounts: str) -> None:
    (stage.home.path / "sites" / f"{SITE}.yaml").write_text(_PROFILE.format(shared=shared, mounts=mounts))


def launch(stage: BeakerStage, spec: dict[str, object]) -> Run:
    """From a commit: in place the code could not run elsewhere."""
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "code"]):
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *author, *argv], cwd=stage.code, check=True)
    return stage.launch(spec, options=Options(on=SITE, snapshot=True))


def wait_for_far_line(stage: BeakerStage, run: Run, line: str) -> None:
    """Wait for a line of the first replica's log, on the storage that only jobs see."""
    path = stage.fake.weka(bucket_of(stage)) / "me" / "windlass" / "runs" / run.id / "logs" / "1" / "main" / "0.log"
    until(lambda: path.exists() and line in path.read_text(), f"`{line}`", story=lambda: stage.story(run))


def test_a_gang_far_away_is_followed_to_its_end(laptop: BeakerStage) -> None:
    stage, secret = laptop, "hush-hush-8842"
    stage.fake.add_secret("HF_TOKEN", secret)
    data = stage.write("prompts.txt", "one\ntwo\n")
    line = (
        "echo rank $WINDLASS_RANK $(wc -l < ${data.prompts}) $HF_TOKEN; echo made > $WINDLASS_OUT/made-$WINDLASS_RANK"
    )
    spec = stage.task(line, nodes=2)
    spec["data"] = {"prompts": f"file:{data.name}"}
    spec["env"] = {"secrets": ["HF_TOKEN"]}
    run = launch(stage, spec)
    lines = [line.text for line in run.logs(follow=True, timeout_s=300)]
    assert run.state is State.SUCCEEDED, stage.story(run)
    assert sorted(lines) == [f"rank {rank} 2 [secret HF_TOKEN]" for rank in range(2)]
    assert {path.name for path in run.fetch_output("main").iterdir()} == {"made-0", "made-1"}
    assert not Path("/weka/far").exists()
    printed = [job.text for job in stage.experiment_of(run).jobs]
    assert ["rank 0 2 [secret HF_TOKEN]" in text for text in printed].count(True) == 1, "Beaker shows no log"
    assert secret not in "".join(printed)
    here = [path for path in stage.home.path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert here == []


def test_a_preempted_run_goes_on_from_its_checkpoint(laptop: BeakerStage) -> None:
    stage = laptop
    stage.write("saves.py", _SAVES)
    run = launch(stage, stage.task([PYTHON, "-u", "saves.py"], grace="5s"))
    wait_for_far_line(stage, run, "saved 5")
    stage.fake.scenario.preempt(stage.experiment_of(run))
    lines = [line.text for line in run.logs(follow=True, timeout_s=300)]
    assert run.state is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["preempted", "ok"]
    begins = [int(text.split()[-1]) for text in lines if text.startswith("begins at")]
    assert begins[0] == 0
    assert begins[1] >= 5
    assert [text for text in lines if text == "saved 5"] == ["saved 5"]
    assert (run.fetch_output("main") / "done").read_text() == "40"


def test_without_storage_one_node_lives_in_its_results(laptop: BeakerStage) -> None:
    stage = laptop
    write_site(stage, shared="", mounts="[]")
    line = "echo here $WINDLASS_ATTEMPT; echo made > $WINDLASS_OUT/made; [ $WINDLASS_ATTEMPT = 2 ]"
    run = launch(stage, stage.task(line, nodes=1))
    lines = [line.text for line in run.logs(follow=True, timeout_s=300)]
    assert run.state is State.FAILED, stage.story(run)
    assert (run.facts.cause, lines) == ("user-error", ["here 1"])
    assert not stage.experiment_of(run).spec["tasks"][0]["context"]["autoResume"]
    run.retry()
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["user-error", "ok"]
    assert (run.fetch_output("main") / "made").read_text() == "made\n"


def test_a_stop_reaches_a_job_that_nobody_can_talk_to(laptop: BeakerStage) -> None:
    stage = laptop
    run = launch(stage, stage.task("echo begun; sleep 600"))
    wait_for_far_line(stage, run, "begun")
    run.stop()
    assert stage.end(run, 300) is State.STOPPED, stage.story(run)
    stage.fake.wait(stage.experiment_of(run))
