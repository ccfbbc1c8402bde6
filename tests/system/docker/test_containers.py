"""What a container adds to a run: the image's programs, real limits, the user's own id."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.lab.docker import BASE
from tests.system.stage import PYTHON, Stage
from windlass import Run
from windlass.record.state import State

pytestmark = pytest.mark.system

Launch = Callable[..., Run]

OUTPUT = """
import hashlib, os, pathlib
rows = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(1000)]
(pathlib.Path(os.environ["WINDLASS_OUT"]) / "rows").write_text("\\n".join(rows))
"""

MEET = """
import os, socket
address = (os.environ["WINDLASS_LEADER_ADDRESS"], int(os.environ["WINDLASS_LEADER_PORT"]))
if os.environ["WINDLASS_RANK"] == "0":
    with socket.create_server(("", address[1])) as server:
        server.settimeout(120)
        print("heard", server.accept()[0].recv(9).decode())
else:
    while True:
        try:
            with socket.create_connection(address, timeout=120) as client:
                client.sendall(b"hello")
            break
        except OSError:
            continue
"""


def test_the_image_runs_the_code_with_the_callers_id_and_the_bytes_of_a_run_without(
    stage: Stage, launch: Launch
) -> None:
    stage.write("user.py", OUTPUT)
    line = 'id -u; pwd; touch new || echo "code is read-only"; python3 user.py'
    inside, outside = launch(stage.task(line)), stage.launch(stage.task([PYTHON, "user.py"]))
    assert [stage.end(inside), stage.end(outside)] == [State.SUCCEEDED] * 2, stage.story(inside)
    assert {str(os.getuid()), str(stage.code)} <= set(stage.log(inside).splitlines()), stage.log(inside)
    assert "code is read-only" in stage.log(inside)
    rows = inside.output("main") / "rows"
    assert rows.read_bytes() == (outside.output("main") / "rows").read_bytes()
    assert rows.stat().st_uid == os.getuid()


def test_too_much_memory_is_named_with_the_limit(stage: Stage, launch: Launch) -> None:
    run = launch(stage.task(["python3", "-c", "b'a' * 300_000_000"], memory="64MiB"))
    assert stage.end(run) is State.FAILED
    [end] = stage.ends(run)
    assert (end.cause, end.message) == ("out-of-memory", "the container needed more memory than its limit of 64 MiB")


@pytest.mark.parametrize("network", ["host", "private"])
def test_replicas_find_their_leader(stage: Stage, launch: Launch, network: str) -> None:
    stage.write("meet.py", MEET)
    run = launch(stage.task(["python3", "-u", "meet.py"], nodes=2), image={"network": network})
    assert stage.end(run) is State.SUCCEEDED, stage.story(run) + stage.log(run, rank=1)
    assert stage.log(run) == "heard hello\n"


def test_an_image_without_the_command_says_so(stage: Stage, launch: Launch) -> None:
    run = launch(stage.task(["no-such-program", "x"]))
    assert stage.end(run) is State.FAILED
    [end] = stage.ends(run)
    assert (end.cause, end.message) == ("start-failed", f"the image `{BASE}` has no `no-such-program`")
