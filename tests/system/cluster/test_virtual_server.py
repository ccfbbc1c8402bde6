"""Server of virtual machines: who may use it, what it survives, and that it leaves nothing behind."""

from __future__ import annotations

import json
import random
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.components import COMPONENTS, is_present
from tests.system.cluster.virtual_lab import VirtualLab, answer, links, until, virtual_lab
from windlass.cluster.machine import Choice
from windlass.cluster.providers.protocol import CreateRequest, RefusedError, UncertainError
from windlass.cluster.providers.virtual.provider import VirtualProvider, open_provider
from windlass.cluster.providers.virtual.wire import MAC, MAX_BYTES, clock_s, sign
from windlass.core.errors import UnreachableError

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not is_present("ssh"), reason=f"needs ssh: {COMPONENTS['ssh'].remedy}"),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[VirtualLab]:
    with virtual_lab(tmp_path / "cluster") as found:
        yield found


# ------------------------------------------------------------------------------------------------------ the server


def address_of(lab: VirtualLab) -> tuple[str, int]:
    host, _, port = json.loads(lab.cloud.access.read_text())["address"].rpartition(":")
    return host, int(port)


def exchange(lab: VirtualLab, content: bytes) -> bytes:
    """Send bytes to the server and return its whole reply."""
    with socket.create_connection(address_of(lab), timeout=60) as connection:
        connection.sendall(content)
        reply = b""
        try:
            while piece := connection.recv(1 << 16):
                reply += piece
        except ConnectionError:
            pass
        return reply


def signed(lab: VirtualLab, token: str | None = None, *, at: float = 0.0, nonce: str = "", verb: str = "list") -> bytes:
    nonce = nonce or secrets.token_hex(8)
    token = token or json.loads(lab.cloud.access.read_text())["token"]
    arguments = {"cluster": lab.cluster}
    body = json.dumps({"at": clock_s() + at, "nonce": nonce, "verb": verb, "arguments": arguments}).encode()
    return (
        f"POST / HTTP/1.1\r\nContent-Length: {len(body)}\r\n{MAC}: {sign(token, 'request', body)}\r\n\r\n".encode()
        + body
    )


def _sent_twice(lab: VirtualLab) -> tuple[bytes, bytes]:
    """Return the replies to one request that is sent twice, both while it is young: a busy machine may be too slow."""
    end_s = time.monotonic() + 60.0
    while True:
        good = signed(lab)
        first, again = exchange(lab, good), exchange(lab, good)
        if b"stale" not in first + again:
            return first, again
        assert time.monotonic() < end_s, (first, again)


def test_who_has_no_token_gets_no_reply(lab: VirtualLab) -> None:
    lab.create("t")
    first, again = _sent_twice(lab)
    assert b"windlass-token" in first
    assert again == b""
    assert exchange(lab, signed(lab, "0" * 64, nonce="a")) == b""
    assert exchange(lab, signed(lab, nonce="b")[:-1] + b" ") == b""
    assert exchange(lab, b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}") == b""
    assert b"stale" in exchange(lab, signed(lab, at=-30.0, nonce="c"))
    assert b"stale" in exchange(lab, signed(lab, at=30.0, nonce="d"))
    assert (
        b"404" in exchange(lab, b"GET /id HTTP/1.1\r\n\r\n").split(b"\r\n")[0]
    )  # this machine is none of its machines
    until(lambda: b"unknown request `shutdown`" in exchange(lab, signed(lab, verb="shutdown")), "the refusal")
    assert lab.cloud.access.stat().st_mode & 0o077 == 0
    assert (lab.cloud.path / "token").stat().st_mode & 0o077 == 0


def test_hostile_bytes_change_nothing(lab: VirtualLab) -> None:
    (made,) = lab.create("t")
    lab.running("t")
    rng = random.Random(16)
    for number in range(200):
        good = signed(lab, nonce=str(number))
        kind = rng.randrange(6)
        if kind == 0:
            content = rng.randbytes(rng.randrange(1, 4000))
        elif kind == 1:
            place = rng.randrange(good.index(b"\r\n\r\n") + 4, len(good))
            content = good[:place] + rng.randbytes(1) + good[place + 1 :]
            content = content if content != good else good[:-1]
        elif kind == 2:
            content = (
                f"POST / HTTP/1.1\r\nContent-Length: {rng.choice((-1, MAX_BYTES + 1, 10**30, 'x'))}\r\n\r\n".encode()
            )
        elif kind == 3:
            content = b"GET /" + bytes(rng.choices(b"abc/%.", k=20)) + b" HTTP/1.1\r\n\r\n"
        elif kind == 4:
            content = b"POST / HTTP/1.1\r\nX: " + b"a" * 100_000
        else:
            content = b"\r\n\r\n" * rng.randrange(1, 20)
        with socket.create_connection(address_of(lab), timeout=60) as connection:
            try:
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                reply = connection.recv(1 << 16)
            except OSError:  # it was closed already
                reply = b""
        assert b"result" not in reply, (number, content[:200])
    assert [each.id for each in lab.provider.list_machines(lab.cluster)] == [made.id]
    assert len(lab.servers()) == 1
    assert "Traceback" not in lab.cloud.log.read_text()


def test_silent_connections_do_not_keep_the_owner_out(lab: VirtualLab) -> None:
    (made,) = lab.create("t")
    silent = [socket.create_connection(address_of(lab), timeout=60) for _ in range(120)]
    try:
        for each in silent[::2]:
            each.sendall(b"POST / HT")

        def lists() -> bool:
            try:
                return [each.id for each in lab.provider.list_machines(lab.cluster)] == [made.id]
            except UncertainError:  # its slots are taken for at most ten seconds
                return False

        until(lists, "a reply")
    finally:
        for each in silent:
            each.close()


def test_invalid_requests_of_the_owner_are_refused(lab: VirtualLab) -> None:
    lab.create("t")
    for verb, arguments in (
        ("create", {}),
        ("create", {"asked": {"count": 10**9}, "boot": ""}),
        ("create", {"asked": 3, "boot": None}),
        ("terminate", {"ids": "all"}),
        ("describe", {"ids": [1]}),
        ("lab.notice", {"id": "v-none", "kind": "terminate", "at": 1.0}),
        ("lab.faults", {"faults": [{"no": 1}]}),
    ):
        with pytest.raises(RefusedError, match=f"invalid request `{verb}`") as caught:
            lab.provider.call(verb, **arguments)
        assert caught.value.code == "provider-refused"
    with pytest.raises(RefusedError, match="the token t belongs to a request with another count"):
        lab.create("t", count=2)
    bad = CreateRequest(token="u", cluster="c", group="workers", count=1, choice=Choice(type="huge"))
    with pytest.raises(RefusedError, match="unknown machine type `huge`"):
        lab.provider.create(bad)
    assert len(lab.provider.list_machines(lab.cluster)) == 1


def test_the_head_uses_the_file_with_the_access(lab: VirtualLab, tmp_path: Path) -> None:
    lab.create("t")
    (head,) = lab.running("t")
    there = tmp_path / "head"
    there.mkdir()
    with pytest.raises(UncertainError) as caught:
        open_provider(lab.config, cluster=lab.cluster, folder=there).list_machines(lab.cluster)
    assert caught.value.code == "provider-unreachable"
    access = lab.cloud.access.read_bytes()
    code = (
        "import sys, pathlib; from windlass.cluster.providers.virtual.provider import VirtualProvider as P;"
        "p = P(pathlib.Path('virtual.json'), prices={});"
        f"print([m.id for m in p.list_machines('{lab.cluster}')]); p.terminate([sys.argv[1]])"
    )
    shell = lab.place.host(head).shell
    shell.run(["sh", "-c", "cat > virtual.json"], stdin=access)
    source = str(Path(__file__).parents[3] / "src")
    argv = [sys.executable, "-c", f"{code}; import time; time.sleep(600)", head.id]
    with pytest.raises(UnreachableError, match="it ended meanwhile"):  # it ends the machine that it runs on
        shell.run(argv, env={"PYTHONPATH": source}, timeout_s=300)
    until(lambda: not lab.provider.list_machines(lab.cluster), "its end")


# --------------------------------------------------------------------------------------- death, twice, at the same time


def test_questions_start_no_server(lab: VirtualLab) -> None:
    assert lab.provider.list_machines(lab.cluster) == []
    lab.provider.terminate(["v-none"])
    lab.provider.close()
    assert lab.traces() == []
    assert not lab.cloud.lock.exists()


def test_one_server_however_many_ask_first(lab: VirtualLab) -> None:
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda number: lab.create(f"t{number}")[0], range(6)))
    until(lambda: len(lab.servers()) == 1, "those that found a server to end", limit_s=60.0)
    assert len({each.id for each in made}) == 6
    assert len({each.address for each in made}) == 6
    until(lambda: all(each.state == "running" for each in lab.provider.list_machines(lab.cluster)), "all to run")


def test_two_clusters_at_the_same_time(lab: VirtualLab, tmp_path: Path) -> None:
    with virtual_lab(tmp_path / "other", "other-1") as other:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda each: each.create("t", count=2), (lab, other)))
        mine, theirs = lab.running("t"), other.running("t")
        assert len({each.address for each in (*mine, *theirs)}) == 4
        assert address_of(lab) != address_of(other)
        assert lab.provider.list_machines("other-1") == []
        stolen = VirtualProvider(lab.cloud.access, prices={"small": 0.1})
        lab.provider.terminate([each.id for each in theirs])  # unknown here
        assert len(other.provider.list_machines("other-1")) == 2
        other.down()
        assert {each.state for each in stolen.list_machines(lab.cluster)} == {"running"}


def test_a_server_killed_at_random_moments_loses_and_doubles_nothing(lab: VirtualLab) -> None:
    rng = random.Random(1116)
    boot = b'#!/bin/sh\necho "began $WINDLASS_VIRTUAL_ID"\n'
    alive: set[str] = set()
    num_killed = 0
    for number in range(10):
        num_killed += _play(lab, rng, f"t{number}", alive, boot)
    assert num_killed >= 8
    tokens = [row["token"] for row in answer(lambda: lab.provider.call("lab.ledger"))["machines"]]
    assert len(set(tokens)) == 10
    for machine in alive:
        _wait_for_log(lab, machine)
        assert lab.boot_log(machine) == f"began {machine}\n"
    assert len([name for name in links() if name.startswith(f"{_bridge(lab)}-")]) == len(alive)
    lab.kill_server()
    lab.down()


def _play(lab: VirtualLab, rng: random.Random, token: str, alive: set[str], boot: bytes) -> int:
    """Create and end machines while the server is killed; return how often it was."""
    count = rng.randint(1, 3)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answer, lambda: lab.create(token, count=count, boot=boot))
        time.sleep(rng.choice((0.0, 0.02, 0.1, 0.3, 0.6)))
        num_killed = lab.kill_server()
        made = asked.result(300)
    assert [each.id for each in answer(lambda: lab.provider.find(token))] == [each.id for each in made]
    assert len(made) == count
    alive |= {each.id for each in made}
    ending = sorted(rng.sample(sorted(alive), rng.randint(0, min(2, len(alive)))))
    answer(lambda: lab.provider.terminate(ending))
    alive -= set(ending)
    if rng.random() < 0.5:
        num_killed += lab.kill_server()
    _wait_for(lab, alive, token)
    return num_killed


def _wait_for(lab: VirtualLab, alive: set[str], what: str) -> None:
    """Wait until exactly these machines are listed, and run."""

    def are_running() -> bool:
        listed = answer(lambda: lab.provider.list_machines(lab.cluster))
        return {each.id: each.state for each in listed} == dict.fromkeys(alive, "running")

    until(are_running, f"{what}: {alive}")


def _wait_for_log(lab: VirtualLab, machine: str) -> None:
    until(lambda: lab.boot_log(machine), f"the user data of {machine}")


def _bridge(lab: VirtualLab) -> str:
    return f"wlv{lab.cloud.read().network}"


def test_a_machine_whose_server_died_is_ended_by_down(lab: VirtualLab) -> None:
    lab.create("t", count=2, boot=b"#!/bin/sh\nsleep 1000\n")
    lab.running("t")
    lab.kill_server()
    assert any(lab.traces())
    lab.down()
    assert not lab.processes()


def test_a_server_without_machines_ends_by_itself(lab: VirtualLab) -> None:
    (made,) = lab.create("t")
    lab.provider.terminate([made.id])
    until(lambda: not lab.servers(), "the server to end")
    assert lab.traces() == []
    assert [each.state for each in lab.provider.find("t")] == ["ended"]  # the next one knows it
