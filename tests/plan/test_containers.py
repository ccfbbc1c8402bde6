from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from windlass.core.errors import PreconditionError, SpecError
from windlass.pin.image.pinned import ImagePin
from windlass.plan.containers import container_argv
from windlass.plan.job import RunPaths, job_document
from windlass.plan.pins import Pins
from windlass.plan.planner import make_plan
from windlass.plan.site import Site
from windlass.sites.profile import Containers
from windlass.spec import Env, Experiment, Image, Task
from windlass.supervise.job import ContainerConfig, JobDocument

CWD = PurePosixPath("/shared/runs/r/code")
FOLDERS = (PurePosixPath("/shared/runs/r"), PurePosixPath("/data/gsm8k"))
COMMAND = ("bash", "-c", "python train.py")


def wrap(containers: Containers, image: str, *, uses_gpus: bool = False) -> str:
    found = container_argv(
        containers,
        image,
        COMMAND,
        site="isambard",
        cwd=CWD,
        folders=FOLDERS,
        variables=("WINDLASS_RANK", "HF_HOME"),
        uses_gpus=uses_gpus,
    )
    assert found[-3:] == COMMAND
    return " ".join(found[:-3])


def after_shell(text: str, option: str) -> str:
    """What comes behind the shell that shows the folder of the supervisor's requests, which only the node knows."""
    begin, found, rest = text.partition(f'; exec "$0" "$verb" {option} "$@" ')
    assert begin.startswith("/bin/sh -c ")
    assert found
    return rest


BIND = '--bind "${WINDLASS_CONTROL%/*}"'
MOUNT = '--mount "${WINDLASS_CONTROL%/*}:${WINDLASS_CONTROL%/*}:none:x-create=dir,rbind"'


def test_apptainer() -> None:
    there = Containers(kind="apptainer", binds=("/scratch:/scratch:ro",))
    assert after_shell(wrap(there, "nvcr.io/nvidia/pytorch:25.10-py3", uses_gpus=True), BIND) == (
        "apptainer exec --nv --bind /scratch:/scratch:ro --bind /data/gsm8k --bind /shared/runs/r "
        "--pwd /shared/runs/r/code docker://nvcr.io/nvidia/pytorch:25.10-py3"
    )


def test_the_options_of_the_site_come_as_they_are() -> None:
    there = Containers(kind="apptainer", program="/opt/bin/singularity", options=("--rocm", "--no-home"))
    assert after_shell(wrap(there, "/images/rl.sif", uses_gpus=True), BIND).startswith(
        "/opt/bin/singularity exec --rocm --no-home --bind /data/gsm8k"
    )
    assert wrap(there, "/images/rl.sif").endswith(" /images/rl.sif")
    assert wrap(there, "oras://example.org/rl:1").endswith(" oras://example.org/rl:1")


def test_a_runtime_that_a_node_does_not_have_is_named() -> None:
    argv = container_argv(Containers(kind="apptainer", program="no-such"), "/i.sif", COMMAND, site="lab", cwd=CWD)
    done = subprocess.run(
        argv, env={"PATH": "/usr/bin:/bin", "WINDLASS_CONTROL": "/a/b"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.startswith("there is no no-such on ")) == (127, True)


def test_the_requests_of_the_supervisor_are_shown_behind_the_verb(tmp_path: Path) -> None:
    runtime = tmp_path / "my runtime"
    runtime.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    runtime.chmod(0o755)
    kinds: Any = (("apptainer", "--bind|/a/b|"), ("enroot", "--mount|/a/b:/a/b:none:x-create=dir,rbind|"))
    for kind, option in kinds:
        there = Containers(kind=kind, program=str(runtime))
        argv = container_argv(there, "/i.sif", COMMAND, site="lab", cwd=CWD)
        env = {"PATH": "/usr/bin:/bin", "WINDLASS_CONTROL": "/a/b/control.json"}
        said = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
        assert said.startswith(("exec|" if kind == "apptainer" else "start|") + option)
        assert said.endswith("|bash|-c|python train.py|")


def test_enroot() -> None:
    found = wrap(Containers(kind="enroot", binds=("/scratch",)), "/images/rl.sqsh", uses_gpus=True)
    assert after_shell(found, MOUNT) == (
        "enroot start --mount /scratch:/scratch:none:x-create=dir,rbind "
        "--mount /data/gsm8k:/data/gsm8k:none:x-create=dir,rbind "
        "--mount /shared/runs/r:/shared/runs/r:none:x-create=dir,rbind "
        '--env HF_HOME --env WINDLASS_RANK --env NVIDIA_VISIBLE_DEVICES=all /images/rl.sqsh /bin/sh -c cd "$0" && exec "$@" /shared/runs/r/code'
    )


@pytest.mark.parametrize(
    ("kind", "shown"), [("apptainer", "--bind {0}"), ("enroot", "--mount {0}:{0}:none:x-create=file,bind")]
)
def test_a_secret_that_is_a_file_is_shown_as_a_file(kind: Any, shown: str) -> None:
    file = PurePosixPath("/state/delivery/1f.TOKEN")
    argv = container_argv(Containers(kind=kind), "/images/rl", COMMAND, site="lab", cwd=CWD, files=[file])
    assert shown.format(file) in " ".join(argv)


@pytest.mark.parametrize(
    ("kind", "image", "code", "words"),
    [
        ("none", "a:1", "unsupported-setting", "`env.image` is `a:1`, but site `isambard` does not run containers"),
        ("apptainer", "./Dockerfile", "image-unsupported", "apptainer cannot build from a Dockerfile"),
        ("enroot", "a:1", "image-unsupported", "enroot starts image files only"),
    ],
)
def test_what_cannot_be_run_is_refused(kind: str, image: str, code: str, words: str) -> None:
    with pytest.raises(PreconditionError) as caught:
        wrap(Containers(kind=kind), image)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert words in caught.value.message


def refused(experiment: Experiment) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        make_plan(experiment, Pins(), Site(name="docker", backend="docker"))
    return [(problem.code, problem.message) for problem in caught.value.problems]


def test_an_engine_needs_an_image() -> None:
    experiment = Experiment(name="x", tasks={"main": Task(run="true")})
    assert refused(experiment) == [("no-image", "`docker` runs containers, but the experiment has no image")]


@pytest.mark.parametrize("cluster", ["ray", "mpi", "srun"])
def test_what_starts_other_processes_outside_is_refused(cluster: Any) -> None:
    task = Task(run="python a.py", cluster=cluster, nodes=2)
    experiment = Experiment(name="x", env=Env(image=Image(name="base:1")), tasks={"main": task})
    message = f"task `main` has `cluster: {cluster}`, which cannot start processes in the image `base:1`"
    assert ("unsupported-setting", message) in refused(experiment)


def test_an_environment_beside_an_image_is_refused() -> None:
    experiment = Experiment(name="x", env=Env(uv="."), tasks={"main": Task(run="true")})
    assert "unsupported-setting" in [code for code, _ in refused(experiment)]


def container_of(image: Image, *, in_image: bool = False) -> ContainerConfig:
    return job_of(image, in_image=in_image).container


def job_of(image: Image, *, in_image: bool = False, **settings: Any) -> JobDocument:
    experiment = Experiment(name="x", env=Env(image=image), tasks={"main": Task(run="true", **settings)})
    pin = ImagePin(kind="named", name=str(image), has_own_code=in_image, network=image.network)
    plan = make_plan(experiment, Pins(image=pin), Site(name="podman", backend="docker"))
    run = Path("/runs/r")
    places = RunPaths(run="r", run_dir=run, code=run / "code" / "sub", data={}, image="sha256:1", engine={"A": "b"})
    return job_document(plan, plan.tasks[0], places=places, job=1, token="t")


def test_a_container_sees_code_and_outputs_and_writes_its_own() -> None:
    job = job_of(Image(name="base:1"), cpus=2, shared_memory=5 << 20)
    found = job.container
    assert (found.engine, found.image, found.name, found.variables) == ("podman", "sha256:1", "base:1", {"A": "b"})
    assert found.folders == ("/runs/r/out", "/runs/r/checkpoints", "/runs/r/code")
    assert found.writable == ("/runs/r/out/main", "/runs/r/checkpoints/main", "/runs/r/journal")
    assert (found.cwd, job.shape.cpus, job.shape.shared_memory_bytes) == ("/runs/r/code/sub", 2, 5 << 20)


def test_nothing_lies_over_the_code_of_an_image_with_its_own() -> None:
    assert "/runs/r/code" not in container_of(Image(name="base:1"), in_image=True).folders


def test_the_network_is_the_images() -> None:
    assert container_of(Image(name="base:1", network="private")).network == "private"
