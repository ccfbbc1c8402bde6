"""Commands as the client sees them, over a shell whose replies are lost on order."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from windlass.backends.site_shell import RawShellResult, ShellResult
from windlass.cluster.config import ClusterConfig
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Choice, Machine
from windlass.cluster.nodes import commands
from windlass.cluster.nodes.commands import ClusterNode, find_head, find_node, new_run_name
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.state import machine_data
from windlass.config.loading import load_config
from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError, WindlassError
from windlass.runs.home import Home
from windlass.supervise.node.commands import NodeCommand
from windlass.supervise.node.spec import NodeStatus

FILE = "name: lab\nplace: {ssh: {hosts: [h1, h2]}}\ngroups: {workers: {count: 1}}\n"
LOST = UnreachableError("cannot reach h1: timed out", code="site-unreachable")


class Shell:
    """A host with one command: 10 bytes of output, 4 of errors, exit code 3; `plan` says what each call does."""

    name, is_local = "h1", False

    def __init__(self) -> None:
        self.plan: list[Exception | Callable[[RawShellResult], RawShellResult]] = []
        self.calls: list[str] = []
        self.started: list[bytes] = []
        self.end: object = 3
        self.state = "ready"

    def run_bytes(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> RawShellResult:
        verb = argv[4]
        self.calls.append(verb)
        if verb == "node-run":
            assert isinstance(stdin, bytes)
            self.started.append(stdin)
        answer = RawShellResult(0, b"", "")
        if verb == "node-follow":
            output_at, errors_at = int(argv[7]), int(argv[8])
            output, errors = b"0123456789"[output_at : output_at + 4], b"oops"[errors_at:]
            line: dict[str, object] = {"output": len(output), "errors": len(errors)}
            if output_at + len(output) == 10:
                line["exit"] = self.end
            answer = RawShellResult(0, json.dumps(line).encode() + b"\n" + output + errors, "")
            if argv[6] == "none":
                answer = RawShellResult(1, b"", "no run `none`\n")
        step = self.plan.pop(0) if self.plan else None
        if isinstance(step, Exception):
            raise step
        return answer if step is None else step(answer)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> ShellResult:
        if "ls -1tr" in argv[2]:
            return ShellResult(0, "train-1\nexec-2\n", "")
        if argv[0] == "test":
            return ShellResult(0, "", "")
        status = {"token": "t1", "state": self.state, "message": "why", "head": "10.0.0.1:1"}
        return ShellResult(0, json.dumps(status), "")


class Kept:
    def __init__(self) -> None:
        self.out = self.err = b""
        self.notes: list[str] = []

    def output(self, piece: bytes) -> None:
        self.out += piece

    def errors(self, piece: bytes) -> None:
        self.err += piece

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_PAUSE_S", 0.0)


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterHome:
    """A cluster whose journal says that it is up."""
    config = load_config(ClusterConfig, FILE, source="cluster.yaml").value
    found = ClusterHome.create(Home(tmp_path), config)
    found.write_config(config)
    with found.acting() as journal:
        journal.append("cluster.wanted", state="up", why="")
        for number, group in ((1, "head"), (2, "workers")):
            name = f"h{number}"
            machine = Machine(
                id=f"{name}/t{number}", token=f"t{number}", group=group, state="running", choice=Choice(zone=name)
            )
            journal.append("cluster.node", node=machine_data(machine))
    return found


@pytest.fixture
def place(shell: Shell, cluster: ClusterHome) -> MachinePlace:
    return MachinePlace(provider=None, host=lambda machine: NodeHost(shell, cluster.id))  # type: ignore[arg-type]


@pytest.fixture
def head(cluster: ClusterHome, place: MachinePlace) -> ClusterNode:
    return find_head(cluster, place, Path("w.pyz"))


def test_output_is_handed_on_once_and_in_order_whatever_replies_are_lost(head: ClusterNode, shell: Shell) -> None:
    kept = Kept()
    shell.plan = [LOST, lambda each: each, LOST, LOST]
    assert head.follow("train-1", kept) == 3
    assert (kept.out, kept.err) == (b"0123456789", b"oops")
    assert kept.notes == ["cannot reach h1: timed out; trying again, the command goes on", "connected to h1 again"] * 2


def test_a_head_that_stays_away_is_an_error_after_the_patience(head: ClusterNode, shell: Shell) -> None:
    shell.plan = [LOST] * 3
    with pytest.raises(UnreachableError, match="cannot reach h1"):
        head.follow("train-1", Kept(), patience_s=-1.0)


def test_a_reader_that_was_interrupted_goes_on_where_it_was(head: ClusterNode, shell: Shell) -> None:
    kept, at = Kept(), [0, 0]

    def interrupt(answer: RawShellResult) -> RawShellResult:
        raise KeyboardInterrupt

    shell.plan = [lambda each: each, interrupt]
    with pytest.raises(KeyboardInterrupt):
        head.follow("train-1", kept, at=at)
    assert (kept.out, at) == (b"0123", [4, 4])
    assert head.follow("train-1", kept, at=at) == 3
    assert (kept.out, kept.err) == (b"0123456789", b"oops")


def test_a_command_whose_end_nobody_saw_is_an_error(head: ClusterNode, shell: Shell) -> None:
    shell.end = "lost"
    with pytest.raises(WindlassError, match="train-1 ended without an exit code") as caught:
        head.follow("train-1", Kept())
    assert (caught.value.code, caught.value.exit_code) == ("command-lost", 1)


def test_a_start_whose_reply_is_lost_is_repeated_under_the_same_name(head: ClusterNode, shell: Shell) -> None:
    shell.plan = [LOST, LOST]
    head.start("train-1", NodeCommand(("true",)))
    assert shell.started == [NodeCommand(("true",)).to_json()] * 3
    shell.plan = [LOST] * 9
    with pytest.raises(UnreachableError):
        head.start("train-2", NodeCommand(("true",)))


@pytest.mark.parametrize(
    ("verb", "message"),
    [("start", "h1: the node is not ready: ended"), ("kill", "h1: train-1 did not end")],
)
def test_what_the_head_refuses_is_named(head: ClusterNode, shell: Shell, verb: str, message: str) -> None:
    shell.plan = [lambda _: RawShellResult(1, b"", "the node is not ready: ended\n")]
    with pytest.raises(PreconditionError, match=message):
        head.start("train-1", NodeCommand(("true",))) if verb == "start" else head.kill("train-1")


@pytest.mark.parametrize("out", [b"", b"{}\n", b"no json\n", b'{"output": 3, "errors": 0}\nxx'])
def test_a_reply_that_is_none_is_an_error(head: ClusterNode, shell: Shell, out: bytes) -> None:
    shell.plan = [lambda _: RawShellResult(0, out, "")]
    with pytest.raises(PreconditionError) as caught:
        head.follow("train-1", Kept())
    assert caught.value.code == "invalid-reply"


def test_a_run_that_there_is_not_is_answered_with_those_there_are(head: ClusterNode) -> None:
    with pytest.raises(NotFoundError, match="lab has no run `none`") as caught:
        head.follow("none", Kept())
    assert caught.value.hint == "its runs: train-1, exec-2"


def test_a_head_that_is_not_ready_is_no_head_for_commands(
    cluster: ClusterHome, place: MachinePlace, shell: Shell
) -> None:
    shell.state = "setup"
    with pytest.raises(PreconditionError, match="the head of lab is not ready: setup why") as caught:
        find_head(cluster, place, Path("w.pyz"))
    assert caught.value.code == "cluster-down"
    assert find_node(cluster, place, Path("w.pyz"), "head").status == NodeStatus(
        "t1", "setup", "why", head="10.0.0.1:1"
    )


@pytest.mark.parametrize("word", ["h2", "h2/t2"])
def test_a_node_is_found_by_its_host_or_id(cluster: ClusterHome, place: MachinePlace, word: str) -> None:
    assert find_node(cluster, place, Path("w.pyz"), word).machine.token == "t2"


def test_a_node_that_there_is_not_and_a_cluster_that_is_down(cluster: ClusterHome, place: MachinePlace) -> None:
    with pytest.raises(NotFoundError, match="lab has no node `h3`") as unknown:
        find_node(cluster, place, Path("w.pyz"), "h3")
    assert unknown.value.hint == "its nodes: h1, h2"
    with cluster.acting() as journal:
        journal.append("cluster.wanted", state="down", why="")
    with pytest.raises(PreconditionError, match="the cluster lab is not up") as down:
        find_node(cluster, place, Path("w.pyz"), "head")
    assert down.value.code == "cluster-down"


@pytest.mark.parametrize(
    ("words", "stem"), [("train.py", "train"), ("/opt/My Script.py", "my-script"), ("$$$", "run"), ("x" * 99, "x" * 30)]
)
def test_names_of_runs_say_what_runs(words: str, stem: str) -> None:
    first, second = new_run_name(words), new_run_name(words)
    assert first != second
    assert first.rpartition("-")[0] == stem


def test_an_interrupt_while_printing_comes_after_the_count() -> None:
    """What a reader has been given is counted when Ctrl-C is heard, so that nothing is printed twice."""
    reached: list[str] = []

    def print_and_count() -> None:
        with commands._interrupts_later():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("counted")
        reached.append("went on")

    with pytest.raises(KeyboardInterrupt):
        print_and_count()
    assert reached == ["counted"]
