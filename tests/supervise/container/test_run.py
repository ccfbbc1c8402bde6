"""What the words for the engine say, and what of a job's command and variables reaches a container."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from windlass.supervise.container.args import ContainerUser, container_name, create_arguments, secrets_script
from windlass.supervise.container.run import contained, order_inside
from windlass.supervise.gang.messages import Order
from windlass.supervise.job import (
    ContainerConfig,
    JobDocument,
    JobPaths,
    JobSecret,
    ReplicaCommand,
    TaskSettings,
    TaskShape,
)

CONTAINER = ContainerConfig(image="sha256:1", name="base", folders=("/code",), writable=("/out",), cwd="/code")
JOB = JobDocument(run="r-1", task="main", job=2, token="tok", paths=JobPaths("/r"), shape=TaskShape(nodes=2), command=ReplicaCommand(("a",), cwd="/code"), container=CONTAINER)  # fmt: skip
ME = ContainerUser(uid=1000, gid=100, groups=(100, 27), name="ada", memory_bytes=8 << 30)


def words(job: JobDocument = JOB, **more: object) -> list[str]:
    given: dict[str, object] = {"argv": ["python", "a.py"], "env": {"A": "1"}, "user": ME, **more}
    return create_arguments(job, 1, 3, **given)  # type: ignore[arg-type]


def with_container(**changes: object) -> JobDocument:
    return dataclasses.replace(JOB, container=dataclasses.replace(CONTAINER, **changes))  # type: ignore[arg-type]


def test_the_command_comes_last_and_the_images_entry_point_is_not_run() -> None:
    assert words()[-3:] == ["--entrypoint=python", "sha256:1", "a.py"]


def test_labels_tell_whose_it_is() -> None:
    assert {"--label=windlass.token=tok.1", "--label=windlass.run=r-1", "--name=windlass-r-1-main-3-1"} <= set(words())


def test_the_engine_keeps_no_log() -> None:
    assert "--log-driver=none" in words()


def test_it_runs_as_the_caller_with_a_home() -> None:
    assert {"--user=1000:100", "--group-add=27", "--env=HOME=/tmp", "--env=USER=ada"} <= set(words())
    assert "--group-add=100" not in words()
    assert not any(word.startswith("--env=HOME") for word in words(user=ContainerUser(0, 0)))
    assert "--env=HOME=/me" in words(env={"HOME": "/me"})


def test_folders_are_shown_where_they_lie() -> None:
    found = words(with_container(folders=("/a,b", "/out")), folders=["/control"])
    assert '--mount=type=bind,"source=/a,b","target=/a,b",readonly' in found
    assert "--mount=type=bind,source=/out,target=/out" in found
    assert "--mount=type=bind,source=/control,target=/control,readonly" in found


def test_limits_are_the_tasks() -> None:
    job = dataclasses.replace(JOB, shape=TaskShape(cpus=1.5, memory_bytes=1 << 30))
    assert {"--memory=1073741824b", "--memory-swap=1073741824b", "--cpus=1.5", "--shm-size=1073741824b"} <= set(
        words(job)
    )
    assert "--shm-size=5b" in words(dataclasses.replace(JOB, shape=TaskShape(shared_memory_bytes=5)))
    assert f"--shm-size={4 << 30}b" in words()


@pytest.mark.parametrize(
    ("engine", "expected"), [("docker", ['--gpus="device=2,5"']), ("podman", ["--device=nvidia.com/gpu=2"])]
)
def test_leased_gpus_are_numbered_anew(engine: str, expected: list[str]) -> None:
    job = dataclasses.replace(with_container(engine=engine), shape=TaskShape(gpus=2))
    found = words(job, env={"CUDA_VISIBLE_DEVICES": "2,5"})
    assert set(expected) <= set(found)
    assert "--env=CUDA_VISIBLE_DEVICES=0,1" in found


def test_without_gpus_none_is_given() -> None:
    found = words(env={"CUDA_VISIBLE_DEVICES": ""})
    assert "--env=CUDA_VISIBLE_DEVICES=" in found
    assert not any(word.startswith("--gpus") for word in found)


def test_in_a_private_network_replicas_have_names() -> None:
    job = with_container(network="private")
    assert {"--network=windlass-r-1-main-2", "--network-alias=replica-1", "--hostname=replica-1"} <= set(words(job))
    order = order_inside(job, Order(epoch=1, address="127.0.0.1", hosts="vm=127.0.0.1,vm=127.0.0.1"))
    assert (order.address, order.hosts) == ("replica-0", "replica-0=replica-0,replica-1=replica-1")
    assert order_inside(JOB, Order(epoch=1, address="127.0.0.1")).address == "127.0.0.1"


def test_secrets_are_read_by_a_shell_before_the_command() -> None:
    found = words(secrets="/shm/x.sh")
    assert "--mount=type=bind,source=/shm/x.sh,target=/run/windlass/secrets,readonly" in found
    assert found[-6:] == ["sha256:1", "-c", '. /run/windlass/secrets && exec "$@"', "sh", "python", "a.py"]


def test_a_secret_of_any_characters_comes_through_the_shell(tmp_path: Path) -> None:
    value = "a'b\"c$d`e\\f\n\tg "
    (tmp_path / "s").write_bytes(secrets_script({"X": value}))
    line = f'. {tmp_path}/s && printf %s "$X"'
    assert subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True).stdout == value


def test_secret_values_are_neither_in_the_command_nor_in_its_environment(tmp_path: Path) -> None:
    secrets = (JobSecret("PLAIN"), JobSecret("FILE", is_file=True))
    paths = JobPaths("/r", delivery=str(tmp_path / "run.json"))
    job = dataclasses.replace(JOB, settings=TaskSettings(secrets=secrets), paths=paths)
    env = {"WINDLASS_TOKEN": "tok.1", "PLAIN": "canary", "FILE": "/shm/f", "A": "1"}
    argv, outer = contained(job, Path("/r/jobs/main-2"), 1, 3, ["python", "a.py"], env)
    assert "canary" not in " ".join([*argv, *outer.values()])
    assert (outer["WINDLASS_TOKEN"], outer["WINDLASS_INSIDE_FILE"], outer["WINDLASS_INSIDE_A"]) == (
        "tok.1",
        "/shm/f",
        "1",
    )
    [script] = tmp_path.iterdir()
    assert script.read_text() == "export PLAIN='canary'\n"
    assert script.stat().st_mode & 0o777 == 0o600
    assert script.name.startswith("run.")  # goes with the delivery


def test_a_build_of_data_publishes_outside_what_its_container_wrote() -> None:
    argv = ["py", "-I", "-S", "w.pyz", "data-build", "--place=/p", "--", "python", "make.py"]
    found, _ = contained(JOB, Path("/j"), 0, 1, argv, {"WINDLASS_TOKEN": "tok.0"})
    assert found[:7] == argv[:7]
    assert found[11:] == ["contain", "/j", "0", "1", "python", "make.py"]


def test_names_are_what_an_engine_takes() -> None:
    assert container_name(dataclasses.replace(JOB, task="data.x y"), 0, 1) == "windlass-r-1-data.x-y-1-0"
