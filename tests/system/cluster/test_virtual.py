"""Virtual machines: what each has for itself, how it ends, and a server that anything may happen to."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.components import COMPONENTS, is_present
from tests.system.cluster.virtual_lab import VirtualLab, until, virtual_lab
from windlass.cluster.machine import Machine
from windlass.cluster.providers.virtual.place import SHUTDOWN, check_machine
from windlass.core.errors import UnreachableError

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not is_present("ssh"), reason=f"needs ssh: {COMPONENTS['ssh'].remedy}"),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[VirtualLab]:
    with virtual_lab(tmp_path / "cluster") as found:
        yield found


def say(lab: VirtualLab, machine: Machine, line: str) -> str:
    done = lab.place.host(machine).shell.run(["sh", "-c", line], timeout_s=300)
    assert done.code == 0, done
    return done.out.strip()


# ------------------------------------------------------------------------------------------------- what a machine has


def test_machines_have_their_own_things_and_share_the_rest(lab: VirtualLab, tmp_path: Path) -> None:
    lab.create("t", count=2)
    first, second = lab.running("t")
    say(lab, first, "echo mine > ~/windlass-mark; echo mine > /tmp/mark; echo mine > /dev/shm/mark")
    assert say(lab, second, "ls ~/windlass-mark /tmp/mark /dev/shm/mark 2>/dev/null | wc -l") == "0"
    assert not Path("~/windlass-mark").expanduser().exists()
    for machine in (first, second):
        assert say(lab, machine, "hostname") == machine.id
        assert machine.address in say(lab, machine, "ip -4 -o address show eth0")
        assert say(lab, machine, "pwd; cat /etc/os-release | wc -l") == say(
            lab, first, "pwd; cat /etc/os-release | wc -l"
        )
        assert int(say(lab, machine, "ls -d /proc/[0-9]* | wc -l")) < 12
    listen = f"import socket; s = socket.create_server(('{first.address}', 7)); print(s.accept()[0].recv(9).decode())"
    python = "python3 -I -S -c"
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(say, lab, first, f'{python} "{listen}"')
        dial = f"import socket, time\nfor _ in range(2000):\n try: s = socket.create_connection(('{first.address}', 7)); break\n except OSError: time.sleep(0.02)\ns.send(b'hello')"
        say(lab, second, f'{python} "{dial}"')
        assert heard.result(120) == "hello"


def test_user_data_runs_once_and_knows_its_machine(lab: VirtualLab) -> None:
    boot = b'#!/bin/sh\necho "run as $(id -u) on $WINDLASS_VIRTUAL_ID in $(pwd)"\nexit 3\n'
    (made,) = lab.create("t", boot=boot)
    until(lambda: lab.boot_log(made.id), "the user data")
    assert lab.kill_server() == 1
    assert [each.state for each in lab.provider.list_machines(lab.cluster)] == ["running"]
    fetch = "import os, urllib.request as u; print(u.urlopen('http://' + os.environ['WINDLASS_VIRTUAL_METADATA'] + '/id').read())"
    assert made.id in say(lab, made, f'python3 -I -S -c "{fetch}"')
    assert lab.boot_log(made.id) == f"run as 0 on {made.id} in /\n"


def test_orphans_are_reaped(lab: VirtualLab) -> None:
    lab.create("t")
    (machine,) = lab.running("t")
    say(lab, machine, "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done; sleep 0.3")
    count = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"
    until(lambda: say(lab, machine, count) == "0", "zombies to be reaped")


def test_a_shell_reports_codes_output_and_the_end(lab: VirtualLab) -> None:
    lab.create("t")
    (machine,) = lab.running("t")
    shell = lab.place.host(machine).shell
    assert shell.run(["sh", "-c", "cat; echo no >&2; exit 7"], stdin=b"in").code == 7
    assert shell.run(["cat"], stdin=b"in").out == "in"
    assert shell.run(["sh", "-c", "echo $A"], env={"A": "b c"}).out == "b c\n"
    assert shell.run(["no-such-program"]).code == 127
    with pytest.raises(UnreachableError, match=r"did not respond to `sleep 60` within 0.5 s"):
        shell.run(["sleep", "60"], timeout_s=0.5)
    assert say(lab, machine, "cat /proc/[0-9]*/comm | grep -c sleep || true") == "0"
    with pytest.raises(UnreachableError, match=f"cannot reach {machine.id}: it ended meanwhile"):
        shell.run(["sh", "-c", f"{SHUTDOWN}; sleep 60"])
    with pytest.raises(UnreachableError, match=f"cannot reach {machine.id}: it "):
        shell.run(["true"])


# ---------------------------------------------------------------------------------------------------------- its end


@pytest.mark.parametrize("command", [SHUTDOWN, "shutdown -h now"])
def test_a_machine_ends_itself(lab: VirtualLab, command: str) -> None:
    if command != SHUTDOWN and shutil.which("shutdown") is None:
        pytest.skip("this machine has no `shutdown`, so that its machines have none")
    boot = f"#!/bin/sh\nsetsid sleep 1000 &\n{command}\n".encode()
    (made,) = lab.create("t", boot=boot)
    until(lambda: not lab.provider.list_machines(lab.cluster), "its end")
    (ended,) = lab.provider.find("t")
    assert (ended.state, ended.why) == ("ended", "it ended itself")
    assert lab.processes() == []
    assert made.id == ended.id


def test_a_deadline_holds_with_the_server_dead(lab: VirtualLab) -> None:
    lab.provider.call("lab.ledger")  # starts the server, which may take long
    deadline_at = time.time() + 15.0
    lab.create("t", count=2, boot=b"#!/bin/sh\ntrap '' TERM\nsleep 1000\n", deadline_at=deadline_at)
    lab.running("t")
    lab.kill_server()
    assert time.time() < deadline_at, "the server died too late to prove anything"
    until(lambda: not lab.processes(), "the machines to end themselves")
    asked_at = time.time()
    until(lambda: all(each.state == "ended" for each in lab.provider.find("t")), "a new server to see it")
    for ended in lab.provider.find("t"):
        assert ended.why == "its deadline has passed"
        assert ended.ended_at is not None
        assert deadline_at <= ended.ended_at < min(deadline_at + 60.0, asked_at)  # not when a server next looked


def test_a_notice_comes_before_the_end(lab: VirtualLab) -> None:
    loop = b'#!/bin/sh\nwhile :; do curl -s "http://$WINDLASS_VIRTUAL_METADATA/notices"; echo; sleep 0.1; done\n'
    (made,) = lab.create("t", boot=loop)
    lab.running("t")
    until(lambda: "[]" in lab.boot_log(made.id), "an empty notice")
    at = time.time() + 10.0
    lab.provider.call("lab.notice", id=made.id, kind="terminate", at=at)
    until(lambda: not lab.provider.list_machines(lab.cluster), "its end")
    (ended,) = lab.provider.find("t")
    assert (ended.why, ended.state) == ("taken back", "ended")
    assert ended.ended_at is not None
    assert ended.ended_at >= at
    assert json.dumps([{"kind": "terminate", "at": at}]) in lab.boot_log(made.id)


def test_a_slow_boot_is_pending_and_may_be_ended(lab: VirtualLab) -> None:
    lab.provider.call("lab.faults", faults=[{"kind": "slow-boot", "verb": "create", "seconds": 600.0}])
    (made,) = lab.create("t", boot=b"#!/bin/sh\necho ran\n")
    (fast,) = lab.create("u")
    lab.running("u")
    assert {each.id: each.state for each in lab.provider.list_machines(lab.cluster)}[made.id] == "pending"
    with pytest.raises(UnreachableError, match="it is pending"):
        lab.place.host(made).shell.run(["true"])
    lab.provider.terminate([made.id, fast.id])
    until(lambda: not lab.provider.list_machines(lab.cluster), "their end")
    assert lab.boot_log(made.id) == ""


def test_the_ledger_counts_seconds(lab: VirtualLab) -> None:
    began = time.time()
    (made,) = lab.create("t")
    lab.running("t")
    lab.provider.terminate([made.id])
    until(lambda: not lab.provider.list_machines(lab.cluster), "its end")
    wall_s = time.time() - began
    ledger = lab.provider.call("lab.ledger")
    (row,) = ledger["machines"]
    assert (row["id"], row["token"], row["price_per_hour"]) == (made.id, "t", 0.1)
    assert 0 < ledger["seconds"] <= wall_s


def test_what_a_machine_lacks_has_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert list(check_machine()) == []
    monkeypatch.setattr("windlass.cluster.providers.virtual.place.shutil.which", lambda name, path: None)
    (problem,) = check_machine()
    assert (problem.code, problem.message) == ("program-missing", "`unshare` is not installed")
    assert problem.hint == "apt-get install util-linux"
    monkeypatch.setattr("windlass.cluster.providers.virtual.place.os.geteuid", lambda: 1000)
    (problem,) = check_machine()
    assert problem.message == "virtual machines need root"
