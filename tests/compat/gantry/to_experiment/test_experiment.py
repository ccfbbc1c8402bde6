"""A launch of gantry as an experiment: what has a place, what is said, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.compat.gantry.conftest import Pushed
from windlass.cli.program import main
from windlass.compat.gantry.invocation import read_command_line
from windlass.compat.gantry.request import prepare
from windlass.compat.gantry.to_experiment.experiment import ConvertedExperiment, to_experiment
from windlass.compat.to_experiment.destination import Destination
from windlass.core.errors import SpecError
from windlass.spec import Env, Gpus, Image, SecretUse

LOCAL = Destination()
CLUSTER = Destination(
    name="cluster",
    kind="slurm",
    paths={"/weka/data": "/scratch/data"},
    clusters={"ai2/jupiter": "big", "*": "small"},
    priorities=frozenset({"normal", "high"}),
)
DOCKER = Destination(name="docker", kind="docker")
UNTOLD = (
    "BEAKER_* variables are not set, so that code does not assume a Beaker job; "
    "`compat: beaker` in the file of `--emit spec` sets them"
)


@pytest.fixture(autouse=True)
def inside(standing: Pushed, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> None:
    monkeypatch.chdir(standing.folder)


def bring(*words: str, place: Destination = LOCAL) -> ConvertedExperiment:
    argv = [*words] if "--" in words else [*words, "--", "python", "train.py"]
    return to_experiment(prepare(read_command_line(argv).recipe), place, folder=Path.cwd())


def refused(*words: str, place: Destination = LOCAL) -> list[str]:
    with pytest.raises(SpecError) as error:
        bring(*words, place=place)
    return [problem.message for problem in error.value.problems]


def test_what_has_a_place(standing: Pushed) -> None:
    converted = bring(
        *("--name", "My Run", "-d", "why", "-t", "fit", "--gpus", "4", "--cpus", "8", "--memory", "16GiB"),
        *("--task-timeout", "2h", "--retries", "3", "--priority", "high", "--group", "g", "--env", "A=1"),
        *("--env-secret", "TOKEN=my_TOKEN", "--env-secret", "KEY", "--cluster", "ai2/jupiter"),
        place=CLUSTER,
    )
    found = converted.experiment
    [(name, task)] = found.tasks.items()
    assert (found.name, found.why, found.where, name) == ("my-run", "why", ("cluster/big",), "fit")
    assert (task.run, task.gpus, task.cpus, task.memory) == (("python", "train.py"), Gpus(count=4), 8.0, 16 << 30)
    assert (found.limit.time, found.retry.failed, found.context.priority, found.context.group) == (7200, 3, "high", "g")
    assert found.env.secrets == (SecretUse(name="TOKEN", from_="my_TOKEN"), SecretUse(name="KEY"))
    commit = standing.git("rev-parse", "HEAD")
    assert found.env.vars == {"A": "1", "GITHUB_REPO": "lab/project", "GIT_REF": commit, "GIT_BRANCH": "main"}
    assert (task.compat, task.vars) == ((), {"RESULTS_DIR": "${out}"})
    assert converted.notes == (
        "no Python project: the task runs in the site's own environment",
        UNTOLD,
    )


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["--", "python", "train.py"], False),
        (["--gpus", "8", "--replicas", "2", "--torchrun", "--", "train.py"], False),
        (["--replicas", "2", "--", "python", "train.py"], True),
        (["--", "echo", "$BEAKER_JOB_ID"], True),
        (["--pre-setup", "echo $BEAKER_NODE_ID", "--", "true"], True),
        (["--env", "NAME=$BEAKER_JOB_ID", "--", "true"], True),
    ],
)
def test_code_takes_itself_for_a_beaker_job_only_where_it_asks(words: list[str], is_told: bool) -> None:
    converted = bring("--no-python", *words)
    task = converted.experiment.tasks["main"]
    assert (task.compat, UNTOLD in converted.notes) == ((("beaker",), False) if is_told else ((), True))
    assert task.vars == ({} if is_told else {"RESULTS_DIR": "${out}"})
    assert bring("--no-python", *words, place=BEAKER).experiment.tasks["main"].compat == ("beaker",)


def test_variables_of_the_user_win() -> None:
    own = {"GIT_BRANCH": "mine", "RESULTS_DIR": "/r"}
    found = bring("--no-python", *(f"--env={name}={value}" for name, value in own.items())).experiment
    assert found.env.vars == {"GITHUB_REPO": "lab/project", "GIT_REF": found.env.vars["GIT_REF"], **own}
    assert found.tasks["main"].vars == {}


@pytest.mark.parametrize(
    ("command", "run"),
    [
        (["train.py", "--a"], ("torchrun", "train.py", "--a")),
        (["bash", "x.sh"], ("torchrun", "--no-python", "bash", "x.sh")),
    ],
)
def test_torchrun_is_windlasss_own(command: list[str], run: tuple[str, ...]) -> None:
    found = bring("--gpus", "8", "--replicas", "4", "--torchrun", "--", *command).experiment.tasks["main"]
    assert (found.cluster, found.nodes, found.run) == ("torchrun", 4, run)


def test_paths_are_those_of_the_place() -> None:
    words = ["--weka", "bucket:/weka/data", "-m", "/host:/inside", "--env", "D=/weka/data/x", "--no-python"]
    command = ["x", "--in=/weka/data/set", "/inside/y", "/results/out", "${NOT_OURS}"]
    converted = bring(*words, "--", *command, place=CLUSTER)
    run = ("x", "--in=/scratch/data/set", "/host/y", "${out}/out", "$${NOT_OURS}")
    assert converted.experiment.tasks["main"].run == run
    assert converted.experiment.env.vars["D"] == "/scratch/data/x"
    assert converted.notes == ("--mount /host:/inside: the task uses /host itself", UNTOLD)


def test_an_upload_is_used_in_place_here(standing: Pushed) -> None:
    run = bring("--upload", "README.md:/notes", "--no-python", "--", "cat", "/notes").experiment.tasks["main"].run
    assert run == ("cat", str(standing.folder / "README.md"))


def test_a_site_that_is_beaker_gets_the_mounts() -> None:
    place = Destination(name="b", kind="beaker", present=("/weka/data",), gpus={"ai2/jupiter": 8})
    words = ["--weka", "data:/weka/data", "--dataset", "d:/d", "--dataset-secret", "S:/s", "--beaker-image", "me/i"]
    more = ["--no-python", "--min-runtime", "1h", "--priority", "immediate", "--cluster", "ai2/jupiter"]
    found = bring(*words, *more, place=place).experiment
    assert found.tasks["main"].beaker == {
        "datasets": [
            {"source": {"beaker": "d"}, "mountPath": "/d"},
            {"source": {"secret": "S"}, "mountPath": "/s"},
        ],
        "context": {"minRuntime": 3600 * 10**9, "priority": "immediate"},
    }
    assert (found.env.image.name, found.where) == ("beaker:me/i", ("b/ai2/jupiter",))


BEAKER = Destination(name="b", kind="beaker", gpus={"ai2/jupiter": 8})


def test_a_site_that_is_beaker_is_charged_and_says_its_own_workspace() -> None:
    converted = bring("-b", "lab/b", "-w", "lab/w", "--no-python", place=BEAKER)
    assert converted.experiment.context.account == "lab/b"
    assert converted.notes[0] == "--workspace lab/w: the run uses the workspace in the profile of `b`"
    assert not bring("-b", "lab/b", "--no-python").experiment.context.account


@pytest.mark.parametrize(
    "words", [["--cluster", "ai2/*-h100"], ["--gpu-type", "h100"], ["--cluster", "ai2/jupiter", "--tag", "x"]]
)
def test_a_site_that_is_beaker_gets_no_wish_that_nobody_resolves(words: list[str]) -> None:
    assert refused("--no-python", *words, place=BEAKER)[0].startswith("`--on` cannot select clusters by: ")


def test_a_bucket_at_a_site_that_is_beaker_leaves_the_clusters_to_the_profile() -> None:
    task = bring("--no-python", "--weka", "data:/weka/data", place=BEAKER).experiment.tasks["main"]
    assert task.beaker == {"datasets": [{"source": {"weka": "data"}, "mountPath": "/weka/data"}]}


def test_a_site_that_is_beaker_gets_no_upload_that_nobody_sends() -> None:
    said = refused("--no-python", "--upload", "README.md:/notes", place=BEAKER)
    assert said == ["`--upload README.md:/notes`: `--on` uploads nothing"]


def test_sizes_are_read_as_beaker_reads_them() -> None:
    assert bring("--no-python", "--memory", "2.5g").experiment.tasks["main"].memory == 2_500_000_000


def test_setup_runs_before_the_command() -> None:
    words = ["--no-python", "--pre-setup", "export A=1", "--post-setup", "more.sh", "--exec-method", "bash"]
    run = bring(*words, "--", "echo", "$A").experiment.tasks["main"].run
    script = 'set -e\nexport A=1\nif [ -f more.sh ]; then . "./more.sh"; else more.sh; fi\nexec "$@"'
    assert run == ("bash", "-c", script, "gantry", "bash", "-c", "echo $A")


def test_environments(pushed: Pushed) -> None:
    image = ["--docker-image", "python:3.12"]
    assert bring("--no-python", *image, place=DOCKER).experiment.env.image == Image(name="python:3.12")
    assert not bring("--no-python", *image).experiment.env.image
    assert bring("--uv-venv", "/venv").experiment.env.python == "/venv"
    assert bring("--conda-env", "/opt/env").experiment.env.python == "/opt/env/bin/python"
    pushed.commit(pyproject__toml="[project.optional-dependencies]\na = []\nb = []\n")
    pushed.push()
    assert "no lock file" in refused()[0]
    pushed.commit(uv__lock="")
    pushed.push()
    found = bring(*image, place=DOCKER)
    assert (found.experiment.env.uv, found.experiment.env.extras) == (".", ("a", "b"))
    assert found.notes[0] == "the image python:3.12 is not used: windlass creates the Python environment"
    assert bring("--uv-extra", "b").experiment.env.extras == ("b",)
    assert bring("--uv-no-extras").experiment.env.extras == ()
    assert bring("--system-python").experiment.env == Env(vars=found.experiment.env.vars)


def test_what_only_beaker_has_is_said() -> None:
    converted = bring(
        *("-w", "lab/w", "-b", "lab/b", "--tag", "x", "--gpu-type", "h100", "--min-runtime", "1h", "--cluster", "c"),
        *("--shared-memory", "1GiB", "--priority", "immediate", "--no-python"),
        place=Destination(name="cluster", kind="slurm"),
    )
    assert [note.partition(" applies only ")[0].partition(":")[0] for note in converted.notes] == [
        "--workspace lab/w",
        "--budget lab/b",
        "--cluster c",
        "--gpu-type h100",
        "--tag x",
        "--min-runtime 1h",
        UNTOLD.partition(":")[0],
        "--shared-memory 1GiB",
        "--priority immediate becomes `urgent`, the highest",
        "--priority urgent",
    ]


def test_what_the_job_does_another_way_is_said() -> None:
    words = ["--no-host-networking", "--no-leader-selection", "--skip-nccl-setup", "--runtime-dir", "/r", "--no-python"]
    said = [note.partition(":")[0] for note in bring(*words).notes if note != UNTOLD]
    assert said == ["--no-host-networking", "--no-leader-selection", "--skip-nccl-setup", "--runtime-dir"]
    assert bring("--no-python").notes == (UNTOLD,)


@pytest.mark.parametrize("place", [LOCAL, BEAKER], ids=["local", "beaker"])
def test_replicas_are_one_gang_everywhere_and_it_is_said(place: Destination) -> None:
    converted = bring("--no-python", "--replicas", "2", "--no-propagate-failure", place=place)
    assert "the replicas form one gang: if one fails, all are ended" in converted.notes


def test_groups_go_along_to_beaker() -> None:
    one = bring("--no-python", "--group", "me/a", place=BEAKER).experiment
    assert (one.context.group, one.beaker) == ("me/a", {})
    two = bring("--no-python", "--group", "me/a", "--group", "me/b", place=BEAKER).experiment
    assert (two.context.group, two.beaker) == ("me/a", {"groups": ["me/a", "me/b"]})
    assert refused("--no-python", "--group", "a", place=BEAKER)[0].startswith("`--group a`: ")
    assert bring("--no-python", "--group", "a").experiment.context.group == "a"


REFUSED: list[tuple[list[str], str]] = [
    (["--dataset", "d:/data"], "`--dataset d:/data` is on Beaker"),
    (["--weka", "b:/weka/other"], "`--weka b:/weka/other` is on Beaker"),
    (["--dataset-secret", "S:/s"], "`--dataset-secret S:/s`"),
    (["--google-credentials-secret", "G"], "`--google-credentials-secret G`"),
    (["--conda-env", "base"], "conda environments are not supported (`base`)"),
    (["--gpus", "2", "--torchrun", "--post-setup", "x"], "setup steps with `--torchrun`"),
    (["--memory", "much"], "`--memory much`"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[line[0][0] for line in REFUSED])
def test_what_is_nowhere_is_refused(words: list[str], message: str) -> None:
    assert refused(*words)[0].startswith(message)


def test_another_commit_than_the_one_here_is_refused(pushed: Pushed) -> None:
    before = pushed.git("rev-parse", "HEAD")
    assert bring("--ref", "HEAD").experiment.tasks
    pushed.commit()
    pushed.push()
    assert refused("--ref", before) == ["`--on` runs the commit that is checked out on this machine"]


def test_the_experiment_and_its_plan_are_shown(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["gantry", "run", "--name", "shown", "--no-python", "--gpus", "2"]
    assert main([*words, "--emit", "spec", "--", "x"]) == 0
    shown = capfd.readouterr().out
    assert "name: shown" in shown
    assert "gpus: 2" in shown
    assert main(["gantry", "run", "--no-python", "--on", "local", "--dry-run", "--", "x"]) == 0
    assert "where        local (local)" in capfd.readouterr().out
    assert main(["gantry", "run", "--save-spec", "x", "--on", "local", "--", "x"]) == 2
    assert main(["gantry", "run", "--on", "nowhere", "--", "x"]) == 2


@pytest.mark.system
def test_it_runs_here(home: Path, capfd: pytest.CaptureFixture[str], standing: Pushed) -> None:
    show = 'echo "$A $GITHUB_REPO $BEAKER_REPLICA_RANK $(cat README.md)"; echo 1 > "$RESULTS_DIR/metrics.json"'
    words: list[Any] = ["gantry", "run", "--on", "local", "--no-python", "--env", "A=b", "--show-logs", "--name", "it"]
    assert main([*words, "--", "bash", "-c", show]) == 0
    shown = capfd.readouterr()
    assert "b lab/project 0 a project" in shown.out
    assert "succeeded" in shown.err
    assert main([*words, "--", "bash", "-c", "exit 3"]) == 1
