"""A cluster whose nodes run in containers: podman on two hosts, each with storage of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.lab.docker import BASE, SAVED, DockerLab
from tests.lab.engine_conf import CONTAINERS, REGISTRIES, STORAGE
from tests.lab.hosts import Hosts, wait_until
from tests.lab.slots import claim, dismantle
from windlass.backends.site_shell import SshShell
from windlass.core.process import send_signal

pytestmark = pytest.mark.system

NODES = ("h1", "h2")
IMAGE = "localhost/windlass/marked:1"
CONTAINERFILE = f'FROM localhost/{BASE}\nRUN echo inside > /etc/marker\nENV FROM_IMAGE=yes\nENTRYPOINT ["/bin/false"]\n'
ROOTS = sorted({sys.prefix, sys.base_prefix})
FILE = f"""
name: lab
place: {{ssh: {{hosts: [h1, h2]}}}}
python: {sys.executable}
image: {IMAGE}
image_options: [{", ".join(f"'--volume {each}:{each}:ro'" for each in ROOTS)}]
head: {{resources: {{CPU: 1, GPU: 0, object_store_memory: 80000000}}}}
groups:
  workers: {{count: 1, resources: {{CPU: 1, GPU: 0, licence: 1, object_store_memory: 80000000}}}}
host_setup: ["test ! -e /etc/marker && touch ~/host-set-up"]
setup: ["cp /etc/marker ~/set-up"]
ttl: 30m
"""

TASK = """
import os, ray
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0, resources={"licence": 1})
def look():
    return open("/etc/marker").read().strip(), os.uname().nodename, os.environ["FROM_IMAGE"]
print(*ray.get(look.remote()))
"""


class Podman:
    """Two hosts with podman and an image; commands are processes of their own."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.environ = {
            **os.environ,
            "WINDLASS_HOME": str(folder / "home"),
            "WINDLASS_SSH_CONFIG": str(hosts.ssh_config),
        }
        self.write(FILE)

    def write(self, text: str) -> None:
        (self.folder / "cluster.yaml").write_text(text)

    def call(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self.argv(words), cwd=self.folder, env=self.environ, capture_output=True, text=True)
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def argv(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "windlass", "cluster", *words]

    def podman(self, name: str, *words: str) -> str:
        done = self.hosts.run(name, ["podman", *words], env=self.hosts.exported)
        return done.stdout.strip()

    def containers(self) -> list[str]:
        return [line for name in NODES for line in self.podman(name, "ps", "--all", "--quiet").splitlines()]

    def processes(self, word: str = "WINDLASS_NODE=") -> list[int]:
        """Return the processes on all hosts with a variable that begins like this."""
        found = []
        for pid in (pid for name in NODES for pid in self.hosts.processes(name)):
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if any(each.startswith(word.encode()) for each in environ):
                found.append(pid)
        return found


@pytest.fixture
def podman_hosts(need: Callable[[str], None], docker: DockerLab) -> Iterator[Hosts]:
    """Two hosts, each with podman's storage of its own and the image."""
    need("podman")
    slot = claim(f"podman-of-{os.getpid()}")
    try:
        conf = slot.folder / "conf"
        conf.mkdir()
        (conf / "containers.conf").write_text(CONTAINERS)
        (conf / "registries.conf").write_text(REGISTRIES.format(address="127.0.0.1:1"))
        names = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_REGISTRIES_CONF": "registries.conf"}
        exported = {name: str(conf / file) for name, file in names.items()}
        exported["CONTAINERS_STORAGE_CONF"] = str(Path.home() / "storage.conf")  # in each host's own home
        hosts = Hosts(slot, NODES, exported=exported)
        hosts.up()
        (conf / "Containerfile").write_text(CONTAINERFILE)
        for name in NODES:
            disk = hosts.disk(name) / "containers"
            (hosts.disk(name) / "upper" / "storage.conf").write_text(STORAGE.format(folder=disk))
            for words in (
                ["load", "--quiet", "--input", str(SAVED)],
                [
                    "build",
                    "--quiet",
                    "--network=host",
                    "--tag",
                    IMAGE,
                    "--file",
                    str(conf / "Containerfile"),
                    str(conf),
                ],
            ):
                hosts.run(name, ["podman", *words], env=exported)
        yield hosts
    finally:
        dismantle(slot)


@pytest.fixture
def lab(podman_hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    monkeypatch.setenv("WINDLASS_SSH_CONFIG", str(podman_hosts.ssh_config))
    found = Podman(podman_hosts, tmp_path)
    yield found
    if (tmp_path / "home" / "clusters" / "lab").exists():
        found.call("down", "lab")
    for name in NODES:
        SshShell(name).close()  # connections are kept for ten minutes
    assert (found.containers(), found.processes()) == ([], [])


def test_set_up_ray_and_commands_run_in_one_container_of_each_node(lab: Podman) -> None:
    lab.call("up", "cluster.yaml", "--yes")
    assert len(lab.containers()) == 2
    done = lab.call(
        "exec", "lab", "cat /etc/marker ~/set-up; ls ~/host-set-up; hostname; echo $FROM_IMAGE; exit 7", code=7
    )
    assert done.stdout.split() == ["inside", "inside", f"{Path.home()}/host-set-up", "h1", "yes"]
    (lab.folder / "task.py").write_text(TASK)
    assert lab.call("submit", "lab", "task.py").stdout.split() == ["inside", "h2", "yes"]
    (name,) = lab.podman("h1", "ps", "--format={{.Names}}").split()
    inspected = json.loads(lab.podman("h1", "inspect", name))[0]
    assert not [each for each in inspected["Config"]["Env"] if "TOKEN" in each]
    token = next((lab.folder / "home" / "clusters").rglob("token")).read_text().strip()
    for pid in lab.processes():
        assert token not in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")


def test_a_command_in_a_container_is_ended_by_its_signal(lab: Podman) -> None:
    lab.call("up", "cluster.yaml", "--yes")
    line = "trap 'echo interrupted; exit 5' INT; echo begun; while :; do sleep 0.1; done"
    child = subprocess.Popen(lab.argv(["exec", "lab", line]), cwd=lab.folder, env=lab.environ, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"begun\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate()[0] == b"interrupted\n"
    assert lab.processes("WINDLASS_NODE_RUN=") == []


def test_the_container_of_a_killed_agent_ends_with_down_and_that_of_another_stays(lab: Podman) -> None:
    other = lab.podman("h1", "run", "--detach", "--rm", "--network=host", "--entrypoint=/bin/sleep", IMAGE, "1000")
    lab.call("up", "cluster.yaml", "--yes")
    agents = [pid for pid in lab.processes("") if _name(pid) == "windlass-node"]
    assert len(agents) == 2
    for pid in agents:
        send_signal(pid, signal.SIGKILL)
    wait_until(lambda: not any(_name(pid) == "windlass-node" for pid in agents), "the agents to end")
    assert len(lab.containers()) == 3
    lab.call("down", "lab")
    assert [other.startswith(each) for each in lab.containers()] == [True]
    lab.podman("h1", "rm", "--force", "--time=0", other)


REFUSED = (
    (IMAGE, "127.0.0.1:1/none:1", r"podman cannot pull `127.0.0.1:1/none:1`: Error: .*connection refused"),
    ("host_setup:", "image_engine: docker\nhost_setup:", "`image` needs docker or podman: .*docker"),
    ("image_options: [", "image_options: [--no-such-option=x, ", "podman cannot start a container .*no-such-option"),
    (f"python: {sys.executable}", "python: no-such-python", "no `no-such-python` on the PATH of the image"),
    ("cp /etc/marker ~/set-up", "exit 3", "set-up: `exit 3` exited with 3"),
)


def test_a_node_whose_container_cannot_be_used_is_named_and_has_none(lab: Podman) -> None:
    for old, new, message in REFUSED:
        assert old in FILE
        lab.write(FILE.replace(old, new))
        done = lab.call("up", "cluster.yaml", "--yes", code=None)
        assert done.returncode != 0
        assert re.search(f"h1: {message}", done.stderr), done.stderr
        assert lab.podman("h1", "ps", "--all", "--quiet") == "", message  # the other node may have begun, until `down`
        lab.call("down", "lab")
        assert lab.containers() == [], message


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
