from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.lab.hosts import wait_until
from windlass.core.errors import PreconditionError
from windlass.supervise.archive import ensure_archive
from windlass.supervise.node.commands import (
    ERRORS,
    OUTPUT,
    PYTHON,
    CommandFiles,
    NodeCommand,
    command_environment,
    follow_log,
    follow_run,
)
from windlass.supervise.node.spec import NODE_VARIABLE, NodeFolder, NodeSpec, NodeStatus


def reply(run: CommandFiles, output_at: int = 0, errors_at: int = 0) -> tuple[dict[str, object], bytes]:
    target = io.BytesIO()
    follow_run(run, output_at, errors_at, target, wait_s=0.0)
    line, _, rest = target.getvalue().partition(b"\n")
    return json.loads(line), rest


@pytest.fixture
def run(tmp_path: Path) -> CommandFiles:
    found = CommandFiles(tmp_path / "runs" / "one")
    found.path.mkdir(parents=True)
    (found.path / "command.json").write_bytes(NodeCommand(("true",)).to_json())
    return found


def test_a_reply_has_what_is_new_and_the_exit_code_only_with_the_last_byte(run: CommandFiles) -> None:
    (run.path / OUTPUT).write_bytes(b"one two")
    (run.path / ERRORS).write_bytes(b"oh")
    assert reply(run) == ({"output": 7, "errors": 2}, b"one twooh")  # young: its lock is not yet there
    assert reply(run, 4, 2) == ({"output": 3, "errors": 0}, b"two")
    (run.path / "exit").write_text("37")
    assert reply(run, 4, 1) == ({"output": 3, "errors": 1, "exit": 37}, b"twoh")
    (run.path / OUTPUT).write_bytes(b"x" * (5 << 20))
    line, rest = reply(run)
    assert ("exit" in line, len(rest)) == (False, (4 << 20) + 2)
    assert reply(run, 4 << 20, 2)[0] == {"output": 1 << 20, "errors": 0, "exit": 37}


def test_a_command_whose_waiting_process_is_gone_is_lost(run: CommandFiles) -> None:
    (run.path / "lock").touch()  # nobody holds it
    assert reply(run)[0] == {"output": 0, "errors": 0, "exit": "lost"}


def test_a_run_that_there_is_not_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="no run `two`"):
        reply(CommandFiles(tmp_path / "two"))


def test_a_command_survives_its_text() -> None:
    command = NodeCommand((PYTHON, "a b", "\n"), {"X": "1"})
    assert NodeCommand.from_json(command.to_json()) == command


def test_ray_s_address_and_token_are_variables_and_the_command_s_own_come_last() -> None:
    spec = NodeSpec(cluster="c", token="t", number=0, environment={"A": "node", "B": "node"}, auth_token="secret")
    status = NodeStatus(token="t", state="ready", head="10.0.0.1:6379")
    found = command_environment({"A": "here"}, spec, status, NodeCommand(("true",), {"B": "command"}), "one")
    assert (found["A"], found["B"]) == ("node", "command")
    assert (found["RAY_ADDRESS"], found["RAY_AUTH_TOKEN"], found[NODE_VARIABLE]) == ("10.0.0.1:6379", "secret", "t")


@pytest.mark.parametrize("name", ["ray", "monitor"])
def test_a_log_is_read_from_where_the_reader_is(tmp_path: Path, name: str) -> None:
    folder = NodeFolder(tmp_path)
    (tmp_path / "logs").mkdir()
    folder.log(name).write_bytes(b"abc")
    for at, expected in ((0, b"abc"), (2, b"c"), (3, b"")):
        target = io.BytesIO()
        follow_log(folder, name, at, target, wait_s=0.0)
        line, _, rest = target.getvalue().partition(b"\n")
        assert (json.loads(line), rest) == ({"output": len(expected), "errors": 0, "exists": True}, expected)


# ----------------------------------------------------------------------------------------------- real processes


class Node:
    """A node that is ready, without a Ray, and the zipapp's commands on it."""

    def __init__(self, path: Path, archive: Path) -> None:
        self.folder, self.archive = NodeFolder(path), archive
        path.mkdir()
        spec = NodeSpec(cluster="c", token=os.urandom(8).hex(), number=0, python=sys.executable, auth_token="secret")
        (path / "spec.json").write_bytes(spec.to_json())
        self.status("ready")

    def status(self, state: str) -> None:
        self.folder.write_status(NodeStatus(token="t", state=state, head="127.0.0.1:1", process="1:0:nowhere"))

    def call(self, verb: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-I", "-S", str(self.archive), verb, str(self.folder.path), *words]
        return subprocess.run(argv, input=stdin, capture_output=True, timeout=120)

    def start(self, name: str, *argv: str) -> CommandFiles:
        done = self.call("node-run", name, stdin=NodeCommand(argv).to_json())
        assert done.returncode == 0, done.stderr
        return CommandFiles(self.folder.path / "runs" / name)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_archive(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def node(tmp_path: Path, archive: Path) -> Node:
    return Node(tmp_path / "node", archive)


@pytest.mark.system
def test_a_command_runs_once_under_its_name_and_its_files_are_the_user_s_alone(node: Node) -> None:
    run = node.start("one", "bash", "-c", "echo $RAY_ADDRESS; echo oh >&2; exit 37")
    wait_until(lambda: run.exit_code is not None, "the command")
    node.start("one", "bash", "-c", "echo again")  # a reply was lost, and the client asked again
    assert (run.exit_code, run.piece(OUTPUT, 0), run.piece(ERRORS, 0)) == (37, b"127.0.0.1:1\n", b"oh\n")
    assert {path.name for path in run.path.iterdir() if path.stat().st_mode & 0o077} == set()
    assert run.path.stat().st_mode & 0o777 == 0o700
    done = node.call("node-follow", "one", "4", "0", "5")
    assert done.stdout == b'{"output": 8, "errors": 3, "exit": 37}\n0.0.1:1\noh\n'


@pytest.mark.system
@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("bash", "-c", "kill -KILL $$"), 137),
        (("no-such-program",), 127),
        ((PYTHON, "-c", "import os, sys; sys.exit(4 if os.getcwd() == os.path.expanduser('~') else 5)"), 4),
    ],
)
def test_exit_codes_are_those_of_a_shell(node: Node, argv: tuple[str, ...], code: int) -> None:
    run = node.start("one", *argv)
    wait_until(lambda: run.exit_code is not None, "the command")
    assert run.exit_code == code


@pytest.mark.system
def test_a_command_is_interrupted_and_one_that_does_not_listen_is_killed_with_its_children(node: Node) -> None:
    polite = node.start("polite", "bash", "-c", "trap 'exit 5' INT; echo up; while :; do sleep 0.05; done")
    wait_until(lambda: polite.piece(OUTPUT, 0) == b"up\n", "the command")
    assert node.call("node-kill", "polite").returncode == 0
    assert polite.exit_code == 5
    deaf = "trap '' INT TERM; setsid sh -c 'trap \"\" INT TERM; echo child; while :; do sleep 0.05; done' & wait"
    rude = node.start("rude", "bash", "-c", deaf)
    wait_until(lambda: rude.piece(OUTPUT, 0) == b"child\n", "the command")
    assert node.call("node-kill", "rude").returncode == 0
    assert (rude.exit_code, rude.is_running) == (137, False)
    assert node.call("node-kill", "rude").returncode == 0


@pytest.mark.system
def test_a_reader_waits_for_the_first_byte(node: Node, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = node.start("one", "bash", "-c", f"until [ -e {gate} ]; do sleep 0.02; done; echo through")
    replies: list[bytes] = []
    reading = threading.Thread(
        target=lambda: replies.append(node.call("node-follow", "one", "0", "0", "60").stdout), daemon=True
    )
    reading.start()
    gate.touch()
    reading.join(120)
    assert replies[0].endswith(b"through\n")
    wait_until(lambda: run.exit_code == 0, "the command")


@pytest.mark.system
@pytest.mark.parametrize("state", ["setup", "failed", "ended"])
def test_a_node_that_is_not_ready_runs_nothing(node: Node, state: str) -> None:
    node.status(state)
    done = node.call("node-run", "one", stdin=NodeCommand(("true",)).to_json())
    assert (done.returncode, done.stderr) == (1, f"the node is not ready: {state}\n".encode())
    assert not (node.folder.path / "runs").exists()


@pytest.mark.system
def test_a_command_s_processes_end_with_the_node(node: Node) -> None:
    run = node.start("one", "bash", "-c", "echo up; exec sleep 600")
    wait_until(lambda: run.piece(OUTPUT, 0) == b"up\n", "the command")
    assert node.call("node-stop").returncode == 0
    assert not run.is_running
    assert json.loads(node.call("node-follow", "one", "3", "0", "0").stdout)["exit"] == "lost"


@pytest.mark.system
def test_names_that_are_no_names_are_refused(node: Node) -> None:
    for name in ("../up", "", "a b", "-x"):
        assert node.call("node-run", name, stdin=b"{}").returncode == 2
