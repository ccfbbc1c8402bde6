"""Runs at a Beaker site from launch to end, through the product: gangs, logs, secrets, results, resuming."""

from __future__ import annotations

import json

import pytest

from tests.system.beaker.beaker_stage import SITE, BeakerStage
from tests.system.slurm.command import windlass
from tests.system.stage import PYTHON, until
from windlass.core.errors import AccessError, NotFoundError
from windlass.record.state import State

pytestmark = pytest.mark.system

_GANG = """
import json, os, pathlib, sys
from windlass import report
place = report.place()
names = ("BEAKER_REPLICA_RANK", "BEAKER_REPLICA_COUNT", "BEAKER_LEADER_REPLICA_HOSTNAME", "BEAKER_EXPERIMENT_ID")
print(f"rank {place.rank} of {place.num_replicas}", flush=True)
print("token", os.environ["HF_TOKEN"], flush=True)
said = {name: os.environ.get(name) for name in names}
said["seen"] = sorted(name for name in os.environ if "FROM_BEAKER" in name)
said["parents"] = [
    str(path) for path in pathlib.Path("/proc").glob("[0-9]*/environ") if b"FROM_BEAKER" in path.read_bytes()
]
said["leader"] = os.environ["WINDLASS_LEADER_ADDRESS"]
pathlib.Path("/results/metrics.json").write_text(json.dumps({"rank": place.rank}))
(place.out / f"said-{place.rank}").write_text(json.dumps(said))
report.metrics({"x": 1.0}, step=1)
"""


def test_a_gang_of_three_with_secrets_and_results(beaker_stage: BeakerStage) -> None:
    stage, secret = beaker_stage, "hush-hush-7731"
    stage.fake.add_secret("me_HF_TOKEN", secret)
    stage.fake.add_secret("HF_TOKEN", "everybody's")
    stage.write("gang.py", _GANG)
    spec = stage.task([PYTHON, "-u", "gang.py"], nodes=3, gpus=1)
    spec["env"] = {"secrets": ["HF_TOKEN"]}
    run = stage.start(spec)
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert stage.finish(run) == "SUCCEEDED"
    experiment = stage.experiment_of(run)
    said = [json.loads((run.folder.path / "out" / "main" / f"said-{rank}").read_text()) for rank in range(3)]
    assert [each["BEAKER_REPLICA_RANK"] for each in said] == ["0", "1", "2"]
    assert {each["BEAKER_REPLICA_COUNT"] for each in said} == {"3"}
    assert {each["BEAKER_EXPERIMENT_ID"] for each in said} == {experiment.id}
    assert len({each["leader"] for each in said}) == 1
    assert {(*each["seen"], *each["parents"]) for each in said} == {()}
    for rank in range(3):
        assert stage.log(run, 1, rank).splitlines()[:2] == [f"rank {rank} of 3", "token [secret HF_TOKEN]"]
        results = stage.fake.results(experiment, rank=rank)
        assert json.loads((results / "metrics.json").read_text()) == {"rank": rank}
    printed = "".join(job.text for job in experiment.jobs)
    assert secret not in printed
    assert [f"rank {job.task.rank} of 3" in job.text for job in experiment.jobs] == [True] * 3  # for Beaker's own pages
    left = [path for path in run.folder.path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert left == []


def test_what_a_person_sees(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    run = stage.start(stage.python("print('hello', flush=True)\nimport time\ntime.sleep(0.3)\n"))
    followed = windlass("logs", run.id, "--follow")
    assert "hello" in followed.out, str(followed)
    assert stage.end(run) is State.SUCCEEDED
    shown = windlass("show", run.id)
    assert (shown.code, "succeeded" in shown.out) == (0, True), str(shown)
    assert run.id in windlass("ps", "--all").out
    site = windlass("site", "show", SITE)
    assert "workspace    lab/main" in site.out, str(site)
    checked = windlass("site", "check", SITE)
    assert checked.code == 0, str(checked)
    assert "account" in checked.out


_SAVES = """
import os, sys, time
from windlass import report
latest = report.latest_checkpoint()
step = int((latest / "step").read_text()) if latest else 0
report.should_stop()  # from here on a signal makes it save
print(f"from {step}", flush=True)
while step < 1000 and (report.place().attempt == 1 or step < 20):
    step += 1
    report.metrics({"x": 1.0}, step=step)
    time.sleep(0.05)
    if report.should_stop():
        if report.place().rank == 0:
            with report.checkpoint_dir(step=step) as folder:
                (folder / "step").write_text(str(step))
            print(f"saved {step}", flush=True)
        sys.exit(75)
"""


def test_a_preempted_gang_saves_and_goes_on_from_there(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    stage.write("saves.py", _SAVES)
    run = stage.start(stage.task([PYTHON, "-u", "saves.py"], nodes=2, grace="5s"))
    stage.wait_for_line(run, "from 0")
    stage.wait_for_line(run, "from 0", rank=1)
    stage.fake.scenario.preempt(stage.experiment_of(run), rank=1, after_s=0.2)
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["preempted", "ok"]
    first, second = stage.attempts(run)
    saved = int(stage.log(run, 1).split("saved ")[1])
    assert stage.log(run, 2).splitlines()[0] == f"from {saved}"
    assert first.incarnation.endswith(".0")
    assert second.incarnation.endswith(".1")
    assert len(run.facts.task("main").jobs) == 1
    assert stage.finish(run) == "SUCCEEDED"


def test_a_training_loses_nothing_when_its_machine_dies(beaker_stage: BeakerStage) -> None:
    """All processes are killed at once; the next start waits until the first is certainly over."""
    stage = beaker_stage
    run = stage.start(stage.task([PYTHON, "-u", "trainer.py", "24", "0", "0", "9"]))
    stage.wait_for_line(run, "step 9 ")
    stage.fake.scenario.lose_node(stage.experiment_of(run))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["node-lost", "ok"]
    assert stage.log(run, 2).startswith("step 9 ")
    assert not stage.doubled()


def test_secrets_that_are_not_there_are_named_and_nothing_is_made(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    stage.fake.add_secret("WANDB_API_KEY", "x")
    spec = stage.python("pass")
    spec["env"] = {"secrets": ["WANDB_API_KY"]}
    before = len(stage.fake.experiments)
    with pytest.raises(AccessError) as caught:
        stage.start(spec)
    assert caught.value.code == "beaker-secret-missing"
    assert "did you mean `WANDB_API_KEY`?" in caught.value.problems[0].hint
    assert len(stage.fake.experiments) == before
    assert not stage.runs("play")


def test_a_failing_gang_fails_at_beaker_too(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    run = stage.start(stage.task("[ $WINDLASS_RANK = 0 ] && sleep 600; exit 7", nodes=2))
    assert stage.end(run) is State.FAILED
    end = stage.ends(run)[0]
    assert (end.cause, end.code, end.rank) == ("user-error", 7, 1)
    assert stage.finish(run) == "FAILED"


def test_a_stopped_run_ends_its_experiment(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    run = stage.start(stage.task("sleep 300", nodes=2))
    until(lambda: run.state is State.RUNNING, "it runs", story=lambda: stage.story(run))
    run.stop()
    assert stage.end(run) is State.STOPPED
    experiment = stage.experiment_of(run)
    until(lambda: experiment.status.is_final, "the experiment is over", story=lambda: stage.story(run))
    assert stage.survivors(run) == {}


def test_the_image_is_named_by_its_id_and_one_that_is_not_there_is_refused(beaker_stage: BeakerStage) -> None:
    stage = beaker_stage
    run = stage.start(stage.task("true"))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    (image,) = {task["image"]["beaker"] for task in stage.experiment_of(run).spec["tasks"]}
    known = json.loads((run.folder.path / "provenance.json").read_text())["site_environment"]["image"]
    assert (image, known["name"]) == (known["id"], "me/image")
    assert known["docker_id"].startswith("sha256:")
    with pytest.raises(NotFoundError) as caught:
        stage.start({**stage.task("true"), "env": {"image": "beaker:me/no-such"}})
    assert "me/no-such" in caught.value.message
    assert len(stage.runs("play")) == 1
