"""Store of the head against honest and hostile clients, over real sockets on loopback."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windlass.supervise.node import store as store_module
from windlass.supervise.node.spec import NodeFolder, NodeSpec, NodeStatus
from windlass.supervise.node.store import NodeStore, node_statuses
from windlass.supervise.node.store_client import MAC, NONCE, TIME, StoreClient, StoreError, key_of, mac_of

TOKEN = "secret-token"


class Scene:
    def __init__(self, path: Path) -> None:
        self.folder = NodeFolder(path)
        self.now_s: Callable[[], float] = time.time
        spec = NodeSpec(cluster="c-1", token="head", number=0, auth_token=TOKEN)
        (path / "windlass.pyz").write_bytes(b"archive" * 1000)
        template = NodeSpec(cluster="c-1", token="", number=-1, auth_token=TOKEN, setup=("true",), ttl_s=60.0)
        (path / "group-gpu.json").write_bytes(template.to_json())
        self.store = NodeStore(
            self.folder,
            spec,
            address="127.0.0.1",
            head="10.0.0.1:6379",
            archive=path / "windlass.pyz",
            clock=self.clock,
        )
        self.store.start()
        self.address = self.store.address
        self.port = int(self.address.rpartition(":")[2])

    def clock(self) -> float:
        return self.now_s()

    def client(self, token: str = TOKEN) -> StoreClient:
        return StoreClient(self.address, token)

    def send(self, content: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
            connection.sendall(content)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def signed(self, method: str, path: str, nonce: str, at: float, body: bytes = b"") -> bytes:
        code = mac_of(key_of(TOKEN), "request", method, path, nonce, f"{at}", hashlib.sha256(body).hexdigest())
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{MAC}: {code}\r\n{NONCE}: {nonce}\r\n{TIME}: {at}\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.store.close()


def test_a_node_gets_archive_and_spec_without_the_token(scene: Scene) -> None:
    assert scene.client().call("GET", "/archive") == b"archive" * 1000
    content = scene.client().call("GET", "/spec?group=gpu&instance=i-1")
    spec = NodeSpec.from_json(content)
    assert (spec.group, spec.instance, spec.number, spec.head) == ("gpu", "i-1", 1, "10.0.0.1:6379")
    assert (spec.store, spec.setup, spec.ttl_s, spec.auth_token) == (scene.address, ("true",), 60.0, "")
    assert TOKEN.encode() not in content


def test_numbers_stay_with_their_machine(scene: Scene) -> None:
    numbers = [
        NodeSpec.from_json(scene.client().call("GET", f"/spec?group=gpu&instance={each}")).number
        for each in ("i-1", "i-2", "i-1", "i-3")
    ]
    assert numbers == [1, 2, 1, 3]


def test_statuses_are_kept_and_the_reply_carries_the_request_to_stop(scene: Scene) -> None:
    status = NodeStatus(token="t", state="ready", instance="i-1", group="gpu", address="10.0.0.2")
    assert json.loads(scene.client().call("POST", "/status", status.to_json())) == {"stop": False}
    scene.folder.request_stop()
    assert json.loads(scene.client().call("POST", "/status", status.to_json())) == {"stop": True}
    (kept,) = node_statuses(scene.folder.path)
    assert (kept["instance"], kept["state"], kept["address"]) == ("i-1", "ready", "10.0.0.2")


def test_another_token_gets_nothing(scene: Scene) -> None:
    with pytest.raises(StoreError, match="not authentic"):
        scene.client("wrong").call("GET", "/archive")
    assert scene.send(b"GET /archive HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.0 401")


@pytest.mark.parametrize("group", ["nope", "..%2f..%2fetc", "", "a%0ab"])
def test_groups_that_do_not_exist_are_refused(scene: Scene, group: str) -> None:
    with pytest.raises(StoreError, match="404"):
        scene.client().call("GET", f"/spec?group={group}&instance=i-1")


def test_a_status_cannot_name_a_path(scene: Scene) -> None:
    status = NodeStatus(token="t", state="ready", instance="../../evil")
    with pytest.raises(StoreError, match="404"):
        scene.client().call("POST", "/status", status.to_json())
    assert node_statuses(scene.folder.path) == []


def test_a_request_is_answered_once(scene: Scene) -> None:
    request = scene.signed("GET", "/archive", "0" * 32, round(time.time(), 3))
    assert scene.send(request).startswith(b"HTTP/1.0 200")
    assert scene.send(request).startswith(b"HTTP/1.0 401")


def test_an_old_request_is_refused_and_a_client_with_a_wrong_clock_continues(scene: Scene) -> None:
    assert scene.send(scene.signed("GET", "/archive", "1" * 32, 12.0)).startswith(b"HTTP/1.0 425")
    scene.now_s = lambda: 5_000_000.0
    assert scene.client().call("GET", "/archive")


def test_a_changed_body_or_path_is_refused(scene: Scene) -> None:
    request = scene.signed("GET", "/archive", "2" * 32, round(time.time(), 3))
    assert scene.send(request.replace(b"/archive", b"/spec?group=gpu&instance=i")).startswith(b"HTTP/1.0 401")
    post = scene.signed("POST", "/status", "3" * 32, round(time.time(), 3), b"{}")
    assert scene.send(post[:-2] + b"[]").startswith(b"HTTP/1.0 401")


def test_large_bodies_are_refused_before_they_are_read(scene: Scene) -> None:
    for length in ("99999999", "-1", "1e9", "9" * 400):
        request = f"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
        assert scene.send(request).startswith(b"HTTP/1.0 413")


def test_slow_requests_are_cut_and_others_are_served_meanwhile(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_REQUEST_S", 3.0)
    slow = [socket.create_connection(("127.0.0.1", scene.port), timeout=120) for _ in range(6)]
    for each in slow:
        each.sendall(b"GET /archive HTTP/1.1\r\nX: ")
    assert scene.client().call("GET", "/archive")
    for each in slow:
        assert each.recv(100) == b""
        each.close()


def test_one_address_has_a_limited_number_of_connections(scene: Scene) -> None:
    there = [socket.create_connection(("127.0.0.1", scene.port), timeout=20) for _ in range(8)]
    with pytest.raises(StoreError):
        scene.client().call("GET", "/archive")
    for each in there:
        each.close()


def test_a_head_that_cannot_write_replies_all_the_same(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    (scene.folder.path / "nodes" / "i-1.json").mkdir(parents=True)  # as a full disk: nothing can be put there
    status = NodeStatus(token="t", state="ready", instance="i-1")
    for _ in range(2):
        assert json.loads(scene.client().call("POST", "/status", status.to_json())) == {"stop": False}
    assert capsys.readouterr().err.count("statuses of nodes are not kept: Is a directory") == 1
    (scene.folder.path / "nodes" / ".numbers").mkdir()
    with pytest.raises(StoreError, match=r"/spec.*: 500 .*Is a directory"):
        scene.client().call("GET", "/spec?group=gpu&instance=i-2")
