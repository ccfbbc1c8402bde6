"""Container of a node: the engine's command lines, and what becomes of engines that refuse. The engines are scripts."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError
from windlass.supervise.container.args import ContainerUser
from windlass.supervise.container.node_container import (
    check_linger,
    find_engine,
    pull_command,
    run_words,
    start_container,
)
from windlass.supervise.node.container import (
    NodeContainer,
    end_container,
    enter,
    inside_environment,
    read_container,
    write_container,
)
from windlass.supervise.node.spec import NodeSpec

SPEC = NodeSpec(cluster="c-1", token="t" * 32, number=3, image="ray:1", auth_token="secret")
DOCKER = NodeContainer("docker", False, {}, "windlass-c-1-tttttttttttt", f"{SPEC.token}.3")
PODMAN = replace(DOCKER, program="podman", is_podman=True)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is the PATH besides the system's shell."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def words(container: NodeContainer, *options: str, uid: int = 0, groups: Sequence[int] = ()) -> list[str]:
    user = ContainerUser(uid, uid, (uid, *groups))
    return run_words(container, replace(SPEC, image_options=options), user, "/home/a", ["/home/a", "/tmp/scratch"])


def test_a_container_shares_the_machines_network_processes_and_folders(programs: Path) -> None:
    found = words(DOCKER, "--volume /data:/data", "--pull=always")
    assert {"--network=host", "--pid=host", "--ipc=host", "--rm", f"--label=windlass.token={SPEC.token}.3"} < set(found)
    assert "--mount=type=bind,source=/tmp/scratch,target=/tmp/scratch" in found
    at = found.index("--volume")
    assert found[at + 1] == "/data:/data"
    ours = f"--label=windlass.token={SPEC.token}.3"
    assert found[at + 2 : at + 6] == [ours, "--entrypoint=/bin/sh", "ray:1", "-c"]  # after the file's own
    assert "--pull=never" in found
    assert "--pull=always" not in found
    assert "secret" not in " ".join(found)


def test_only_podman_without_root_maps_the_user() -> None:
    assert "--userns=keep-id" in words(PODMAN, uid=1000)
    assert "--userns=keep-id" not in words(PODMAN)
    assert "--user=1000:1000" in words(DOCKER, uid=1000)
    assert "--userns=keep-id" not in words(DOCKER, uid=1000)


def test_podman_without_root_keeps_the_groups_whose_numbers_it_lacks() -> None:
    assert [each for each in words(PODMAN, uid=1000) if "group" in each] == []
    assert [each for each in words(PODMAN, uid=1000, groups=(27, 44)) if "group" in each] == ["--group-add=keep-groups"]
    own = words(PODMAN, "--group-add=44", uid=1000, groups=(27,))
    assert [each for each in own if "group" in each] == ["--group-add=44"]
    for each in (words(PODMAN, groups=(27,)), words(DOCKER, uid=1000, groups=(27,))):
        assert "--group-add=27" in each


def test_podman_without_root_needs_lingering_in_a_session_of_systemd(tmp_path: Path) -> None:
    uid = os.getuid() or 1
    user = pwd.getpwuid(uid).pw_name
    cgroup = tmp_path / "proc" / "self" / "cgroup"
    cgroup.parent.mkdir(parents=True)
    cgroup.write_text(f"0::/user.slice/user-{uid}.slice/session-1.scope\n")
    check_linger(PODMAN, uid, root=tmp_path)  # no systemd
    (tmp_path / "run" / "systemd" / "system").mkdir(parents=True)
    check_linger(PODMAN, 0, root=tmp_path)
    check_linger(DOCKER, uid, root=tmp_path)
    with pytest.raises(PreconditionError, match=f"`loginctl enable-linger {user}` lets them stay") as caught:
        check_linger(PODMAN, uid, root=tmp_path)
    assert (caught.value.code, caught.value.hint) == (
        "engine-failed",
        f"type `loginctl enable-linger {user}` on the node",
    )
    linger = tmp_path / "var" / "lib" / "systemd" / "linger" / user
    linger.parent.mkdir(parents=True)
    linger.touch()
    check_linger(PODMAN, uid, root=tmp_path)
    linger.unlink()
    cgroup.write_text("0::/system.slice/cloud-final.service\n")
    check_linger(PODMAN, uid, root=tmp_path)


def test_gpus_are_given_where_there_are_some(programs: Path) -> None:
    assert not [each for each in words(DOCKER) if "gpu" in each]
    script(programs, "nvidia-smi", "echo GPU 0")
    assert "--gpus=all" in words(DOCKER)
    assert "--device=nvidia.com/gpu=all" in words(PODMAN)
    assert "--gpus=all" not in words(DOCKER, "--gpus device=0")


def test_variables_are_passed_by_name_and_the_images_path_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/machine")
    monkeypatch.setenv("HOME", "/home/a")
    environ = {**inside_environment(os.environ), "TOKEN": "secret"}
    assert "PATH" not in environ
    argv, outer = enter(PODMAN, ["python", "-c", "1"], environ, has_pipe=True)
    assert argv[:2] == ["podman", "exec"]
    assert {"--env=TOKEN", "--env=HOME"} < set(argv)
    assert "secret" not in " ".join(argv)
    assert (outer["TOKEN"], outer["PATH"]) == ("secret", "/machine")
    assert argv[argv.index(PODMAN.name) + 1 :] == [
        "/bin/sh",
        "-c",
        'exec 3>&1 1>&2; exec "$@"',
        "sh",
        "python",
        "-c",
        "1",
    ]
    stated, outer = enter(PODMAN, ["true"], {"PATH": "/inside"})
    assert ("--env=PATH=/inside" in stated, outer["PATH"]) == (True, "/machine")
    assert enter(None, ["true"], {"A": "1"}) == (["true"], {"A": "1"})


def test_the_first_engine_that_responds_is_used(programs: Path) -> None:
    with pytest.raises(PreconditionError, match="no `docker` on the PATH; no `podman` on the PATH") as caught:
        find_engine(SPEC, {})
    assert caught.value.code == "engine-failed"
    down = "[ $1 = --version ] && { echo Docker version 28; exit; }; echo Cannot connect to the daemon >&2; exit 1"
    script(programs, "docker", down)
    with pytest.raises(PreconditionError, match="docker: Cannot connect to the daemon"):
        find_engine(SPEC, {})
    script(programs, "podman", "[ $1 = --version ] && { echo podman version 4.3.1; exit; }; echo 4.3.1 none")
    found = find_engine(SPEC, {"CONTAINERS_CONF": "/conf", "OTHER": "1"})
    assert (found.program, found.is_podman, found.variables) == ("podman", True, {"CONTAINERS_CONF": "/conf"})
    with pytest.raises(PreconditionError, match="Cannot connect"):
        find_engine(replace(SPEC, image_engine="docker"), {})
    script(programs, "docker", "[ $1 = --version ] && { echo Docker version 28; exit; }; echo '28.1 [name=rootless]'")
    with pytest.raises(PreconditionError, match="the daemon has no root"):
        find_engine(replace(SPEC, image_engine="docker"), {})


def test_an_image_that_is_there_is_pulled_only_if_asked(programs: Path) -> None:
    script(programs, "podman", "exit 0")
    assert pull_command(PODMAN, SPEC) == []
    assert pull_command(PODMAN, replace(SPEC, image_options=("--pull always",))) == ["podman", "pull", "ray:1"]
    script(programs, "podman", "exit 1")
    assert pull_command(PODMAN, SPEC) == ["podman", "pull", "ray:1"]
    assert pull_command(PODMAN, replace(SPEC, image_options=("--pull=never",))) == []


def test_an_engine_that_refuses_is_named_with_its_reason(programs: Path, tmp_path: Path) -> None:
    script(programs, "podman", "echo Error: unknown flag: --big >&2; echo \"See 'podman run --help'\" >&2; exit 125")
    with pytest.raises(
        PreconditionError, match="podman cannot start a container of `ray:1`: Error: unknown flag: --big"
    ):
        start_container(PODMAN, SPEC, tmp_path)


def test_a_container_is_removed_by_its_label_and_one_that_stays_is_said(programs: Path, tmp_path: Path) -> None:
    assert end_container(tmp_path) == ""
    (tmp_path / "container.json").write_text("{}")
    assert "container.json" in end_container(tmp_path)
    write_container(tmp_path, PODMAN)
    assert read_container(tmp_path) == PODMAN
    script(programs, "podman", "echo no such storage >&2; exit 1")
    assert end_container(tmp_path) == "podman does not list containers: no such storage"
    script(programs, "podman", "[ $1 = ps ] && { echo abc; exit 0; }; echo busy >&2; exit 1")
    assert end_container(tmp_path, limit_s=0.0) == f"podman does not remove the container {PODMAN.name}: busy"
    lists = f"[ $1 = ps ] && {{ [ -e {tmp_path}/gone ] || echo abc; exit 0; }}; echo $@ > {tmp_path}/gone"
    script(programs, "podman", f"{lists}; echo already in progress >&2; exit 1")  # another removes it
    assert end_container(tmp_path) == ""
    assert (tmp_path / "gone").read_text() == "rm --force --volumes abc\n"
    assert read_container(tmp_path) is None


def test_a_container_whose_maker_was_killed_may_appear_late(programs: Path, tmp_path: Path) -> None:
    write_container(tmp_path, PODMAN)
    late = f"[ $1 = rm ] && {{ : > {tmp_path}/gone; exit 0; }}; [ -e {tmp_path}/gone ] && exit 0"
    script(programs, "podman", f"{late}; [ -e {tmp_path}/asked ] && echo abc; : > {tmp_path}/asked")
    assert end_container(tmp_path, is_last=False) == ""
    assert read_container(tmp_path) == PODMAN  # its maker lives
    (tmp_path / "asked").unlink()
    assert end_container(tmp_path) == ""
    assert (tmp_path / "gone").exists()
    assert read_container(tmp_path) is None
