"""Bad input at a Slurm site: a clear error before anything is queued, and nothing left behind that is not on record."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tests.lab.slurm import LOGIN, SlurmLab
from tests.lab.slurm_conf import Options as LabOptions
from tests.system.slurm.command import Answer, windlass
from tests.system.slurm.slurm_stage import SITE, SlurmStage
from tests.system.stage import until
from windlass import Run
from windlass.cli import main
from windlass.record.state import State
from windlass.runs.home import Home

pytestmark = pytest.mark.system

Call = Callable[..., Answer]


@pytest.fixture
def desk(tmp_path: Path, home: Path) -> SlurmStage:
    """A stage whose site is a profile alone: for what is refused before anybody asks Slurm."""
    lab = cast("SlurmLab", types.SimpleNamespace(options=LabOptions()))
    return SlurmStage(tmp_path, Home(home), lab)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """The program in this process: for the many cases that start nothing."""

    def run(*argv: str) -> Answer:
        capsys.readouterr()
        code = main(argv)
        said = capsys.readouterr()
        return Answer(code=code, out=said.out, err=said.err)

    return run


def profile_of(stage: SlurmStage) -> Path:
    return stage.home.path / "sites" / f"{SITE}.yaml"


def spec_of(stage: SlurmStage, **settings: Any) -> str:
    return str(stage.experiment(stage.task("true", **settings)))


def launch(stage: SlurmStage, *words: str, on: str = SITE, env: Mapping[str, str] | None = None) -> Answer:
    """`windlass launch`; runs of a far site must be committed, the others run in place."""
    in_place = [] if (stage.code / ".git").exists() else ["--allow-dirty"]
    path = stage.code / "play.yaml"
    return windlass("launch", str(path), *words, "--on", on, *in_place, cwd=stage.code, env=env)


def expect(answer: Answer, code: int, slug: str, *words: str) -> None:
    assert answer.code == code, answer
    assert f"[{slug}]" in answer.err, answer
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err, f"{word!r} is not in:\n{answer}"


def expect_no_trace(stage: SlurmStage) -> None:
    """Neither a run, nor what was to become one."""
    assert sorted(path.name for path in stage.home.runs.iterdir()) == []
    assert not (stage.home.path / "delivery").exists()


def expect_failed_and_gone(stage: SlurmStage, *words: str) -> Run:
    """One run, on record as failed before it began; Slurm has nothing of it."""
    (run,) = stage.runs("play")
    assert (run.state, run.facts.cause) == (State.FAILED, "start-failed"), stage.story(run)
    assert not run.facts.task("main").attempts
    for word in words:
        assert word in stage.story(run)
    assert [path.name for path in stage.home.runs.iterdir()] == [run.id]
    assert stage.queue() == {}
    return run


# --- known before anybody is asked ---------------------------------------------------------------------------------

UNFIT = [
    (["--on", "lab/nosuch"], 3, "unknown-queue", ["`nosuch`", "main, low, lowcancel, short"]),
    (["--on", "labb"], 2, "unknown-site", ["no site `labb`", "did you mean `lab`?"]),
    (["--on", "lab", "limit.time=25h"], 3, "over-walltime", ["1d1h", "limit.per_job=1d"]),
    (["--on", "lab/short", "limit.time=5m"], 3, "over-walltime", ["2m at most", "--on lab/main"]),
    (["--on", "lab/short", "limit.time=9m", "limit.per_job=3m"], 3, "over-walltime", ["limit.per_job=2m"]),
    (["--on", "lab", "tasks.main.gpus=8"], 3, "needs-reshape", ["2 x 4", "--reshape"]),
    (["--on", "lab", "tasks.main.gpus=1 x h100"], 3, "does-not-fit", ["`h100`", "has fake"]),
    (["--on", "lab", "tasks.main.nodes=5"], 3, "does-not-fit", ["5 nodes", "it has 4"]),
    (["--on", "lab", "tasks.main.cpus=9"], 3, "does-not-fit", ["9 CPUs", "has 8"]),
    (["--on", "lab", "tasks.main.memory=9000MiB"], 3, "does-not-fit", ["9000MiB", "8000MiB"]),
    (["--on", "lab", "context.priority=urgent"], 3, "unsupported-setting", ["scheduler.priority"]),
]


@pytest.mark.parametrize("verb", [["plan"], ["launch"], ["launch", "--render"]], ids=" ".join)
@pytest.mark.parametrize(("words", "code", "slug", "said"), UNFIT, ids=lambda value: str(value)[:40])
def test_what_the_profile_knows_is_refused_by_every_verb(
    desk: SlurmStage, call: Call, verb: list[str], words: list[str], code: int, slug: str, said: list[str]
) -> None:
    answer = call(*verb, spec_of(desk), *words, "--allow-dirty")
    expect(answer, code, slug, *said)
    expect_no_trace(desk)


@pytest.mark.parametrize(
    ("old", "new", "slug", "said"),
    [
        ("kill_wait: 5s", "kill_wait: soon", "invalid-value", "a duration is a number with a unit"),
        ("partition: main", "partition: nosuch", "unknown-queue", "main, low, lowcancel, short"),
        ("partition: main", "partition: [main]", "invalid-value", "scheduler.partition"),
        ("partition: main", "partition: main, ", "yaml", "lab.yaml:5"),
        ("partition: main", "partitoin: main", "unknown-key", "did you mean `partition`?"),
        ("num_nodes: 4", "num_nodes: -4", "invalid-value", "at least 0"),
        ("gpus: 4, gpu_type", "gpus: 0, gpu_type", "conflicting-options", "has `gpus: 0`"),
        ("env: {", "env: {modules: [a/1], modules_forbidden: [a], ", "conflicting-options", "`a/1`"),
        ("net: {", "net: {fabric: nosuch, ", "", "nosuch"),
        ("name: lab", "name: other", "conflicting-options", "is named `other`"),
    ],
)
def test_a_broken_profile_is_named_with_its_place(
    desk: SlurmStage, call: Call, old: str, new: str, slug: str, said: str
) -> None:
    desk.write_site(**{old: new})
    answer = call("launch", spec_of(desk), "--on", SITE, "--allow-dirty")
    assert answer.code in (2, 3), answer
    for word in (slug, said, "lab"):
        assert word in answer.err, answer
    expect_no_trace(desk)


def test_an_account_that_is_not_among_those_of_the_profile(desk: SlurmStage, call: Call) -> None:
    desk.write_site(**{"  kill_wait": "  accounts: [abc, xyz]\n  kill_wait"})
    answer = call("launch", spec_of(desk), "--on", SITE, "context.account=abd", "--allow-dirty")
    expect(answer, 3, "unknown-queue", "no account `abd`", "context.account=abc")


def test_a_home_that_only_this_machine_has(desk: SlurmStage, call: Call, tmp_path: Path) -> None:
    """Known without asking anybody: it is below the folder that each node has for itself."""
    desk.write_site(**{f'shared: "{desk.home.path}"': f'shared: /projects/abc, node_local: "{tmp_path}"'})
    answer = call("launch", spec_of(desk), "--on", SITE, "--allow-dirty")
    expect(
        answer, 8, "home-not-shared", f"WINDLASS_HOME={desk.home.path}", "export WINDLASS_HOME=/projects/abc/windlass"
    )
    expect_no_trace(desk)
    planned = call("plan", spec_of(desk), "--on", SITE, "--allow-dirty")
    assert planned.code == 0, "a plan may be made anywhere"
    assert "a launch from here is refused: the nodes of `lab` cannot see" in planned.out


@pytest.mark.parametrize("verb", [["launch"], ["launch", "--render"]], ids=" ".join)
def test_a_far_site_without_a_shared_folder(desk: SlurmStage, call: Call, verb: list[str]) -> None:
    desk.write_site(**{f'shared: "{desk.home.path}", ': ""})
    profile_of(desk).open("a").write("ssh: root@nowhere.invalid\n")
    expect(call(*verb, spec_of(desk), "--on", SITE, "--allow-dirty"), 8, "site-no-shared-folder", "`fs.shared`")
    expect_no_trace(desk)


# --- a profile that promises more than Slurm has -------------------------------------------------------------------

_BIG = {"gpus: 4": "gpus: 40", "num_nodes: 4": "num_nodes: 40", "cpus: 8": "cpus: 80", "8000MiB": "80000MiB"}
STALE: list[tuple[dict[str, str], list[str], list[str]]] = [
    (
        {"  short:": "  gone:"},
        ["--on", "lab/gone"],
        ["the profile names partition `gone`, which Slurm does not have", "site add lab"],
    ),
    (_BIG, ["--on", "lab", "tasks.main.gpus=8"], ["1 x (8 GPUs) in partition `main`", "sinfo"]),
    (_BIG, ["--on", "lab", "tasks.main.cpus=9"], ["1 x (9 CPUs)"]),
    (_BIG, ["--on", "lab", "tasks.main.memory=9000MiB"], ["1 x (9000MiB memory)"]),
    ({"gpu_type: fake": "gpu_type: h100, gres: h100"}, ["--on", "lab", "tasks.main.gpus=1"], ["1 h100 GPUs"]),
    ({}, ["--on", "lab", "tasks.main.features=fat"], ["no node has the feature `fat`"]),
    ({}, ["--on", "lab", "tasks.main.hosts=n9"], ["a node of n9 does not exist"]),
    ({"  kill_wait": '  options: ["--nonsense"]\n  kill_wait'}, ["--on", "lab"], ["--nonsense", "scheduler.options"]),
]


@pytest.mark.parametrize(("changes", "words", "said"), STALE, ids=lambda value: str(value)[:40])
def test_a_refusal_of_slurm_is_told_in_our_words_and_on_record(
    slurm_stage: SlurmStage, call: Call, changes: dict[str, str], words: list[str], said: list[str]
) -> None:
    slurm_stage.write_site(**changes)
    answer = call("launch", spec_of(slurm_stage), *words, "--allow-dirty")
    expect(answer, 8, "slurm-refused", "Slurm at lab rejected the job", *said)
    run = expect_failed_and_gone(slurm_stage, "rejected the job")
    shown = call("show", run.id)
    assert "rejected the job" in shown.out, shown


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        ({}, ["context.account=ghost"], ["account `ghost` may not be used", "sacctmgr show associations"]),
        ({"{qos: high}": "{qos: platinum}"}, ["context.priority=high"], ["no QOS `platinum`"]),
        ({"  kill_wait": "  qos: brief\n  kill_wait"}, ["limit.time=2h"], ["a walltime of", "is not allowed"]),
    ],
    ids=["account", "qos", "time-of-qos"],
)
def test_what_accounting_does_not_allow(
    accounting_stage: SlurmStage, call: Call, changes: dict[str, str], words: list[str], said: list[str]
) -> None:
    stage = accounting_stage
    if "  kill_wait" in changes:
        _add_qos(stage.lab)
    stage.write_site(**changes)
    answer = call("launch", spec_of(stage), "--on", SITE, *words, "--allow-dirty")
    expect(answer, 8, "slurm-refused", *said)
    expect_failed_and_gone(stage, "rejected the job")


def _add_qos(lab: SlurmLab) -> None:
    """A QOS that denies longer jobs at submission (DenyOnLimit) instead of letting them wait for ever."""
    lab.command("sacctmgr", "-iQ", "add", "qos", "brief", "maxwall=00:10:00", "flags=DenyOnLimit", check=False)
    lab.command("sacctmgr", "-iQ", "modify", "user", "root", "set", "qos+=brief")


def test_a_job_that_can_never_start_says_so_while_it_waits(slurm_stage: SlurmStage) -> None:
    """Slurm takes it all the same (EnforcePartLimits=NO), and keeps it for ever."""
    slurm_stage.write_site(**{"time_max: 2m": "time_max: 9h"})
    spec_of(slurm_stage)
    assert launch(slurm_stage, "limit.time=3h", "-d", on="lab/short").code == 0
    (run,) = slurm_stage.runs("play")
    words = "its walltime is above the partition's limit, so it never starts"
    until(lambda: words in windlass("show", run.id).out, f"it says {words!r}")
    assert windlass("stop", run.id).code == 0
    assert slurm_stage.end(run) is State.STOPPED


# --- software that is not there ------------------------------------------------------------------------------------

_MODULES = """
module() {
  test "$1" = load || return 0; shift
  for each; do test "$each" = good || { echo "ERROR: Unable to locate a modulefile for '$each'" >&2; return $BAD; }; done
}
"""


@pytest.mark.parametrize("status", ["1", "0"], ids=["lmod", "old Tcl modules that answer 0"])
def test_a_missing_module_ends_the_run_by_its_name(slurm_stage: SlurmStage, status: str) -> None:
    init = slurm_stage.write("modules.sh", f"BAD={status}\n{_MODULES}")
    slurm_stage.write_site(**{"env: {": f'env: {{module_init: "{init}", modules: [good, nosuch], '})
    spec_of(slurm_stage, nodes=2)
    answer = launch(slurm_stage)
    assert answer.code == 1, answer
    assert (
        "setup-failed: `module load good nosuch` failed: ERROR: Unable to locate a modulefile for 'nosuch'"
        in answer.err
    )
    (run,) = slurm_stage.runs("play")
    assert slurm_stage.causes(run) == ["setup-failed"]
    slurm_stage.wait_until_queue_is_empty()


@pytest.mark.parametrize(
    ("changes", "slug", "said"),
    [
        ({sys.executable: "/opt/nosuch/python3"}, "python-unusable", "`/opt/nosuch/python3`"),
        ({"  kill_wait": "  bin: /opt/slurm/bin\n  kill_wait"}, "program-missing", "`scheduler.bin`"),
    ],
    ids=["python", "sbatch"],
)
def test_a_program_that_is_not_there(
    slurm_stage: SlurmStage, call: Call, changes: dict[str, str], slug: str, said: str
) -> None:
    slurm_stage.write_site(**changes)
    expect(call("launch", spec_of(slurm_stage), "--on", SITE, "--allow-dirty"), 8, slug, said)
    assert slurm_stage.queue() == {}
    assert not any(run.facts.task("main").attempts for run in slurm_stage.runs("play"))


# --- a home that cannot hold a run ----------------------------------------------------------------------------------


def test_nodes_that_do_not_see_the_home_end_the_run_and_are_named(slurm_stage: SlurmStage) -> None:
    """Nothing knows it beforehand: the profile calls the folder shared, and each node has its own instead."""
    stage = slurm_stage
    spec_of(stage)
    for node in stage.lab.nodes:
        stage.lab.run(node, ["mount", "-t", "tmpfs", "none", str(stage.home.path)])
    try:
        answer = launch(stage)
    finally:
        for node in stage.lab.nodes:
            stage.lab.run(node, ["umount", "-l", str(stage.home.path)])
    assert answer.code == 1, answer
    (run,) = stage.runs("play")
    assert "node-unhealthy: Slurm could not start it on its nodes" in answer.err
    assert f"check that all nodes see {run.folder.jobs}/main-3" in answer.err, answer
    stage.wait_until_queue_is_empty()


@pytest.mark.parametrize("size_kib", [48, 700], ids=["for the first file", "for the zipapp"])
def test_a_full_home_leaves_no_run(slurm_stage: SlurmStage, need: Callable[[str], None], size_kib: int) -> None:
    need("tmpfs")
    stage, full = slurm_stage, slurm_stage.code.parent / "full"
    shutil.copytree(stage.home.path / "sites", full / "sites")
    (full / "sites" / f"{SITE}.yaml").write_text(profile_of(stage).read_text().replace(str(stage.home.path), str(full)))
    sites = (full / "sites" / f"{SITE}.yaml").read_text()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "none", str(full)], check=True)
    try:
        (full / "sites").mkdir()
        (full / "sites" / f"{SITE}.yaml").write_text(sites)
        spec_of(stage)
        expect(launch(stage, env={"WINDLASS_HOME": str(full)}), 8, "disk-full", str(full), "windlass gc")
        assert list((full / "runs").iterdir()) == []
    finally:
        subprocess.run(["umount", str(full)], check=True)
    assert stage.queue() == {}


def test_a_controller_that_is_down_is_no_reason_to_launch_again(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    spec_of(stage)
    stage.lab.kill_controller()
    answer = launch(stage)
    (run,) = stage.runs("play")
    expect(answer, 6, "slurm-down", "does not respond", "do not launch again", f"{run.id} exists")
    rendered = launch(stage, "--render")
    assert "#SBATCH" in rendered.out, rendered
    stage.lab.start_controller()
    stage.lab.wait_until_idle(resume=True)
    assert windlass("show", run.id).code == 0
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)


# --- over ssh -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("IdentityFile ", "IdentityFile /nonexistent #", ["Permission denied", "ssh-add"]),
        ("UserKnownHostsFile ", "UserKnownHostsFile /dev/null #", ["does not know its host key", "fingerprint"]),
        ("UserKnownHostsFile ", "UserKnownHostsFile {other} #", ["its host key has changed", "ssh-keygen -R login"]),
        ("HostName ", "HostName 127.0.0.1\n  Port 9 #", ["cannot reach root@login", "ssh root@login true"]),
        ("HostName ", "HostName no.such.host.invalid #", ["Could not resolve", "check the spelling of"]),
    ],
    ids=["no key", "unknown host key", "changed host key", "nobody there", "no such host"],
)
def test_a_login_that_does_not_work_is_exit_6(
    far_stage: SlurmStage,
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    said: list[str],
) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    (tmp_path / "known").write_text(f"{LOGIN} {other.with_suffix('.pub').read_text()}")
    config = tmp_path / "ssh_config"
    config.write_text(far_stage.lab.hosts.ssh_config.read_text().replace(old, new.format(other=tmp_path / "known")))
    monkeypatch.setenv("WINDLASS_SSH_CONFIG", str(config))
    path = str(far_stage.code / "play.yaml")
    expect(call("launch", path, "--on", SITE), 6, "site-unreachable", *said)
    expect_no_trace(far_stage)
    assert call("plan", path, "--on", SITE).code == 0, "a plan needs no site"


@pytest.mark.parametrize(
    ("mount", "slug", "said"),
    [
        (["-o", "ro"], "site-broken", ["Read-only file system", "`fs.shared`"]),
        (["-o", "size=100k"], "disk-full", ["No space left", "quota"]),
    ],
    ids=["read only", "full"],
)
def test_a_shared_folder_that_takes_nothing(
    far_stage: SlurmStage, call: Call, tmp_path: Path, mount: list[str], slug: str, said: list[str]
) -> None:
    folder = tmp_path / "cluster"
    far_stage.lab.run(LOGIN, ["mount", "-t", "tmpfs", *mount, "none", str(folder)])
    try:
        expect(call("launch", str(far_stage.code / "play.yaml"), "--on", SITE), 8, slug, str(folder), *said)
    finally:
        far_stage.lab.run(LOGIN, ["umount", str(folder)])
    expect_no_trace(far_stage)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("shared", "python", "slug", "said"),
    [
        ("{folder}/code/play.yaml", "", "site-broken", ["Not a directory", "`fs.shared`"]),
        ("", "/opt/nosuch/python3", "site-python", ["/opt/nosuch/python3: not found", "`env.python`"]),
        ("", "{folder}/old", "site-python", ["is Python 3.6", "3.9 or newer"]),
    ],
    ids=["shared is a file", "no python", "old python"],
)
def test_a_far_site_that_cannot_take_us(
    far_stage: SlurmStage, call: Call, tmp_path: Path, shared: str, python: str, slug: str, said: list[str]
) -> None:
    (tmp_path / "old").write_text('#!/bin/sh\ncase "$*" in *version_info*) echo 3.6 ;; *) exit 1 ;; esac\n')
    (tmp_path / "old").chmod(0o755)
    changes = {f'python: "{sys.executable}"': f"python: {python.format(folder=tmp_path)}"} if python else {}
    far_stage.write_far_site(shared.format(folder=tmp_path) or tmp_path / "cluster", **changes)
    expect(call("launch", str(far_stage.code / "play.yaml"), "--on", SITE), 8, slug, *said)
    expect_no_trace(far_stage)


def test_a_refusal_far_away_is_told_and_on_record(far_stage: SlurmStage, call: Call, tmp_path: Path) -> None:
    far_stage.write_far_site(tmp_path / "cluster", **{"  short:": "  gone:"})
    expect(call("launch", str(far_stage.code / "play.yaml"), "--on", "lab/gone"), 8, "slurm-refused", "`gone`")
    (run,) = far_stage.runs("play")
    assert (run.state, run.facts.cause) == (State.FAILED, "start-failed")
    assert far_stage.queue() == {}
    journal = tmp_path / "cluster" / "windlass" / "runs" / run.id / "journal"
    assert any("job-refused" in path.read_text() for path in journal.iterdir()), "the site knows it too"
    assert json.loads(call("show", run.id, "--json").out)["state"] == "failed"
