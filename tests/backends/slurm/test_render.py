"""The batch script and the command lines, byte for byte and as a shell runs them."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path, PurePath
from typing import Any

import pytest

from tests.backends.slurm.dressing import dressed, lab_profile
from windlass.backends.slurm.backend import SlurmBackend
from windlass.backends.slurm.render import job_script
from windlass.backends.slurm.version import SlurmVersion
from windlass.supervise.job import ChainConfig, JobDocument, JobPaths, ReplicaCommand, TaskShape
from windlass.supervise.slurm.scheduler import mark_of

ARCHIVE = Path("/shared/windlass/archives/windlass.pyz")
NEW = SlurmVersion(year=22, month=5, patch=8)


def document(*, num_replicas: int = 2, **queue: Any) -> JobDocument:
    plain = JobDocument(
        run="demo-1a2b3c4d",
        task="train",
        job=1,
        token="secret-token",
        paths=JobPaths("/shared/windlass/runs/demo-1a2b3c4d"),
        shape=TaskShape(nodes=num_replicas),
        command=ReplicaCommand(("true",), cwd="/"),
    )
    return dressed(plain, **{"name": "demo-1a2b3c4d.train.1", "python": "python3", **queue})


def script(job: JobDocument, version: SlurmVersion = NEW) -> str:
    return job_script(job, PurePath("/shared/windlass/runs/demo-1a2b3c4d/jobs/train-1"), ARCHIVE, version)


def options(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_the_script_of_a_plain_job_is_this() -> None:
    job = document(gpus_per_node=4, gres_type="gh200")
    assert (
        script(job)
        == """\
#!/bin/sh
#SBATCH --job-name=demo-1a2b3c4d.train.1
#SBATCH --output=/shared/windlass/runs/demo-1a2b3c4d/jobs/train-1/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --export=ALL
#SBATCH --dependency=singleton
#SBATCH --time=0-00:10:00
#SBATCH --signal=B:USR1@60
#SBATCH --partition=main
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --gres=gpu:gh200:4
#SBATCH --mem=300M
name=demo-1a2b3c4d.train.1
folder=/shared/windlass/runs/demo-1a2b3c4d/jobs/train-1
link="$1"
python=python3
archive=/shared/windlass/archives/windlass.pyz
WINDLASS_SUBMIT_PATH=$PATH
WINDLASS_START=$(uname -n)/$PPID/$$/$(date +%s)
export WINDLASS_SUBMIT_PATH WINDLASS_START
trap : USR1  # a notice that comes during the setup must not kill this shell

failed() {
  echo "$1"
  "$python" -I -S "$archive" failed "$folder" "$link" setup-failed "$1" && exit 76
  printf "%s\\n" "$1" >"$folder/setup-failed.txt"
  scancel --state=PENDING --name="$name"
  exit 76
}
command -v "$python" >/dev/null || failed 'there is no `python3` on this node'

exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --overlap --kill-on-bad-exit=0 --wait=0 \
--mpi=none --cpu-bind=none --input=none --label --export=ALL "$python" -I -S "$archive" link "$folder" "$link"
"""
    )


def test_every_wish_of_the_queue_is_an_option() -> None:
    job = document(
        qos="high",
        account="lab",
        nice=100,
        time_s=86_401.0,
        gpus_per_node=2,
        gpu_option="gpus-per-node",
        tmp_bytes=1 << 30,
        exclusive=True,
        exclude=("n3", "n[7-8]"),
        nodelist=("n1", "n2"),
        constraint="fast&big",
        signal_before_s=90.5,
        options=("--network=single_node_vni",),
    )
    assert set(options(script(job))) >= {
        "--qos=high",
        "--account=lab",
        "--nice=100",
        "--time=1-00:01:00",
        "--gpus-per-node=2",
        "--tmp=1024M",
        "--exclusive",
        "--exclude=n3,n[7-8]",
        "--nodelist=n1,n2",
        "--constraint=fast&big",
        "--signal=B:USR1@91",
        "--network=single_node_vni",
    }


def test_what_is_not_said_is_not_asked_for() -> None:
    found = options(script(document(partition="", memory_bytes=0, cpus_per_node=0, signal_before_s=0, time_s=0)))
    assert [option for option in found if "=" in option and option.partition("=")[2] in ("", "0", "0M")] == []
    assert not any(option.startswith(("--mem", "--cpus", "--signal", "--time", "--gres", "--qos")) for option in found)


def test_gpus_that_the_partition_implies_are_not_asked_for() -> None:
    assert "gpu" not in script(document(gpus_per_node=4, gpu_option="none"))


def test_a_site_that_forbids_chains_requeues() -> None:
    job = dataclasses.replace(document(), chain=ChainConfig(scheduler="slurm", mode="requeue"))
    assert "--requeue" in options(script(job))
    assert "--dependency=singleton" not in options(script(job))


def test_no_option_is_newer_than_the_site() -> None:
    assert "--overlap" not in script(document(), SlurmVersion(year=20, month=2))
    assert "--overlap" in script(document(), SlurmVersion(year=25, month=5))


def test_strange_folders_are_quoted_for_slurm_and_for_the_shell() -> None:
    text = job_script(document(), PurePath("/a b/50%/it's"), ARCHIVE, NEW)
    assert '#SBATCH --output="/a b/50%%/it\'s/slurm-%j.out"' in text
    assert "folder='/a b/50%/it'\"'\"'s'" in text


def test_the_token_is_nowhere_and_the_mark_in_the_comment() -> None:
    backend, job = SlurmBackend(lab_profile()), document()
    rendered = backend.render(job, Path("/here/jobs/train-1"), ARCHIVE)
    mark = mark_of("secret-token")
    assert rendered.argv[:3] == ("sbatch", "--parsable", f"--comment=windlass:{mark}.1")
    assert rendered.argv[3:] == ("/shared/windlass/runs/demo-1a2b3c4d/jobs/train-1/job.sbatch", "1")
    assert "secret-token" not in rendered.files["job.sbatch"] + " ".join(rendered.argv)
    assert len(mark) == 20
    assert mark not in "secret-token"


def test_job_json_says_how_links_are_queued(tmp_path: Path) -> None:
    backend = SlurmBackend(lab_profile(bin="/opt/slurm/bin"))
    rendered = backend.render(document(), tmp_path / "train-1", ARCHIVE)
    (tmp_path / "job.json").write_text(rendered.files["job.json"])
    job = JobDocument.read(tmp_path / "job.json")
    assert job.chain.scheduler == "slurm"
    assert job.chain.submit == tuple(
        part.replace(".1", ".${link}") if "comment" in part else part for part in (*rendered.argv[:-1], "${link}")
    )
    assert "exec /opt/slurm/bin/srun " in rendered.files["job.sbatch"]
    assert backend.render(job, tmp_path / "train-1", ARCHIVE) == rendered


def _run(
    tmp_path: Path, *setup: str, python: str = "fake-python", **more: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a script's shell part with programs that note how they were called."""
    programs = tmp_path / "bin"
    programs.mkdir()
    notes = tmp_path / "notes"
    for name in ("srun", "fake-python", "scancel"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {notes}\n')
        (programs / name).chmod(0o755)
    job = dressed(document(), python=python, setup=setup, name="demo")
    text = job_script(job, PurePath(tmp_path), ARCHIVE, NEW)
    path = tmp_path / "job.sbatch"
    path.write_text(text)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **more}
    done = subprocess.run(["/bin/sh", str(path), "3"], env=env, capture_output=True, text=True)
    return done, notes.read_text() if notes.exists() else ""


def test_a_setup_that_works_leads_to_srun(tmp_path: Path) -> None:
    (tmp_path / "init.sh").write_text("module() { echo loading $* >&2; MODULE=$2; export MODULE; }\n")
    done, notes = _run(tmp_path, f". {tmp_path}/init.sh", "module load cuda/12")
    assert done.returncode == 0
    assert notes.startswith("srun --nodes=2 ")
    assert notes.endswith(f"fake-python -I -S {ARCHIVE} link {tmp_path} 3\n")
    assert "loading load cuda/12" in done.stderr


def test_module_is_looked_for_where_the_profile_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "sh").write_text("module() { echo did $* >&2; }\n")
    done, notes = _run(tmp_path, "module purge", "module load cuda/12", MODULESHOME=str(tmp_path))
    assert done.returncode == 0
    assert "did purge\ndid load cuda/12\n" in done.stderr
    assert notes.startswith("srun ")


def test_a_node_without_module_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "sh").write_text("")  # it comes first, whatever else this machine has
    done, notes = _run(tmp_path, "module load cuda/12", MODULESHOME=str(tmp_path))
    assert done.returncode == 76
    assert "setup-failed there is no `module` command on this node, and the profile names modules: " in notes
    assert "srun" not in notes


@pytest.mark.parametrize(
    "module",
    [
        "echo 'no such module' >&2; return 1",
        "echo \"ERROR: Unable to locate a modulefile for 'cuda/99'\" >&2; return 0",
    ],
)
def test_a_module_that_does_not_load_is_told_and_nothing_starts(tmp_path: Path, module: str) -> None:
    (tmp_path / "init.sh").write_text(f"module() {{ {module}; }}\n")
    done, notes = _run(tmp_path, f". {tmp_path}/init.sh", "module load cuda/99")
    assert done.returncode == 76
    assert f"fake-python -I -S {ARCHIVE} failed {tmp_path} 3 setup-failed `module load cuda/99` failed: " in notes
    assert "srun" not in notes


@pytest.mark.parametrize(("name", "is_loaded"), [("nccl", True), ("nccl/2.1", True), ("ncc", False), ("2.1", False)])
def test_a_forbidden_module_that_another_one_brings_ends_the_link(tmp_path: Path, name: str, is_loaded: bool) -> None:
    (tmp_path / "init.sh").write_text("module() { LOADEDMODULES=cuda/12:nccl/2.1; }\n")
    done, notes = _run(tmp_path, f". {tmp_path}/init.sh", "module load cuda/12", f"forbid_module {name}")
    assert (done.returncode, "srun" in notes) == ((76, False) if is_loaded else (0, True))
    assert (
        f"setup-failed `forbid_module {name}` failed: it is loaded, and env.modules_forbidden" in notes
    ) is is_loaded


def test_an_init_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    done, notes = _run(tmp_path, f". {tmp_path}/nowhere.sh")
    assert done.returncode == 76
    assert "nowhere.sh` failed: " in notes
    assert "srun" not in notes


def test_without_python_a_note_says_so_and_the_queue_is_emptied(tmp_path: Path) -> None:
    done, notes = _run(tmp_path, python="python-of-nobody")
    assert done.returncode == 76
    assert (tmp_path / "setup-failed.txt").read_text() == "there is no `python-of-nobody` on this node\n"
    assert notes == "scancel --state=PENDING --name=demo\n"
