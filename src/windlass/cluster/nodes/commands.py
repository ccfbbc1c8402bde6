"""Commands on a cluster's head, as the client sees them: start, follow, end.

A command does not depend on the connection: it is started by name, its output is read in pieces from where the reader is,
and a lost reply is asked for again, so that every byte is printed once and in order.
"""

from __future__ import annotations

import re
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from windlass.backends.site_shell import RawShellResult
from windlass.cluster.config import HEAD
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import GONE, Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError, WindlassError
from windlass.core.json_text import decode_json
from windlass.supervise.node.commands import NodeCommand
from windlass.supervise.node.spec import NodeStatus

__all__ = ["ClusterNode", "Reader", "find_head", "find_node", "new_run_name", "shell_command"]

_PATIENCE_S = 600.0
_PAUSE_S = 1.0
_WAIT_S = 10.0
"""Time that the head waits for something new before it replies."""
_START_TRIES = 5
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


class Reader(Protocol):
    """Receiver of a command's output."""

    def output(self, piece: bytes) -> None:
        """Take the next bytes of standard output."""

    def errors(self, piece: bytes) -> None:
        """Take the next bytes of standard error."""

    def note(self, text: str) -> None:
        """Take a sentence about the connection."""


def new_run_name(words: str) -> str:
    """Return a name for a run that no other run has: `train-7hq2mx4p`."""
    stem = re.sub(r"[^a-z0-9_]+", "-", Path(words).stem.lower()).strip("-_")[:30] or "run"
    return f"{stem}-" + "".join(secrets.choice(_LETTERS) for _ in range(8))


def shell_command(line: str) -> NodeCommand:
    """Return a command that bash parses."""
    return NodeCommand(("bash", "-c", line))


def find_head(home: ClusterHome, place: MachinePlace, archive: Path) -> ClusterNode:
    """Return the head of a cluster, which is ready for commands.

    Raises:
        PreconditionError: the cluster is not up, or its head is not ready (`cluster-down`).
        UnreachableError: the head does not respond.
    """
    head = find_node(home, place, archive, HEAD)
    status = head.status
    if status is None or status.state != "ready":
        state = "not started" if status is None else f"{status.state} {status.message}".strip()
        message = f"the head of {home.name} is not ready: {state}"
        raise PreconditionError(message, hint=f"windlass cluster logs {home.name} --node head", code="cluster-down")
    return head


def find_node(home: ClusterHome, place: MachinePlace, archive: Path, word: str) -> ClusterNode:
    """Return a node by its id, its host, or `head`; the zipapp is installed there unless it is.

    Raises:
        PreconditionError: the cluster is not up (`cluster-down`).
        NotFoundError: it has no such node.
        UnreachableError: the node does not respond.
    """
    state = home.state()
    machines = [each for each in state.living() if each.state not in GONE]
    if not machines or state.wanted == "down":
        hint = f"windlass cluster up {home.name}"
        raise PreconditionError(f"the cluster {home.name} is not up", hint=hint, code="cluster-down")
    names = {HEAD: [each for each in machines if each.group == HEAD]} if word == HEAD else {}
    found = names.get(word) or [each for each in machines if word in _names(each)]
    if len(found) != 1:
        known = ", ".join(each.choice.zone or each.id for each in sorted(machines, key=_head_first))
        raise NotFoundError(f"{home.name} has no node `{word}`", hint=f"its nodes: {known}", code="not-found")
    host = place.host(found[0])
    status = host.status(found[0].token)
    host.ensure_archive(archive)
    return ClusterNode(home=home, host=host, machine=found[0], status=status, archive=archive)


def _names(machine: Machine) -> set[str]:
    return {machine.id, machine.address, machine.public_address, machine.choice.zone, machine.id.partition("/")[0]} - {
        ""
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """Node of a cluster that is up; commands run on the head.

    Attributes:
        status: what its agent last said; None if it never did.
    """

    home: ClusterHome
    host: NodeHost
    machine: Machine
    status: NodeStatus | None
    archive: Path

    @property
    def folder(self) -> str:
        """Return the node's folder, below the user's home."""
        return self.host.folder(self.machine.token)

    def start(self, run: str, command: NodeCommand) -> None:
        """Start a command under a new name; a reply that is lost is asked for again, and the command runs once."""
        for attempt in range(_START_TRIES):
            try:
                answer = self._ask("node-run", run, stdin=command.to_json())
            except UnreachableError:
                if attempt == _START_TRIES - 1:
                    raise
                time.sleep(_PAUSE_S)
                continue
            if answer.code:
                message = f"{self.host.shell.name}: {answer.err.strip()[-300:] or 'the command was not started'}"
                raise PreconditionError(message, hint=f"windlass cluster show {self.home.name}", code="node-failed")
            return

    def store_script(self, name: str, content: bytes) -> str:
        """Write a script to the user's home on the head, for this user only; return its path, below the home."""
        self.host.store_file(".", name, content)
        return name

    def follow(
        self,
        run: str,
        reader: Reader,
        *,
        at: list[int] | None = None,
        follows: bool = True,
        patience_s: float = _PATIENCE_S,
    ) -> int | None:
        """Hand a run's output to a reader until it ends; return its exit code.

        Args:
            at: how many bytes of output and of errors the reader has; kept up to date, also when this is interrupted.
            follows: False: return what there is now, and None if the command still runs.
            patience_s: how long a head that does not respond is asked again.

        Raises:
            NotFoundError: there is no such run.
            UnreachableError: the head did not respond for that long; the command may still run.
            WindlassError: it ended without an exit code (`command-lost`).
        """
        at = [0, 0] if at is None else at
        while True:
            wait_s = _WAIT_S if follows else 0.0
            words = ("node-follow", run, str(at[0]), str(at[1]), str(wait_s))
            answer = self._ask_patiently(*words, reader=reader, patience_s=patience_s)
            line, output, errors = self._pieces(run, answer)
            with _interrupts_later():
                reader.output(output)
                at[0] += len(output)
                reader.errors(errors)
                at[1] += len(errors)
            end = line.get("exit")
            if isinstance(end, int):
                return end
            if end is not None:
                message = f"{run} ended without an exit code: it was killed together with its node"
                hint = f"windlass cluster show {self.home.name}"
                raise WindlassError(message, hint=hint, code="command-lost")
            if not follows and not output and not errors:
                return None

    def read_log(self, name: str, at: int, reader: Reader, *, wait_s: float = 0.0) -> bytes:
        """Return the next bytes of a log of this node: `agent`, `setup`, `ray` or `monitor`; empty if there are none yet."""
        answer = self._ask_patiently("node-log", name, str(at), str(wait_s), reader=reader, patience_s=_PATIENCE_S)
        return self._pieces(name, answer)[1]

    def _ask_patiently(self, verb: str, *words: str, reader: Reader, patience_s: float) -> RawShellResult:
        """Return the reply to a question that may be repeated; a node that does not respond is asked again for a while."""
        lost_s: float | None = None
        while True:
            try:
                answer = self._ask(verb, *words)
            except UnreachableError as error:
                now_s = time.monotonic()
                if lost_s is None:
                    reader.note(f"{error.message}; trying again, the command goes on")
                    lost_s = now_s
                if now_s - lost_s > patience_s:
                    raise
                time.sleep(_PAUSE_S)
                continue
            if lost_s is not None:
                reader.note(f"connected to {self.host.shell.name} again")
            return answer

    def kill(self, run: str) -> None:
        """End a command; returns when it has ended. Idempotent."""
        answer = self._ask("node-kill", run)
        if answer.code:
            message = f"{self.host.shell.name}: {run} did not end"
            raise PreconditionError(message, hint=f"windlass cluster down {self.home.name}", code="node-failed")

    def runs(self) -> list[str]:
        """Return the names of the runs, oldest first."""
        answer = self.host.shell.run(["sh", "-c", 'ls -1tr "$1/runs" 2>/dev/null || true', "sh", self.folder])
        return answer.out.split()

    def words(self, verb: str, *words: str) -> list[str]:
        """Return the command line, on the head, of one of the zipapp's commands."""
        return ["python3", "-I", "-S", f".windlass/clusters/{self.archive.name}", verb, self.folder, *words]

    def _ask(self, verb: str, *words: str, stdin: bytes = b"") -> RawShellResult:
        return self.host.shell.run_bytes(self.words(verb, *words), stdin=stdin, timeout_s=120.0)

    def _pieces(self, run: str, answer: RawShellResult) -> tuple[dict[str, object], bytes, bytes]:
        """Return a reply of `node-follow`: its line, output and errors."""
        first, _, rest = answer.out.partition(b"\n")
        if answer.code or not first:
            known = ", ".join(self.runs()) or "none"
            if f"no run `{run}`" in answer.err:
                raise NotFoundError(f"{self.home.name} has no run `{run}`", hint=f"its runs: {known}", code="not-found")
            raise PreconditionError(f"{self.host.shell.name}: {answer.err.strip()[-300:]}", code="invalid-reply")
        try:
            line = decode_json(first)
            size = int(line["output"])
            whole = size + int(line["errors"])
        except (ValueError, KeyError, TypeError) as error:
            raise PreconditionError(f"{self.host.shell.name}: invalid reply: {error}", code="invalid-reply") from error
        if len(rest) != whole:
            raise PreconditionError(f"{self.host.shell.name}: the reply is cut short", code="invalid-reply")
        return line, rest[:size], rest[size:]


def _head_first(machine: Machine) -> tuple[bool, str, str]:
    return machine.group != HEAD, machine.group, machine.choice.zone or machine.id


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Deliver a Ctrl-C at the end of the block, so that what was printed and what is counted never differ."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught and callable(before):
        before(*caught[0])
