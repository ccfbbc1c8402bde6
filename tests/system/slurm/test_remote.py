"""The same experiments from a laptop: everything over ssh to the login host, nothing shared but the cable."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guests import inhabitants
from tests.lab.slurm import LOGIN, SlurmLab
from tests.system.slurm.slurm_stage import SITE, SlurmStage
from tests.system.stage import until
from windlass import Options, Run
from windlass.backends.site_shell import SshShell
from windlass.core.errors import UnreachableError
from windlass.launcher.api import launch_many
from windlass.launcher.prepare import prepare_file
from windlass.launcher.remote import client
from windlass.record.state import State
from windlass.runs.home import Home

pytestmark = pytest.mark.system

_TARGET = f"root@{LOGIN}"


@pytest.fixture
def laptop(tmp_path: Path, home: Path, slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmStage]:
    """A stage that reaches Slurm by ssh alone; the site's shared folder is another one than its own home."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("WINDLASS_SSH_CONFIG", str(slurm.hosts.ssh_config))
    monkeypatch.setattr(client, "_QUIET_S", 0.0)
    stage = SlurmStage(tmp_path, Home(home), slurm)
    shared = tmp_path / "cluster"
    shared.mkdir()
    stage.write_site(**{f'shared: "{home}"': f'shared: "{shared}"'})
    path = home / "sites" / f"{SITE}.yaml"
    path.write_text(path.read_text() + f"ssh: {_TARGET}\n")
    commit(stage)
    yield stage
    stage.close()
    SshShell(_TARGET, config=slurm.hosts.ssh_config).close()


def commit(stage: SlurmStage) -> None:
    """Make the code a repository: in place it could not run elsewhere."""
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "code"]):
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *author, *argv], cwd=stage.code, check=True)


def launch(stage: SlurmStage, spec: dict[str, object], name: str = "far") -> Run:
    return stage.launch(spec, name=name, options=Options(on=SITE, snapshot=True))


def test_a_run_over_ssh_is_followed_to_its_end(laptop: SlurmStage, tmp_path: Path) -> None:
    data = laptop.write("prompts.txt", "one\ntwo\n")
    spec = laptop.task("echo $(hostname) $(wc -l < ${data.prompts}); echo made > $WINDLASS_OUT/made", nodes=2)
    spec["data"] = {"prompts": f"file:{data.name}"}
    run = launch(laptop, spec)
    lines = [line.text for line in run.logs(follow=True, timeout_s=300)]
    assert run.state is State.SUCCEEDED
    assert sorted(line.split()[1] for line in lines) == ["2", "2"]
    assert len({line.split()[0] for line in lines}) == 2
    there = tmp_path / "cluster" / "windlass" / "runs" / run.id
    assert (there / "out" / "main" / "made").read_text() == "made\n"
    assert (run.fetch_output("main") / "made").read_text() == "made\n"
    laptop.wait_until_queue_is_empty()


def test_a_cut_connection_loses_nothing_and_changes_nothing(laptop: SlurmStage) -> None:
    run = launch(laptop, laptop.task("echo begun; sleep 6; echo once >> $WINDLASS_OUT/marks"))
    laptop.lab.cut(LOGIN)
    with pytest.raises(UnreachableError):
        run.stop()
    laptop.lab.join(LOGIN)
    assert laptop.end(run, 300) is State.SUCCEEDED, laptop.story(run)
    assert (run.fetch_output("main") / "marks").read_text() == "once\n"
    SshShell(_TARGET, config=laptop.lab.hosts.ssh_config).close()
    until(lambda: not inhabitants(laptop.lab.slot).guests, "the broken login is gone", timeout_s=300)


def test_a_secret_travels_over_standard_input_and_goes(
    laptop: SlurmStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_SECRET_TOKEN", "the-quiet-word-of-the-house")
    spec = laptop.task("echo has ${#TOKEN}".replace("${#", "$${#"))
    spec["env"] = {"secrets": ["TOKEN"]}
    run = launch(laptop, spec)
    assert laptop.end(run, 300) is State.SUCCEEDED, laptop.story(run)
    run.wait(timeout_s=300)
    assert laptop.log(run).strip() == "has 27"
    assert not list((tmp_path / "cluster" / "windlass" / "delivery").glob("*.json"))


def test_many_runs_over_ssh_are_one_array(laptop: SlurmStage) -> None:
    spec = {**laptop.task("echo seed ${params.seed}"), "params": {"seed": 0}}
    path = laptop.experiment(spec, "each")
    options = Options(on=SITE, snapshot=True)
    runs = launch_many([prepare_file(path, [f"params.seed={n}"], options, home=laptop.home) for n in range(2)])
    assert [run.wait(timeout_s=300) for run in runs] == [State.SUCCEEDED] * 2
    assert [laptop.log(run).strip() for run in runs] == ["seed 0", "seed 1"]
    assert len({run.facts.task("main").jobs[1].backend_id.partition("_")[0] for run in runs}) == 1
