"""Commands on a cluster of three hosts, through the command line: output, exit codes, lost connections, the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.hosts import Hosts, wait_until
from windlass.backends.site_shell import SshShell
from windlass.core import process

pytestmark = pytest.mark.system

FILE = f"""
name: lab
place: {{ssh: {{hosts: [h1, h2]}}}}
python: {sys.executable}
head: {{resources: {{CPU: 1, GPU: 0, object_store_memory: 80000000}}}}
groups:
  workers: {{count: 1, resources: {{CPU: 1, GPU: 0, object_store_memory: 80000000}}}}
ttl: 30m
"""


@dataclass
class Terminal:
    """The command line beside three hosts, each call a process of its own."""

    folder: Path
    hosts: Hosts
    environ: dict[str, str]

    def call(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.argv(words), cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=600
        )
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv(words), cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def argv(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "windlass", "cluster", *words]

    def pids(self, name: str) -> list[int]:
        """Return the processes of a name on all hosts, without children of theirs that are about to be programs."""
        found = [pid for host in self.hosts.names for pid in self.hosts.processes(host)]
        return sorted(pid for pid in found if _name(pid) == name and _name(process.parent_of(pid)) != name)

    def processes(self) -> list[str]:
        """Return the command lines of a cluster's processes on all hosts."""
        found = []
        for name in self.hosts.names:
            for pid in self.hosts.processes(name):
                try:
                    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if any(each.startswith(b"WINDLASS_NODE=") for each in environ):
                    found.append(f"{name}: {words[:80]}")
        return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def terminal(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("WINDLASS_SSH_CONFIG", str(hosts.ssh_config))
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "cluster.yaml").write_text(FILE)
    environ = {**os.environ, "WINDLASS_HOME": str(folder / "home"), "WINDLASS_SSH_CONFIG": str(hosts.ssh_config)}
    found = Terminal(folder, hosts, environ)
    yield found
    if (folder / "home" / "clusters" / "lab").exists():
        found.call("down", "lab")
    for name in ("h1", "h2"):
        SshShell(name).close()  # connections are kept for ten minutes
    assert found.processes() == []


@pytest.fixture
def up(terminal: Terminal) -> Terminal:
    """The same with the cluster up; `up` of one that is up changes nothing."""
    terminal.call("up", "cluster.yaml", "--yes")
    return terminal


def test_up_without_a_terminal_asks_for_yes_and_makes_nothing(terminal: Terminal) -> None:
    done = terminal.call("up", "cluster.yaml", code=8)
    assert "error: cannot ask to bring lab up without a terminal" in done.stderr
    assert "hint: `windlass cluster up cluster.yaml --yes` does it" in done.stderr
    assert "lab on ssh: 2 nodes at first" in done.stderr
    assert terminal.processes() == []
    assert not (terminal.folder / "home" / "clusters").exists()


def test_exec_has_the_output_and_the_exit_code_of_the_command(up: Terminal) -> None:
    done = up.call("exec", "lab", "printf 'one\\ntwo'; printf three >&2; exit 37", code=37)
    assert (done.stdout, done.stderr) == ("one\ntwo", "three")
    done = up.call("exec", "lab", "kill -TERM $$", code=143)
    done = up.call("exec", "lab", "hostname; pwd")
    assert done.stdout == f"h1\n{Path.home()}\n"


SCRIPT = """
import os, sys
import ray
ray.init(log_to_driver=False)
assert ray.get(ray.remote(lambda: 1).remote()) == 1
print("argv", sys.argv[1:], flush=True)
print("address", bool(os.environ["RAY_ADDRESS"]), file=sys.stderr)
sys.exit(37)
"""


def test_submit_start_stop_is_the_script_and_nothing_stays(terminal: Terminal) -> None:
    terminal.call("down", "cluster.yaml")
    (terminal.folder / "train.py").write_text(SCRIPT)
    done = terminal.call(
        "submit", "cluster.yaml", "--start", "--stop", "--yes", "train.py", "--", "--lr", "0.1", code=37
    )
    assert done.stdout == "argv ['--lr', '0.1']\n"
    assert "address True\n" in done.stderr
    assert terminal.processes() == []
    (row,) = json.loads(terminal.call("ls", "--json").stdout)["clusters"]
    assert (row["name"], row["state"], row["nodes"]) == ("lab", "down", {})
    assert "the cluster lab is not up" in terminal.call("exec", "lab", "true", code=8).stderr


def test_a_second_up_changes_nothing_and_imports_no_library_of_a_place(up: Terminal) -> None:
    before = {name: up.pids(name) for name in ("raylet", "windlass-node")}
    # CPU seconds, those of ssh included: wall time says more of the other tests than of this command.
    code = (
        "import os, sys\n"
        "from windlass.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "found = sorted({'ray', 'boto3', 'botocore', 'numpy', 'torch'} & set(sys.modules))\n"
        "print(code, found, sum(os.times()[:4]))\n"
    )
    for words in (["up", "cluster.yaml"], ["ls"], ["show", "lab"]):
        line = [sys.executable, "-c", code, "cluster", *words]
        done = subprocess.run(line, cwd=up.folder, env=up.environ, capture_output=True, text=True)
        exit_code, found, seconds = done.stdout.splitlines()[-1].split(" ")
        assert (exit_code, found) == ("0", "[]"), done
        assert float(seconds) < 2.0, words
    assert {name: up.pids(name) for name in before} == before


def test_a_detached_command_is_followed_later_with_every_byte_once(up: Terminal) -> None:
    line = "for i in $(seq 1 200); do echo line $i; [ $((i % 50)) != 0 ] || sleep 0.2; done; exit 5"
    run = up.call("exec", "lab", "-d", line).stdout.strip()
    assert re.fullmatch(r"for-[a-z0-9]{8}", run)
    expected = "".join(f"line {number}\n" for number in range(1, 201))
    assert up.call("logs", "lab", "--run", run, "-f", code=5).stdout == expected
    assert up.call("logs", "lab").stdout == expected
    assert run in up.call("logs", "lab", "--run", "none-1", code=4).stderr


def test_a_connection_that_is_lost_costs_no_byte(up: Terminal) -> None:
    marker = up.folder / "go"  # below /tmp, which hosts share
    line = f"echo before; until [ -e {marker} ]; do sleep 0.1; done; echo after; exit 9"
    following = up.start("exec", "lab", line)
    assert following.stdout is not None
    assert following.stderr is not None
    assert following.stdout.readline() == b"before\n"
    up.hosts.cut("h1")
    try:
        assert b"trying again" in following.stderr.readline()
        marker.touch()
    finally:
        up.hosts.join("h1")
    out, err = following.communicate(timeout=300)
    assert (following.returncode, out) == (9, b"after\n")
    assert b"connected to h1 again" in err


def test_ctrl_c_ends_the_command_and_a_dead_client_does_not(up: Terminal) -> None:
    line = "trap 'echo bye; exit 3' INT; echo here; while :; do sleep 0.1; done"
    following = up.start("exec", "lab", line)
    assert following.stdout is not None
    assert following.stdout.readline() == b"here\n"
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=300)
    assert (following.returncode, out) == (130, b"bye\n"), err
    assert not [each for each in up.processes() if "echo here" in each]

    following = up.start("exec", "lab", line)
    assert following.stdout is not None
    assert following.stdout.readline() == b"here\n"
    following.kill()
    following.communicate()
    assert [each for each in up.processes() if "echo here" in each]


def test_what_a_command_needs_is_hidden_from_other_users(up: Terminal) -> None:
    token = (up.folder / "home" / "clusters" / "lab" / "token").read_text()
    up.call("exec", "lab", '[ "$RAY_AUTH_TOKEN" ] && [ "$RAY_ADDRESS" ]')
    upper = up.hosts.disk("h1") / "upper" / ".windlass"
    found = (upper, *upper.rglob("*"))
    assert [path for path in found if _mode(path) & 0o077 and not _is_below_private(path, upper)] == []
    for name in up.hosts.names:
        for pid in up.hosts.processes(name):
            assert token not in _words(pid)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:  # it was replaced by another
        return 0


def _is_below_private(path: Path, top: Path) -> bool:
    """Whether a folder above lets nobody else in."""
    return any(not each.stat().st_mode & 0o077 for each in path.parents if each.is_relative_to(top))


def test_files_are_copied_without_what_is_excluded_and_fetched_back(up: Terminal) -> None:
    source = up.folder / "src"
    (source / "deep").mkdir(parents=True)
    (source / "keep.py").write_text("x = 1\n")
    (source / "deep" / "tool.sh").write_text("#!/bin/sh\n")
    (source / "deep" / "tool.sh").chmod(0o755)
    assert "copied: 2 nodes" in up.call("sync", "lab", "src").stderr
    for name in ("h1", "h2"):
        assert (up.hosts.disk(name) / "upper" / "src" / "deep" / "tool.sh").stat().st_mode & 0o777 == 0o755
    up.call("rsync-up", "lab", "src/keep.py", "there/other.py")
    assert up.call("exec", "lab", "cat there/other.py").stdout == "x = 1\n"
    up.call("rsync-down", "lab", "src", "back")
    assert sorted(str(path.relative_to(up.folder / "back")) for path in (up.folder / "back").rglob("*")) == [
        "deep",
        "deep/tool.sh",
        "keep.py",
    ]
    up.call("rsync-down", "lab", "there/other.py", "other.py")
    assert (up.folder / "other.py").read_text() == "x = 1\n"
    assert "no such file or folder: nowhere" in up.call("rsync-down", "lab", "nowhere", "x", code=4).stderr


def test_addresses_logs_of_nodes_and_what_has_no_meaning_on_hosts(up: Terminal) -> None:
    assert up.call("get-head-ip", "lab").stdout == up.hosts.ip("h1") + "\n"
    assert up.call("get-worker-ips", "lab").stdout in {up.hosts.ip("h2") + "\n", "h2\n"}
    done = up.call("logs", "lab", "--node", "h2")
    assert "-- ray.log" in done.stderr
    assert done.stdout
    assert "its nodes: h1, h2" in up.call("logs", "lab", "--node", "h9", code=4).stderr
    assert "[no-autoscaler]" in up.call("monitor", "lab", code=8).stderr
    assert "[no-dashboard]" in up.call("dashboard", "lab", code=8).stderr
    assert "[no-terminal]" in up.call("attach", "lab", code=2).stderr


def test_attach_is_a_shell_on_the_head(up: Terminal) -> None:
    leader, follower = os.openpty()
    attached = subprocess.Popen(
        up.argv(["attach", "lab"]), cwd=up.folder, env=up.environ, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    os.write(leader, b'echo "<$(hostname) ${RAY_ADDRESS%:*}>"; exit 7\n')
    said, wanted = b"", f"<h1 {up.hosts.ip('h1')}>".encode()
    end_s = time.monotonic() + 300
    while wanted not in said and time.monotonic() < end_s:
        try:
            said += os.read(leader, 4096)
        except OSError:  # the other side is closed
            break
    assert wanted in said, said
    assert attached.wait(300) == 7
    os.close(leader)


def test_a_port_is_forwarded_while_the_command_runs(up: Terminal) -> None:
    marker = up.folder / "served"
    line = f"cd; {sys.executable} -m http.server 8642 --bind 127.0.0.1 & until [ -e {marker} ]; do sleep 0.1; done; kill %1"
    serving = up.start("exec", "lab", "-p", "8642", line)
    try:
        wait_until(
            lambda: subprocess.run(["curl", "-sf", "-o", "/dev/null", "http://127.0.0.1:8642/"]).returncode == 0,
            "the port",
            timeout_s=300,
        )
    finally:
        marker.touch()
        serving.communicate(timeout=300)
    assert serving.returncode == 0


FOREIGN = """
import os, sys
import ray
ray.init(address="auto", namespace="foreign", log_to_driver=False)
@ray.remote(num_cpus=0)
class Counter:
    count = 0
    def add(self):
        self.count += 1
        return self.count
actor = Counter.options(name="counter", lifetime="detached", get_if_exists=True).remote()
print("count", ray.get(actor.add.remote()))
"""


def test_a_foreign_ray_on_a_host_keeps_its_actor(terminal: Terminal) -> None:
    hosts, ray = terminal.hosts, str(Path(sys.executable).parent / "ray")
    scratch = Path("/var/tmp") / f"foreign-{os.getpid()}"
    address = f"{hosts.ip('h2')}:6399"
    environ = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled"}
    (terminal.folder / "foreign.py").write_text(FOREIGN)

    def count() -> str:
        done = hosts.run("h2", [sys.executable, str(terminal.folder / "foreign.py")], env=environ)
        return done.stdout.strip().splitlines()[-1]

    terminal.call("down", "cluster.yaml")
    options = ["--include-dashboard=false", f"--temp-dir={scratch}", "--object-store-memory=80000000", "--num-cpus=1"]
    start = [ray, "start", "--head", f"--node-ip-address={hosts.ip('h2')}", "--port=6399", *options]
    hosts.run("h2", start, env={"RAY_AUTH_MODE": "disabled"})
    foreign = terminal.pids("raylet")
    try:
        assert count() == "count 1"
        terminal.call("up", "cluster.yaml", "--yes")
        line = "import ray; ray.init(log_to_driver=False); print(len(ray.nodes()))"
        assert terminal.call("exec", "lab", f"{sys.executable} -c '{line}'").stdout == "2\n"
        assert count() == "count 2"
        terminal.call("down", "lab")
        assert count() == "count 3"
        assert (terminal.pids("raylet"), terminal.processes()) == (foreign, [])
    finally:

        def are_gone() -> bool:
            found = [pid for name in ("h1", "h2") for pid in hosts.processes(name) if _is_foreign(pid, scratch)]
            for pid in found:
                process.send_signal(pid, signal.SIGKILL)
            return not found

        wait_until(are_gone, "the foreign Ray to end")
        subprocess.run(["rm", "-rf", str(scratch)], check=True)


def _is_foreign(pid: int, scratch: Path) -> bool:
    words = _words(pid)
    return any(each in words for each in (str(scratch), "ray::", ":6399", "=6399"))


def test_another_user_of_a_host_reaches_nothing(up: Terminal) -> None:
    token = (up.folder / "home" / "clusters" / "lab" / "token").read_text()
    address = up.call("exec", "lab", "echo $RAY_ADDRESS").stdout.strip()
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/var/tmp"]
    connect = f"import ray; ray.init(address={address!r}); print(ray.cluster_resources())"
    tried = up.hosts.run("h1", [*other, sys.executable, "-c", connect], check=False)
    assert tried.code != 0
    assert "CPU" not in tried.stdout
    read = "cat /tmp/windlass-*/* /proc/[0-9]*/environ /root/.windlass/clusters/*/*/spec.json; ls /tmp/windlass-*/"
    seen = up.hosts.run("h1", [*other, "sh", "-c", read], check=False)
    assert token not in seen.stdout
    assert "Permission denied" in seen.stderr


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
