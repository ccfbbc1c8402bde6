"""Command lines of `windlass gantry run`, each with the whole spec that Beaker gets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat.gantry.conftest import Pushed
from windlass.compat.gantry.invocation import read_command_line
from windlass.compat.gantry.request import prepare
from windlass.compat.gantry.spec import command, rendezvous_of
from windlass.core.errors import WindlassError

SECOND = 1_000_000_000
PYTHON = {"GANTRY_DEFAULT_PYTHON_VERSION": "3.11", "GANTRY_PYTHON_MANAGER": "uv"}
GANG = {
    "hostNetworking": True,
    "replicas": 2,
    "leaderSelection": True,
    "propagateFailure": True,
    "propagatePreemption": True,
    "synchronizedStartTimeout": 300 * SECOND,
    "resources": {"gpuCount": 8},
}
MEETING = dict(zip(("GANTRY_RDZV_ID", "GANTRY_RDZV_PORT"), rendezvous_of("r"), strict=True))
TORCHRUN = {"GANTRY_USE_TORCHRUN": "1", **MEETING}


def secret(name: str) -> dict[str, str]:
    return {"secret": name}


def mounted(path: str, **source: str) -> dict[str, Any]:
    extra = {"subPath": source.pop("sub")} if "sub" in source else {}
    return {"source": source, "mountPath": path, **extra}


NO_PYTHON = {"GANTRY_NO_PYTHON": "1"}

# words before `-- train.py --a`; what of the task, the variables, the experiment differs from the plain line
LINES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("", {}, {}, {}),
    ("-d why", {}, {}, {"description": "why"}),
    ("--description=why --budget lab/b", {}, {}, {"description": "why", "budget": "lab/b"}),
    ("-b lab/one -b lab/two", {}, {}, {"budget": "lab/two"}),
    ("--group me/g --group h", {}, {}, {"groups": ["me/g", "h"]}),
    ("-t train", {"name": "train"}, {"GANTRY_TASK_NAME": "train"}, {}),
    ("-c ai2/one --cluster ai2/two", {"constraints": {"cluster": ["ai2/one", "ai2/two"]}}, {}, {}),
    ("--cluster ai2/*", {"constraints": {"cluster": ["ai2/*"]}}, {}, {}),
    ("--hostname a --hostname b", {"constraints": {"hostname": ["a", "b"]}}, {}, {}),
    ("--gpu-type h100 --tag x --interconnect ib", {}, {}, {}),
    ("--cpus 2.5 --gpus 1", {"resources": {"cpuCount": 2.5, "gpuCount": 1}}, {}, {}),
    ("--memory 10GiB --shared-memory 1GiB", {"resources": {"memory": "10GiB", "sharedMemory": "1GiB"}}, {}, {}),
    ("--beaker-image me/i", {"image": {"beaker": "me/i"}}, {}, {}),
    ("--docker-image python:3", {"image": {"docker": "python:3"}}, {}, {}),
    ("--dataset d:/data", {"datasets": [mounted("/data", beaker="d")]}, {}, {}),
    ("--dataset d:a/b:/data", {"datasets": [mounted("/data", beaker="d", sub="a/b")]}, {}, {}),
    ("-m /host:/there", {"datasets": [mounted("/there", hostPath="/host")]}, {}, {}),
    ("--weka b:/weka/b", {"datasets": [mounted("/weka/b", weka="b")]}, {}, {}),
    ("--dataset-secret S:/s", {"datasets": [mounted("/s", secret="S")]}, {}, {}),
    (
        "--weka b:/w --dataset d:/d -m /h:/h --dataset-secret S:/s",
        {
            "datasets": [
                mounted("/d", beaker="d"),
                mounted("/s", secret="S"),
                mounted("/h", hostPath="/h"),
                mounted("/w", weka="b"),
            ]
        },
        {},
        {},
    ),
    ("--env A=1 --env B=x=y --env C=", {}, {"A": "1", "B": "x=y", "C": ""}, {}),
    ("--env FROM_HERE", {}, {"FROM_HERE": "here"}, {}),
    ("--env-secret A=S --secret-env B", {}, {"A": secret("S"), "B": secret("B")}, {}),
    ("--env RESULTS_DIR=/mine", {}, {"RESULTS_DIR": "/mine"}, {}),
    ("--gh-token-secret T", {}, {"GITHUB_TOKEN": secret("T")}, {}),
    ("--env-secret GITHUB_TOKEN=T", {}, {"GITHUB_TOKEN": secret("T")}, {}),
    (
        "--aws-config-secret A --aws-credentials-secret B --google-credentials-secret C",
        {},
        {
            "GANTRY_AWS_CONFIG": secret("A"),
            "GANTRY_AWS_CREDENTIALS": secret("B"),
            "GANTRY_GOOGLE_CREDENTIALS": secret("C"),
        },
        {},
    ),
    ("--branch other", {}, {"GIT_BRANCH": "other"}, {}),
    ("--results /out", {"result": {"path": "/out"}}, {"RESULTS_DIR": "/out"}, {}),
    ("--runtime-dir /stage", {}, {"GANTRY_RUNTIME_DIR": "/stage"}, {}),
    ("--priority urgent", {"context": {"priority": "urgent"}}, {}, {}),
    ("--task-timeout 24h", {"timeout": 24 * 3600 * SECOND}, {}, {}),
    ("--task-timeout 1d12h30m", {"timeout": (36 * 3600 + 1800) * SECOND}, {}, {}),
    ("--task-timeout 90", {"timeout": 90 * SECOND}, {}, {}),
    ("--task-timeout 1.5minutes", {"timeout": 90 * SECOND}, {}, {}),
    (
        "--min-runtime 0 --no-auto-resume",
        {"context": {"minRuntime": 0, "autoResume": False}},
        {},
        {},
    ),
    ("--preemptible", {"context": {"preemptible": True}}, {}, {}),
    ("--not-preemptible", {"context": {"preemptible": False}}, {}, {}),
    ("--retries 2", {}, {}, {"retry": {"allowedTaskRetries": 2}}),
    ("--retries 0", {}, {}, {}),
    ("--replicas 1", {}, {}, {}),
    ("--replicas 3", {"replicas": 3}, {}, {}),
    (
        "--replicas 3 --leader-selection",
        {"replicas": 3, "leaderSelection": True, "hostNetworking": True},
        {},
        {},
    ),
    ("--host-networking", {"hostNetworking": True}, {}, {}),
    (
        "--replicas 2 --propagate-failure --no-propagate-preemption --synchronized-start-timeout 90m",
        {
            "replicas": 2,
            "propagateFailure": True,
            "propagatePreemption": False,
            "synchronizedStartTimeout": 5400 * SECOND,
        },
        {},
        {},
    ),
    ("--gpus 8 --replicas 2 --torchrun", GANG, TORCHRUN, {}),
    ("--gpus 8 --torchrun", {"resources": {"gpuCount": 8}}, {"GANTRY_USE_TORCHRUN": "1"}, {}),
    (
        "--gpus 8 --replicas 2 --torchrun --no-leader-selection",
        {"replicas": 2, "resources": {"gpuCount": 8}},
        {"GANTRY_USE_TORCHRUN": "1"},
        {},
    ),
    (
        "--gpus 8 --replicas 2 --torchrun --no-propagate-failure",
        {**{key: value for key, value in GANG.items() if key != "propagatePreemption"}, "propagateFailure": False},
        TORCHRUN,
        {},
    ),
    ("--gpus 8 --replicas 2 --torchrun --skip-tcpxo-setup", GANG, {**TORCHRUN, "GANTRY_SKIP_NCCL_SETUP": "1"}, {}),
    ("--skip-nccl-setup", {}, {"GANTRY_SKIP_NCCL_SETUP": "1"}, {}),
    ("--exec-method bash", {}, {"GANTRY_EXEC_METHOD": "bash"}, {}),
    ("--pre-setup a.sh --post-setup b", {}, {"GANTRY_PRE_SETUP_CMD": "a.sh", "GANTRY_POST_SETUP_CMD": "b"}, {}),
    ("--no-python", {}, {**NO_PYTHON, **dict.fromkeys(PYTHON)}, {}),
    ("--no-python --install make", {}, {**NO_PYTHON, **dict.fromkeys(PYTHON), "GANTRY_INSTALL_CMD": "make"}, {}),
    (
        "--default-python-version 3.13 --system-python",
        {},
        {"GANTRY_DEFAULT_PYTHON_VERSION": "3.13", "GANTRY_USE_SYSTEM_PYTHON": "1"},
        {},
    ),
    ("--uv-venv /v --uv-no-extras", {}, {"GANTRY_UV_VENV": "/v"}, {}),
    ("--uv-torch-backend cu128", {}, {"UV_TORCH_BACKEND": "cu128"}, {}),
    ("--uv-cache-dir /cache", {}, {"UV_CACHE_DIR": "/cache"}, {}),
    ("--conda-env base", {}, {"GANTRY_PYTHON_MANAGER": "conda", "GANTRY_CONDA_ENV": "base"}, {}),
    ("--conda-file README.md", {}, {"GANTRY_PYTHON_MANAGER": "conda", "GANTRY_CONDA_FILE": "README.md"}, {}),
    ("--python-manager conda", {}, {"GANTRY_PYTHON_MANAGER": "conda"}, {}),
    ("-y --show-logs --timeout -1 --start-timeout 5m --inactive-timeout 1h --allow-dirty", {}, {}, {}),
    ("-yn other --no-logs -w lab/other -n r", {}, {}, {}),
    (
        "--slack-webhook-url http://x --callback c --callback-module m --inactive-soft-timeout 1h --show-logs",
        {},
        {},
        {},
    ),
]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, clean_environment: None, standing: Pushed) -> None:
    monkeypatch.chdir(standing.folder)
    monkeypatch.setenv("FROM_HERE", "here")


@pytest.mark.parametrize(("words", "task", "variables", "top"), LINES, ids=[line[0] or "plain" for line in LINES])
def test_command_line_becomes_spec(
    words: str, task: dict[str, Any], variables: dict[str, Any], top: dict[str, Any], standing: Pushed
) -> None:
    argv = ["--name", "r", "--default-python-version", "3.11", *words.split(), "--", "train.py", "--a"]
    spec = dict(prepare(read_command_line(argv).recipe).spec)
    [found] = spec.pop("tasks")
    found_variables = {each["name"]: each.get("value", each) for each in found.pop("envVars")}
    assert spec == {"version": "v2", "groups": [], **top}
    assert found == {
        "name": "main",
        "image": {"beaker": "beaker-py/gantry"},
        "context": {},
        "result": {"path": "/results"},
        "command": list(command()),
        "arguments": ["train.py", "--a"],
        "resources": {},
        "hostNetworking": False,
        "leaderSelection": False,
        **task,
    }
    expected = {
        "GANTRY_VERSION": "3.7.0+windlass",
        "GITHUB_REPO": "lab/project",
        "GIT_REF": standing.git("rev-parse", "HEAD"),
        "GIT_BRANCH": "main",
        "GANTRY_TASK_NAME": "main",
        "RESULTS_DIR": "/results",
        "GANTRY_RUNTIME_DIR": "/gantry-runtime",
        "GANTRY_EXEC_METHOD": "exec",
        "GITHUB_TOKEN": secret("GITHUB_TOKEN"),
        **PYTHON,
        **variables,
    }
    assert found_variables == {
        name: {"name": name, **value} if isinstance(value, dict) else value
        for name, value in expected.items()
        if value is not None
    }


REFUSED: list[tuple[list[str], str, str]] = [
    (["--gpus", "1"], "missing-argument", "no `--` before the command"),
    (["--gpus", "1", "--"], "missing-argument", "no command after `--`"),
    (["--gpu", "1", "--", "x"], "unknown-option", "no option `--gpu`"),
    (["-z", "--", "x"], "unknown-option", "no option `-z`"),
    (["--preemptible", "false", "--", "x"], "usage", "`false` before `--`"),
    (["--yes=true", "--", "x"], "invalid-value", "`--yes` takes no value"),
    (["--name", "--", "x"], "missing-argument", "`--name` needs a value"),
    (["--gpus", "many", "--", "x"], "invalid-value", "`--gpus many`"),
    (["--gpus", "-1", "--", "x"], "invalid-value", "`--gpus -1`"),
    (["--cpus", "nan", "--", "x"], "invalid-value", "`--cpus nan`"),
    (["--priority", "top", "--", "x"], "invalid-value", "`--priority top`"),
    (["--interconnect", "wifi", "--", "x"], "invalid-value", "`--interconnect wifi`"),
    (["--task-timeout", "soon", "--", "x"], "invalid-value", "`--task-timeout soon`"),
    (["--task-timeout", "1 fortnight", "--", "x"], "invalid-value", "is not a valid duration"),
    (["--start-timeout", "5x", "--show-logs", "--", "x"], "invalid-value", "`--start-timeout 5x`"),
    (["--min-runtime", "9" * 30, "--", "x"], "invalid-value", "292 years"),
    (["--dataset", "data", "--", "x"], "invalid-value", "`--dataset data`"),
    (["--dataset", "a:b:c:d", "--", "x"], "invalid-value", "`--dataset a:b:c:d`"),
    (["--dataset", "a:b", "--", "x"], "invalid-value", "the mount `b` is not an absolute path"),
    (["--weka", "bucket", "--", "x"], "invalid-value", "`--weka bucket`"),
    (["--weka", "a:/m", "--mount", "/b:/m", "--", "x"], "invalid-value", "both mounted at `/m`"),
    (["--dataset", "a:/m", "--dataset", "b:/M/", "--", "x"], "invalid-value", "both mounted"),
    (["--upload", "a:/m.txt", "--", "x"], "invalid-value", "looks like a file"),
    (["--upload", "none:/m", "--", "x"], "invalid-value", "no such file"),
    (["--env", "NOT_SET_ANYWHERE", "--", "x"], "invalid-value", "`--env NOT_SET_ANYWHERE`"),
    (["--env", "1A=b", "--", "x"], "invalid-value", "`1A` is not a valid variable name"),
    (["--env", "A=1", "--env", "A=2", "--", "x"], "invalid-value", "`A` is set twice"),
    (["--env", "A=1", "--env-secret", "A=S", "--", "x"], "invalid-value", "`--env` and `--env-secret`"),
    (["--env", "UV_CACHE_DIR=1", "--uv-cache-dir", "/c", "--", "x"], "invalid-value", "`UV_CACHE_DIR`"),
    (["--env-secret", "A=", "--", "x"], "invalid-value", "does not name a secret"),
    (["--docker-image", "a", "--beaker-image", "b", "--", "x"], "conflicting-options", "`--docker-image`"),
    (["--hostname", "h", "--cluster", "c", "--", "x"], "conflicting-options", "`--cluster`"),
    (["--preemptible", "--min-runtime", "1h", "--", "x"], "conflicting-options", "`--min-runtime`"),
    (["--no-python", "--uv-extra", "a", "--", "x"], "conflicting-options", "`--uv-extra`"),
    (["--python-manager", "uv", "--conda-env", "a", "--", "x"], "conflicting-options", "`--conda-env`"),
    (["--conda-file", "a", "--uv-venv", "b", "--", "x"], "conflicting-options", "`--uv-venv`"),
    (["--conda-file", "gone.yml", "--", "x"], "invalid-value", "`--conda-file gone.yml`: no such file"),
    (["--uv-extra", "a", "--uv-all-extras", "--", "x"], "conflicting-options", "`--uv-extra`"),
    (["--uv-extra", "a", "--", "x"], "conflicting-options", "without a project"),
    (["--system-python", "--conda-env", "a", "--", "x"], "conflicting-options", "`--system-python`"),
    (["--torchrun", "--", "x"], "missing-argument", "`--torchrun` without `--gpus`"),
    (["--replicas", "0", "--", "x"], "invalid-value", "`--replicas 0`"),
    (["--results", "out", "--", "x"], "invalid-value", "`--results out`"),
    (["--show-logs", "--timeout", "0", "--", "x"], "conflicting-options", "`--timeout 0`"),
    (["--start-timeout", "5m", "--", "x"], "conflicting-options", "while the launch is followed"),
    (["--emit", "yaml", "--", "x"], "invalid-value", "`--emit yaml`"),
    (["--emit", "beaker", "--on", "local", "--", "x"], "conflicting-options", "`--emit beaker`"),
    (["--online", "--", "x"], "conflicting-options", "`--online`"),
    (["--remote", "no repository", "--branch", "b", "--", "x"], "invalid-value", "`no repository`"),
    (["--remote", "lab/project", "--", "x"], "missing-argument", "a branch or a commit"),
]


def refusal_of(argv: list[str]) -> WindlassError:
    try:
        prepare(read_command_line(argv).recipe)
    except WindlassError as error:
        return error
    raise AssertionError(f"not refused: {argv}")


def test_bad_command_lines_are_refused() -> None:
    for argv, code, words in REFUSED:
        error = refusal_of(argv)
        assert (error.code, words in error.message) == (code, True), f"{argv}: {error.message}"
        assert error.hint, argv


def test_the_nearest_option_is_named() -> None:
    with pytest.raises(WindlassError) as refused:
        read_command_line(["--synchronised-start-timeout", "5m", "--", "x"])
    assert refused.value.hint == "did you mean `--synchronized-start-timeout`?"


def test_what_is_not_honoured_is_said() -> None:
    argv = ["--callback", "c", "--slack-webhook-url", "u", "--gpus", "1", "--gpus", "2", "--preemptible", "--", "x"]
    notes = read_command_line(argv).notes
    assert [note.partition(":")[0] for note in notes] == [
        "--callback",
        "--slack-webhook-url",
        "--gpus is given twice",
        "`--preemptible` is the old form of `--min-runtime` and `--no-auto-resume`",
    ]


def test_offline_says_what_is_looked_up_later() -> None:
    argv = ["--cluster", "ai2/*", "--weka", "b:/w", "--dataset", "d:/d", "--group", "g", "--", "x"]
    notes = prepare(read_command_line(argv).recipe).notes
    assert notes == (
        "clusters are chosen only at submission: name ai2/*; tag storage:weka",
        "the group g is looked up only at submission",
        "the dataset d is looked up only at submission",
        "it is checked only at submission whether lab/project needs a token; GITHUB_TOKEN is assumed",
    )


def test_the_command_keeps_its_words() -> None:
    words = ["bash", "-c", "echo 'a b' && x --", "", "$HOME", "--", "--name"]
    spec = prepare(read_command_line(["--", *words]).recipe).spec
    assert spec["tasks"][0]["arguments"] == words


def test_project_settings_are_defaults(pushed: Pushed) -> None:
    text = '[tool.gantry]\nworkspace = "lab/w"\nbudget = "lab/b"\ngh_token_secret = "T"\nworkspce = "x"\n'
    (pushed.folder / "pyproject.toml").write_text(text)
    found = read_command_line(["--budget", "lab/other", "--", "x"])
    assert (found.recipe.workspace, found.recipe.budget, found.recipe.gh_token_secret) == ("lab/w", "lab/other", "T")
    assert found.notes == ("[tool.gantry] workspce is an unknown setting; did you mean `workspace`?",)


def test_a_project_gets_all_extras_and_conda_its_file(pushed: Pushed) -> None:
    pushed.commit(pyproject__toml="[project]\n")
    pushed.push()
    spec = prepare(read_command_line(["--", "x"]).recipe).spec
    assert {"name": "GANTRY_UV_ALL_EXTRAS", "value": "1"} in spec["tasks"][0]["envVars"]
    pushed.commit(environment__yml="name: x\n")
    pushed.push()
    spec = prepare(read_command_line(["--", "x"]).recipe).spec
    assert {"name": "GANTRY_CONDA_FILE", "value": "environment.yml"} in spec["tasks"][0]["envVars"]
    assert not [each for each in spec["tasks"][0]["envVars"] if each["name"].startswith("GANTRY_UV")]
    with pytest.raises(WindlassError, match="uv options are set"):
        prepare(read_command_line(["--uv-venv", "/v", "--", "x"]).recipe)


def test_the_same_launch_has_the_same_name(pushed: Pushed) -> None:
    names = [prepare(read_command_line([*words, "--", "x"]).recipe).name for words in ([], [], ["--gpus", "1"])]
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("project-main-")
    pushed.commit()
    pushed.push()
    assert prepare(read_command_line(["--", "x"]).recipe).name != names[0]
