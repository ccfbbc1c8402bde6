"""Environments at sites as a launch wants them: built there before anything is queued, or by a job of Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.backends.slurm.fake_shell import listing
from tests.lab.slurm import SlurmLab
from tests.pin.projects import lock, make_project
from windlass.backends.site_shell import LocalShell, ShellResult
from windlass.core.errors import PreconditionError
from windlass.launcher.stage.environment import SiteBuild, SitePlaces, ensure_site_environment
from windlass.pin.environment.pinned import NO_ENVIRONMENT, EnvironmentPin
from windlass.pin.environment.pinning import pin_environment
from windlass.sites.profile import FileSystem, Override, Partition, Profile, SiteEnvironment, SiteScheduler
from windlass.supervise.archive import ensure_archive
from windlass.supervise.builds.once import find_ready
from windlass.supervise.builds.staging import stage_for_link
from windlass.supervise.job import JobDocument, JobPaths, ReplicaCommand

pytestmark = pytest.mark.system

_MIB = 1 << 20


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture(autouse=True)
def _own_world(uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(uv_cache))
    monkeypatch.setenv("UV_OFFLINE", "1")


class Stage:
    """A project here, and the same project in a checkout at the site."""

    def __init__(self, folder: Path) -> None:
        self.project = lock(make_project(folder / "project"))
        self.there = folder / "shared/runs/r/code"
        shutil.copytree(self.project, self.there)
        self.state = folder / "shared/windlass"
        self.pin = pin_environment("uv", self.project)
        self.profile = Profile(
            name="lab",
            scheduler=SiteScheduler(partition="main"),
            partitions={"main": Partition(num_nodes=4, gpus=4, cpus=8, memory=8000 * _MIB)},
            fs=FileSystem(node_local=str(folder / "local")),
            env=SiteEnvironment(python=sys.executable),
        )
        self.places = SitePlaces(
            project=self.project,
            there=PurePosixPath(self.there),
            archive=PurePosixPath(ensure_archive(folder / "archives")),
            state=PurePosixPath(self.state),
            user="me",
        )
        self.said: list[str] = []

    def ensure(self, pin: EnvironmentPin | None = None, shell: Any = None, **changes: Any) -> SiteBuild:
        """`changes` are fields of the profile's `env`."""
        return ensure_site_environment(
            pin or self.pin,
            profile=replace(self.profile, env=replace(self.profile.env, **changes)),
            partition="main",
            shell=shell or LocalShell(),
            places=self.places,
            log=self.said.append,
        )


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def ask(build: SiteBuild, code: str) -> str:
    return subprocess.run(
        [str(build.built.python), "-c", code],
        env={"PYTHONPATH": ":".join(map(str, build.built.path_entries))},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_it_is_built_at_the_site_and_found_the_next_time(stage: Stage) -> None:
    build = stage.ensure()
    assert not build.built.is_hit
    assert build.built.packages == ("tiny==2.0",)
    assert build.virtual_env is not None
    assert build.virtual_env.parent == stage.state / "envs"
    assert build.environment == build.virtual_env / ".ready"
    assert str(build.build_lock) == f"{build.virtual_env}.lock"
    assert build.build_job == ""
    assert build.built.path_entries == (stage.there / "src", stage.there)
    assert (
        ask(build, "import demo, tiny; print(demo.__file__, tiny.VERSION)") == f"{stage.there}/src/demo/__init__.py 2.0"
    )
    assert stage.said == [
        f"building the environment {build.virtual_env.name[:12]} at this machine (log: {build.virtual_env}.log)"
    ]
    again = stage.ensure()
    assert again.built.is_hit
    assert replace(again, built=replace(again.built, is_hit=False)) == build
    assert len(stage.said) == 1


def test_the_provenance_gets_the_overrides_with_their_reasons(stage: Stage) -> None:
    override = Override(package="tiny==1.0", index=f"{stage.project}/wheels", why="old driver", seen="2026-11-01")
    facts: Any = stage.ensure(overrides=(override,)).facts
    assert facts["recipe"]["overrides"][0]["why"] == "old driver"
    assert facts["built"]["overrides"][0]["outcome"] == "tiny==2.0 replaced by tiny==1.0"


def test_what_the_builder_refuses_is_refused_here_with_its_words(stage: Stage) -> None:
    with pytest.raises(PreconditionError) as caught:
        stage.ensure(module_init="/nowhere/init.sh", modules=("cuda/12.6",))
    assert caught.value.code == "modules-failed"
    assert caught.value.message.startswith("site `lab`: ")
    assert "cannot read `/nowhere/init.sh` (env.module_init)" in caught.value.message
    with pytest.raises(PreconditionError, match="no Python `python9` at this machine"):
        stage.ensure(python="python9")
    (stage.there / "uv.lock").write_text("")
    with pytest.raises(PreconditionError, match=r"site `lab`: .*uv\.lock differs from the lock file that was pinned"):
        stage.ensure(imports=("tiny",))


def test_a_site_that_may_not_be_written_is_told_before_anything_is_built(stage: Stage) -> None:
    stage.state.parent.mkdir(exist_ok=True)
    stage.state.write_text("in the way")
    with pytest.raises(PreconditionError) as caught:
        stage.ensure()
    assert caught.value.code == "not-writable"


def test_a_wheel_too_new_for_the_driver_never_gets_there(stage: Stage) -> None:
    text = (stage.project / "uv.lock").read_text() + '\n[[package]]\nname = "torch"\nversion = "2.9.1+cu130"\n'
    (stage.project / "uv.lock").write_text(text)
    import hashlib

    pin = replace(stage.pin, lock_sha256=hashlib.sha256(text.encode()).hexdigest())
    stage.profile = replace(stage.profile, partitions={"main": Partition(cuda="12.7", driver="565.57")})
    with pytest.raises(PreconditionError, match=r"torch 2\.9\.1\+cu130 needs CUDA 13\.0") as caught:
        stage.ensure(pin)
    assert "index: cu126" in caught.value.hint
    assert not stage.state.exists()


def test_other_kinds_of_environments(stage: Stage) -> None:
    build = stage.ensure(NO_ENVIRONMENT)
    assert (build.built.bins, build.virtual_env, build.environment) == ((), None, None)
    own = EnvironmentPin(kind="python", interpreter=sys.executable, packages=("a==1",))
    build = stage.ensure(own)
    assert build.built.bins == (Path(sys.executable).parent,)
    assert build.built.packages == ("a==1",)
    with pytest.raises(PreconditionError, match="no Python `/laptop/venv/bin/python` at this machine"):
        stage.ensure(replace(own, interpreter="/laptop/venv/bin/python"))


def test_a_node_uses_its_own_copy(stage: Stage, tmp_path: Path) -> None:
    build = stage.ensure(stage="node-local")
    assert build.stage is not None
    assert build.stage.parent == tmp_path / "local/windlass-me"
    assert (build.virtual_env, build.built.bins) == (build.stage, (build.stage / "bin",))
    assert not build.stage.exists()
    stage_for_link(write_job(tmp_path, build))
    assert ask(build, "import sys, tiny; print(tiny.VERSION, sys.prefix)") == f"2.0 {build.stage}"


def test_a_node_without_room_uses_the_shared_one(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build = stage.ensure(stage="node-local")
    assert build.stage is not None
    assert build.environment is not None
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "tar").write_text("#!/bin/sh\necho 'tar: No space left on device' >&2\nexit 2\n")
    (programs / "tar").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    stage_for_link(write_job(tmp_path, build))
    assert build.stage.resolve() == build.environment.parent
    assert "No space left on device" in capsys.readouterr().err
    assert ask(build, "import tiny; print(tiny.VERSION)") == "2.0"


def write_job(folder: Path, build: SiteBuild) -> Path:
    import json

    document = JobDocument(
        run="r",
        task="main",
        job=1,
        token="t",
        paths=JobPaths(
            str(folder), environment=str(build.environment), build_lock=str(build.build_lock), stage=str(build.stage)
        ),
        command=ReplicaCommand(("true",), cwd="/"),
    )
    (folder / "job.json").write_text(json.dumps(document.to_data()))
    return folder


# --- build jobs -------------------------------------------------------------------------------------------------------


class QueueShell(LocalShell):
    """This machine with a scheduler that takes everything and starts nothing."""

    def __init__(self) -> None:
        self.queue = ""
        self.scripts: list[str] = []
        self.answer = ShellResult(0, "71;lab\n", "")

    def run(self, argv: Any, *, stdin: Any = b"", timeout_s: float = 60.0, env: Any = None) -> ShellResult:
        if argv[0] == "squeue":
            return ShellResult(0, self.queue, "")
        if argv[:2] == ["sbatch", "--version"]:
            return ShellResult(0, "slurm 22.05.8\n", "")
        if argv[0] == "sbatch":
            self.scripts.append(stdin.decode())
            return self.answer
        return super().run(argv, stdin=stdin, timeout_s=timeout_s, env=env)


def test_on_a_compute_node_a_job_builds_it_and_the_task_can_wait(stage: Stage) -> None:
    shell = QueueShell()
    build = stage.ensure(shell=shell, build="compute")
    assert build.build_job == "71"
    assert build.built.packages == ()
    assert build.virtual_env is not None
    assert find_ready(build.virtual_env) is None
    assert f"build {build.virtual_env}.recipe.json {stage.state}/envs" in shell.scripts[0]
    shell.queue = listing(*([str(number), "PENDING", *[""] * 6] for number in (70, 71))).out
    assert stage.ensure(shell=shell, build="compute").build_job == "70"
    assert len(shell.scripts) == 1


def test_a_refused_build_job_is_told(stage: Stage) -> None:
    shell = QueueShell()
    shell.answer = ShellResult(1, "", "sbatch: error: invalid partition specified: nope\n")
    with pytest.raises(PreconditionError) as caught:
        stage.ensure(shell=shell, build="compute", build_partition="nope")
    assert caught.value.code == "slurm-refused"
    assert (
        "rejected the job that builds the environment: Slurm at lab rejected the job: no partition `nope`"
        in caught.value.message
    )


def test_slurm_builds_it_on_a_node(stage: Stage, at_slurm: SlurmLab) -> None:
    build = stage.ensure(build="compute")
    assert build.build_job
    at_slurm.wait_for_state(build.build_job, "COMPLETED", timeout_s=300)
    again = stage.ensure(build="compute")
    assert (again.build_job, again.built.packages, again.built.is_hit) == ("", ("tiny==2.0",), True)
    facts: Any = again.facts
    assert facts["built"]["host"] in at_slurm.nodes
    assert ask(again, "import tiny; print(tiny.VERSION)") == "2.0"
