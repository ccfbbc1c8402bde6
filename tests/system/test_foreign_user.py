"""Another user of the machine attacks a gang's leader, and the run does not notice."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.stage import PYTHON, Stage, until
from windlass import Run
from windlass.record.state import State

pytestmark = pytest.mark.system

# Which attack, port. It prints a line when its worst has happened, and goes on until its input is closed.
ATTACKER = r"""
import contextlib, os, select, socket, sys
what, port = sys.argv[1], int(sys.argv[2])
"x".encode("idna")  # loaded before its folder can no longer be read
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
DEEP = b"[" * 5000 + b"\n"
HELLO = b"windlass-gang 00000001 " + b"0" * 32 + b"\n"
def connect():
    return socket.create_connection(("127.0.0.1", port), timeout=60)
def is_over():
    return bool(select.select([sys.stdin], [], [], 0)[0])
def say():
    print("done", flush=True)
if what == "deep":  # each of these ended a supervisor
    for number in range(40):
        with contextlib.suppress(OSError), connect() as leader:
            leader.sendall((DEEP, HELLO + DEEP, b'{"token":' + DEEP, b"\xff" * 70000)[number % 4])
            leader.settimeout(30)
            while leader.recv(4096):
                pass
    say()
elif what == "slow":  # silence, a byte at a time, a line without an end
    kept = [connect() for _ in range(30)]
    say()
    while not is_over():
        for number, leader in enumerate(kept):
            with contextlib.suppress(OSError):
                leader.settimeout(1)
                leader.send(b"w" if number % 3 == 1 else b"x" * 4096 if number % 3 == 2 else b"")
        select.select([sys.stdin], [], [], 0.2)
elif what == "flood":  # thousands at once, again and again
    kept, is_told, made = [], False, 0
    while not is_over():
        with contextlib.suppress(OSError):
            kept.append(connect())
            made += 1
        if len(kept) > 800:
            for leader in kept[:200]:
                leader.close()
            del kept[:200]
        if made >= 3000 and not is_told:
            is_told = True
            say()
"""

GANG = """
import os, time
from windlass import report
place = report.place()
print("here", place.rank, flush=True)
while not os.path.exists("go"): time.sleep(0.05)
report.progress("step", step=1)
print("done", place.rank, flush=True)
"""


def leader_of(run: Run) -> Path:
    (claim,) = (run.folder.jobs / "main-1").glob("leader-*.json")
    return claim


def attack(what: str, port: int) -> subprocess.Popen[str]:
    command = [PYTHON, "-I", "-S", "-c", ATTACKER, what, str(port)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", env={})


@pytest.mark.parametrize("what", ["deep", "slow", "flood"])
def test_another_user_attacks_the_leader_of_a_running_gang(
    stage: Stage, what: str, need: Callable[[str], None]
) -> None:
    need("root")
    run = stage.launch(stage.python(GANG, nodes=3))
    for rank in range(3):
        stage.wait_for_line(run, f"here {rank}", rank=rank)
    port = json.loads(leader_of(run).read_text())["port"]
    attacker = attack(what, port)
    assert attacker.stdin is not None
    assert attacker.stdout is not None
    try:
        assert attacker.stdout.readline() == "done\n", stage.story(run)
        stage.write("go", "")
        assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    finally:
        attacker.stdin.close()
        attacker.kill()
        attacker.wait()
        attacker.stdout.close()
    assert stage.causes(run) == ["ok"], stage.story(run)
    assert leader_of(run).name == "leader-1.json"
    assert list(run.folder.jobs.rglob("*.crash")) == []


def test_a_gang_gathers_while_another_user_floods_the_port(stage: Stage, need: Callable[[str], None]) -> None:
    """Replicas that start late have to get through to the leader between thousands of strangers."""
    need("root")
    spec = stage.python(GANG, nodes=3)
    stage.experiment(spec)
    run = stage.launch(spec)
    until(lambda: any((run.folder.jobs / "main-1").glob("leader-1.json")), "a leader", story=lambda: stage.story(run))
    attacker = attack("flood", json.loads(leader_of(run).read_text())["port"])
    assert attacker.stdin is not None
    try:
        stage.write("go", "")
        assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    finally:
        attacker.stdin.close()
        attacker.kill()
        attacker.wait()
        if attacker.stdout is not None:
            attacker.stdout.close()
    assert stage.causes(run) == ["ok"], stage.story(run)
    assert leader_of(run).name == "leader-1.json"
