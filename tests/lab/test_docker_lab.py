"""The engine of tests.lab.docker: its own, whole, and gone when it is taken down."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lab import leaks
from tests.lab.docker import BASE, DockerLab
from tests.lab.slots import claimed, group_of

pytestmark = pytest.mark.system


def test_a_container_runs_from_the_base_image_with_a_memory_limit(at_docker: DockerLab) -> None:
    words = ["docker", "run", "--rm", "--network=host", "--memory=50m", BASE, "python3", "-c"]
    assert at_docker.command(*words, "print(6 * 7)") == "42"
    with pytest.raises(AssertionError, match="137"):
        at_docker.command(*words, "b'a' * 200_000_000")


def test_an_image_goes_through_the_registry(at_docker: DockerLab, registry: str) -> None:
    name = f"{registry}/lab/base:1"
    at_docker.command("docker", "tag", BASE, name)
    at_docker.command("docker", "push", "--quiet", name)
    digests = at_docker.command("docker", "image", "inspect", name, "--format={{.RepoDigests}}")
    assert f"{registry}/lab/base@sha256:" in digests
    at_docker.command("docker", "rmi", name)


def test_what_a_test_left_in_the_engine_is_named_and_removed(docker: DockerLab, tmp_path: Path) -> None:
    def leave() -> None:
        with leaks.watch(tmp_path, grace_s=1):
            docker.command("docker", "run", "--detach", "--name=left", "--network=none", BASE, "sleep", "100")
            docker.command("docker", "network", "create", "left-network")
            docker.command("docker", "volume", "create", "left-volume")

    with pytest.raises(leaks.LeakError) as error:
        leave()
    for name in ("left", "left-network", "left-volume"):
        assert name in str(error.value)
    assert docker.left_overs() == []


def test_a_lab_that_is_taken_down_leaves_no_process_network_or_mount() -> None:
    lab = DockerLab(name=f"second-docker-of-{os.getpid()}")
    lab.up()
    slot = lab.slot
    lab.command("docker", "network", "create", "left-network")
    lab.command("docker", "run", "--detach", "--network=left-network", BASE, "sleep", "100")
    lab.down()
    assert slot.name not in {found.name for found in claimed()}
    assert not slot.folder.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{group_of(slot)}"))
    assert str(slot.folder) not in Path("/proc/self/mounts").read_text()
    assert f"{slot.network}." not in Path("/proc/net/fib_trie").read_text()
