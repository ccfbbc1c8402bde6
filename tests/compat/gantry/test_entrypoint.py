"""The script in the job, with stand-ins for uv and conda that say what they are asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.gantry.conftest import Pushed
from windlass.compat.gantry.spec import command

pytestmark = pytest.mark.system

STAND_INS = {
    "uv": """
echo "uv $*" >> "$CALLS"
case "$1" in
    venv) mkdir -p .venv/bin && : > .venv/bin/activate ;;
    pip) test "$2" = freeze && echo "package==1" ;;
esac
exit "${UV_CODE:-0}"
""",
    "conda": """
echo "conda $*" >> "$CALLS"
test "$1" = shell.bash && echo 'conda() { echo "conda $*" >> "$CALLS"; }'
exit 0
""",
    "gcloud": 'echo "gcloud $1 $2" >> "$CALLS"\n',
    "sleep": 'echo "sleep $1" >> "$CALLS"\n',
    "git": """
if [ "$1" = fetch ] && [ "$(cat "$FAILS" 2>/dev/null || echo 0)" -gt 0 ]; then
    echo $(($(cat "$FAILS") - 1)) > "$FAILS"
    echo "the remote hung up" >&2
    exit 128
fi
exec "$REAL_GIT" "$@"
""",
}


class Job:
    """A job's folder, programs and variables."""

    def __init__(self, base: Path, pushed: Pushed) -> None:
        self.base = base
        self.programs = base / "programs"
        self.programs.mkdir(parents=True)
        for name, text in STAND_INS.items():
            path = self.programs / name
            path.write_text(f"#!/bin/sh\n{text}")
            path.chmod(0o755)
        self.calls = base / "calls"
        self.calls.touch()
        self.fails = base / "fails"
        self.environ = {
            **pushed.redirect,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": str(base),
            "CALLS": str(self.calls),
            "FAILS": str(self.fails),
            "REAL_GIT": str(shutil.which("git")),
            "GITHUB_REPO": "lab/project",
            "GIT_REF": pushed.git("rev-parse", "HEAD"),
            "RESULTS_DIR": str(base / "results"),
            "GANTRY_RUNTIME_DIR": str(base / "stage"),
            "GANTRY_EXEC_METHOD": "exec",
            "BEAKER_NODE_HOSTNAME": "jupiter-1.example.org",
        }

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **variables}
        return subprocess.run([*command(), *words], env=environ, capture_output=True, text=True, cwd=self.base)

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def job(tmp_path: Path, pushed: Pushed) -> Job:
    pushed.commit(pyproject__toml='[project]\nname = "project"\n', environment__yml="name: x\n")
    pushed.push()
    return Job(tmp_path / "job", pushed)


PLAIN = ["uv venv --python=3.11", "uv pip install -r pyproject.toml .", "uv pip freeze"]

UV = [
    ({"GANTRY_DEFAULT_PYTHON_VERSION": "3.11"}, PLAIN),
    ({}, ["uv venv", *PLAIN[1:]]),
    ({"GANTRY_UV_ALL_EXTRAS": "1"}, ["uv venv", "uv pip install --all-extras -r pyproject.toml .", PLAIN[2]]),
    ({"GANTRY_UV_EXTRAS": "a b"}, ["uv venv", "uv pip install --extra=a --extra=b -r pyproject.toml .", PLAIN[2]]),
    (
        {"GANTRY_USE_SYSTEM_PYTHON": "1"},
        ["uv pip install --system --break-system-packages -r pyproject.toml .", PLAIN[2]],
    ),
    ({"GANTRY_INSTALL_CMD": 'echo own >> "$CALLS"'}, ["uv venv", "own", PLAIN[2]]),
]


@pytest.mark.parametrize(("variables", "calls"), UV)
def test_uv_makes_the_environment(job: Job, variables: dict[str, str], calls: list[str]) -> None:
    done = job.run("sh", "-c", 'echo "$PYTHONPATH $PYTHONUNBUFFERED"', **variables)
    assert done.returncode == 0, done.stderr
    assert job.called == calls
    assert done.stdout.splitlines()[-1] == f"{job.base}/stage 1"
    assert (job.base / "results/.gantry/requirements.txt").read_text() == "package==1\n"


def test_a_failed_install_is_shown_and_ends_the_job(job: Job) -> None:
    done = job.run("echo", "never", UV_CODE="3")
    assert done.returncode == 3
    assert "never" not in done.stdout
    assert "`uv venv` failed with code 3" in done.stderr


@pytest.mark.parametrize(
    ("variables", "calls"),
    [
        ({"GANTRY_CONDA_FILE": "environment.yml"}, ["env create -n gantry -f environment.yml", "activate gantry"]),
        ({"GANTRY_CONDA_ENV": "base"}, ["activate base"]),
        ({"GANTRY_DEFAULT_PYTHON_VERSION": "3.12"}, ["create -y -n gantry python=3.12 pip", "activate gantry"]),
    ],
)
def test_conda_makes_the_environment(job: Job, variables: dict[str, str], calls: list[str]) -> None:
    more = {"GANTRY_PYTHON_MANAGER": "conda", "GANTRY_INSTALL_CMD": "true", **variables}
    python = job.programs / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    done = job.run("true", **more)
    assert done.returncode == 0, done.stderr
    assert job.called == ["conda shell.bash hook", *(f"conda {call}" for call in calls)]


def test_the_fetch_is_tried_again(job: Job) -> None:
    job.fails.write_text("3")
    done = job.run("cat", "README.md", GANTRY_NO_PYTHON="1")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "a project"), done.stderr
    assert job.called == ["sleep 1", "sleep 2", "sleep 4"]
    assert done.stderr.count("the remote hung up") == 3


def test_the_fetch_is_given_up(job: Job) -> None:
    job.fails.write_text("99")
    done = job.run("echo", "never", GANTRY_NO_PYTHON="1")
    assert done.returncode != 0
    assert len(job.called) == 4
    assert "never" not in done.stdout


def test_words_and_shell(job: Job) -> None:
    done = job.run("printf", "%s,", "a b", "$HOME", GANTRY_NO_PYTHON="1")
    assert done.stdout.endswith("a b,$HOME,")
    done = job.run("echo", "$GITHUB_REPO", "&&", "false", GANTRY_NO_PYTHON="1", GANTRY_EXEC_METHOD="bash")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "lab/project")


@pytest.mark.parametrize("node", ["jupiter-1", "elsewhere-1"])
def test_nccl_is_set_where_there_is_infiniband(job: Job, node: str) -> None:
    gang = {"BEAKER_REPLICA_COUNT": "2", "BEAKER_LEADER_REPLICA_HOSTNAME": "a", "BEAKER_ASSIGNED_GPU_COUNT": "8"}
    for skip, expected in (("", "ib" if node == "jupiter-1" else ""), ("1", "")):
        more = {**gang, "BEAKER_NODE_HOSTNAME": node, "GANTRY_SKIP_NCCL_SETUP": skip, "GANTRY_NO_PYTHON": "1"}
        done = job.run("sh", "-c", 'echo "[$NCCL_SOCKET_IFNAME]"', **more)
        assert done.stdout.splitlines()[-1] == f"[{expected}]"


def test_credentials_are_files_of_this_user_alone(job: Job) -> None:
    given = {"GANTRY_AWS_CONFIG": "[default]", "GANTRY_GOOGLE_CREDENTIALS": "{}", "GITHUB_TOKEN": "a token"}
    ask = "printf 'protocol=https\\nhost=github.com\\n\\n' | git credential fill"
    show = f'cat ~/.aws/config "$GOOGLE_APPLICATION_CREDENTIALS"; umask; {ask}'
    done = job.run("sh", "-c", show, GANTRY_NO_PYTHON="1", **given)
    assert done.returncode == 0, done.stderr
    assert job.called == ["gcloud auth activate-service-account"]
    assert "[default]\n{}\n0022\n" in done.stdout
    assert "username=x-access-token\npassword=a token\n" in done.stdout
    assert (job.base / ".aws/config").stat().st_mode & 0o777 == 0o600
    assert not (job.base / ".gitconfig").exists()


def test_what_is_missing_is_named(job: Job) -> None:
    assert "the variable GIT_REF is not set" in job.run("true", GIT_REF="").stderr
    assert "--torchrun: the job has no GPU" in job.run("true", GANTRY_USE_TORCHRUN="1").stderr
    assert "no virtual environment" in job.run("true", GANTRY_UV_VENV="/none").stderr


def test_one_node_needs_no_meeting(job: Job) -> None:
    torchrun = job.programs / "torchrun"
    torchrun.write_text('#!/bin/sh\necho "torchrun $*"\n')
    torchrun.chmod(0o755)
    more = {"GANTRY_USE_TORCHRUN": "1", "BEAKER_ASSIGNED_GPU_COUNT": "4", "GANTRY_NO_PYTHON": "1"}
    assert job.run("train.py", **more).stdout.splitlines()[-1] == "torchrun --nproc-per-node=4 train.py"
    assert job.run("prog", **more).stdout.splitlines()[-1] == "torchrun --nproc-per-node=4 --no-python prog"
