"""The chain from commit to results: one byte changed in any link is named, and the same plan gives the same elsewhere."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.docker import BASE, DockerLab
from tests.system.stage import PYTHON, Stage, until
from windlass import Options, Run, launch
from windlass.core.errors import PreconditionError, SpecError, UsageError
from windlass.launcher.prepare import prepare_file
from windlass.launcher.rerun import Rerun, prepare_rerun
from windlass.launcher.verify.difference import explained
from windlass.launcher.verify.finding import ProvenanceLink
from windlass.launcher.verify.reexecution import Reexecution, Verification, prove
from windlass.launcher.verify.verify import verify
from windlass.record.state import State
from windlass.runs.compare.tolerance import parse_tolerance

pytestmark = pytest.mark.system

TRAIN = """
import hashlib, json, os, sys
text = "".join(open(os.path.join(sys.argv[1], name)).read() for name in sorted(os.listdir(sys.argv[1])))
with open(os.path.join(sys.argv[2], "model.bin"), "wb") as file:
    file.write(hashlib.sha256((text + sys.argv[3]).encode()).digest() * 100)
with open(os.path.join(sys.argv[2], "metrics.json"), "w") as file:
    json.dump({"loss": 1.0 / len(text), "noise": NOISE}, file)
"""
STEADY, NOISY = TRAIN.replace("NOISE", "0.0"), TRAIN.replace("NOISE", "os.getpid() * 1e-9")
SPEC: dict[str, Any] = {
    "data": {"text": "file:../text"},
    "params": {"lr": 0.5},
    "tasks": {"main": {"run": "python3 train.py ${data.text} ${out} ${params.lr}", "grace": "1s"}},
}


@pytest.fixture
def project(stage: Stage) -> Callable[..., Run]:
    """A repository with a training script and data beside it; calling it commits and launches."""
    (stage.code.parent / "text").mkdir()
    (stage.code.parent / "text" / "a.txt").write_text("one\n")
    (stage.code.parent / "text" / "b.txt").write_text("two\n")
    stage.write("train.py", STEADY)
    git(stage, "init", "-q", "-b", "main")

    def launched(*overrides: str, on: str = "", **more: Any) -> Run:
        path = stage.experiment({**SPEC, **more})
        git(stage, "add", "-A")
        git(stage, "commit", "-q", "--allow-empty", "-m", "a state")
        run = launch(prepare_file(path, overrides, Options(on=on), home=stage.home))
        assert stage.end(run) is State.SUCCEEDED, stage.story(run)
        until(lambda: "main" in run.facts.outputs, "the manifest is written")
        return run

    return launched


def git(stage: Stage, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=stage.code, check=True, capture_output=True)


def change_one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def proved(stage: Stage, run: Run, wanted: Reexecution | None = None) -> Verification:
    return prove(run.folder, stage.home, wanted)


def broken(found: Verification) -> dict[str, tuple[str, ...]]:
    return {finding.what: finding.files for finding in found.findings if finding.is_broken}


def test_the_same_plan_gives_the_same_and_one_byte_of_code_or_outputs_is_named(
    stage: Stage, project: Callable[..., Run]
) -> None:
    run = project()
    found = proved(stage, run)
    assert found.is_verified, found
    assert found.again != run.id
    assert found.differences == ()
    (outputs,) = [finding for finding in found.findings if found.again in finding.message]
    assert outputs.message.startswith("bit-identical in ")
    notes = [note[-1] for note in Run.find(found.again, stage.home).facts.notes]
    assert f"verification of {run.id}" in notes

    change_one_byte(stage.code / "train.py")
    found = proved(stage, run)
    assert found.is_verified, "the commit is still there"
    before = [finding for finding in verify(run.folder) if finding.link is ProvenanceLink.CODE]
    assert [(finding.status, finding.files) for finding in before] == [("ok", ("train.py",))]
    assert before[0].message.endswith("\nchanged since then: train.py")
    git(stage, "commit", "-qam", "on we go")
    assert [finding for finding in verify(run.folder) if finding.link is ProvenanceLink.CODE] == before

    change_one_byte(run.output("main") / "model.bin")
    found = proved(stage, run, Reexecution(compares_sources=False))
    assert broken(found) == {"outputs main": ("model.bin",)}
    assert found.again, "the result can be had again"


def test_one_byte_of_data_or_of_the_runs_own_checkout(stage: Stage, project: Callable[..., Run]) -> None:
    run = project()
    change_one_byte(run.folder.code / "train.py")
    found = proved(stage, run)
    assert (broken(found), found.again) == ({"code": ("train.py",)}, "")
    change_one_byte(run.folder.code / "train.py")  # back to what it was

    change_one_byte(stage.code.parent / "text" / "b.txt")
    found = proved(stage, run)
    assert (found.broken, found.again) == ((ProvenanceLink.DATA,), "")
    assert found.verdict.endswith("differs from what was pinned: b.txt changed")


def test_one_byte_of_the_lock_file(stage: Stage, project: Callable[..., Run]) -> None:
    stage.write("pyproject.toml", '[project]\nname = "play"\nversion = "1"\nrequires-python = ">=3.9"\n')
    subprocess.run(
        [str(Path(PYTHON).with_name("uv")), "lock", "-q", "--offline", "--no-cache"], cwd=stage.code, check=True
    )
    run = project(env={"uv": "."})
    assert list(verify(run.folder))
    assert not [each for each in verify(run.folder) if each.is_broken]
    lock = stage.code / "uv.lock"
    lock.write_text(lock.read_text().replace("version", "versioN", 1))
    assert not [finding for finding in verify(run.folder) if finding.is_broken], "the commit holds the lock file"
    (finding,) = [finding for finding in verify(run.folder) if finding.link is ProvenanceLink.ENVIRONMENT]
    assert (finding.status, finding.files) == ("ok", ("uv.lock",))


def test_outputs_that_are_not_the_same_twice(stage: Stage, project: Callable[..., Run]) -> None:
    stage.write("train.py", NOISY)
    run = project()
    found = proved(stage, run)
    assert found.broken == (ProvenanceLink.OUTPUTS,)
    assert broken(found)["outputs main"] == ("metrics.json",)
    assert "all inputs of the two runs are equal" in found.findings[-1].message
    within = Reexecution(tolerances=(parse_tolerance("noise=1"),))
    assert proved(stage, run, within).is_verified
    assert proved(stage, run, Reexecution(ignored=("metrics.json",))).is_verified
    with pytest.raises(UsageError, match="`nose`") as caught:
        proved(stage, run, Reexecution(tolerances=(parse_tolerance("nose=1"),)))
    assert caught.value.hint == "did you mean `noise`?"


def test_two_runs_differ_by_cause(stage: Stage, project: Callable[..., Run]) -> None:
    first = project()
    stage.write("train.py", STEADY + "# more\n# lines\n")
    change_one_byte(stage.code.parent / "text" / "b.txt")
    second = project("params.lr=0.25")
    found = {difference.path: difference for difference in explained(first.folder, second.folder, stage.home)}
    assert set(found) == {
        "code.commit", "data.text.digest", "params.lr", "outputs.main.model.bin",
    }  # fmt: skip
    assert found["code.commit"].details == ("1 file changed, +2 -0", "M train.py | +2 -0")
    assert found["data.text.digest"].files == ("b.txt",)
    against = proved(stage, second, Reexecution(against=first.folder))
    assert against.broken == (
        ProvenanceLink.CODE,
        ProvenanceLink.DATA,
        ProvenanceLink.PARAMETERS,
        ProvenanceLink.OUTPUTS,
    )
    assert against.verdict == "code differs from the record: train.py"


def test_what_cannot_be_carried_over(stage: Stage, project: Callable[..., Run]) -> None:
    stage.experiment(SPEC)
    run = stage.launch(SPEC)
    assert stage.end(run) is State.SUCCEEDED
    with pytest.raises(PreconditionError, match="ran in place and was not pinned") as caught:
        prepare_rerun(run.folder, stage.home, how=Rerun(on="docker"))
    assert caught.value.code == "code-not-pinned"
    pinned = project()
    with pytest.raises(SpecError, match="the experiment has no image"):
        prepare_rerun(pinned.folder, stage.home, how=Rerun(on="docker"))
    with pytest.raises(UsageError, match=r"cannot change env\.uv: a rerun keeps the pins"):
        prepare_rerun(pinned.folder, stage.home, ("env.uv=.",))
    with pytest.raises(UsageError, match="cannot change "):
        prepare_rerun(pinned.folder, stage.home, how=Rerun(on="docker", overrides=("data.text=file:x",)))


def test_the_same_in_a_container(stage: Stage, project: Callable[..., Run], at_docker: DockerLab) -> None:
    run = project()
    elsewhere = Rerun(on="docker", overrides=(f"env.image={BASE}",), note="verification of")
    found = proved(stage, run, Reexecution(how=elsewhere))
    assert found.is_verified, found
    assert any(finding.message.startswith("bit-identical in ") for finding in found.findings)
    again = Run.find(found.again, stage.home)
    assert again.plan.pins.code == run.plan.pins.code
    assert again.plan.site.backend == "docker"
    assert {difference.path for difference in found.differences} >= {"site.name"}
    back = Rerun(on="local", overrides=("~env.image",), note="verification of")
    assert proved(stage, again, Reexecution(how=back)).is_verified


def test_one_byte_of_the_base_image(stage: Stage, project: Callable[..., Run], at_docker: DockerLab) -> None:
    stage.write("Dockerfile", "FROM windlass/chain:base\nWORKDIR /code\nCOPY . .\n")
    at_docker.command("docker", "tag", BASE, "windlass/chain:base")
    try:
        run = project(on="docker", env={"image": "Dockerfile"})
        assert not [finding for finding in verify(run.folder) if finding.is_broken]
        text = "FROM windlass/base:bookworm\nLABEL one=byte\n"
        (stage.code.parent / "moved").mkdir()
        (stage.code.parent / "moved" / "Dockerfile").write_text(text)
        at_docker.command("docker", "build", "-q", "-t", "windlass/chain:base", str(stage.code.parent / "moved"))
        (finding,) = [finding for finding in verify(run.folder) if finding.is_broken]
        assert (finding.link, finding.status, finding.files) == (
            ProvenanceLink.IMAGE,
            "changed",
            ("windlass/chain:base",),
        )
        assert "base image windlass/chain:base is now sha256:" in finding.message
        change_one_byte(stage.code / "Dockerfile")
        (finding,) = [finding for finding in verify(run.folder) if finding.is_broken]
        assert (finding.link, finding.files) == (ProvenanceLink.IMAGE, ("windlass/chain:base",))
        assert "changed since then: Dockerfile" in finding.message
    finally:
        at_docker.command("docker", "rmi", "-f", "windlass/chain:base", check=False)
