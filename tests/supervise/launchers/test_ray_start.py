"""The part that runs beside Ray, with a Ray of three lines."""

from __future__ import annotations

import json
import os
import socket
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from windlass.supervise.launchers import ray_start
from windlass.supervise.launchers.ray_dashboard import leave_dashboard_out
from windlass.supervise.launchers.ray_start import StartSpec, _by_rank, _table, ray_start_main


class RpcError(Exception):
    pass


class Node:
    def __init__(self, name: str, gpus: float, state: int = 0) -> None:
        self.node_name, self.state, self.resources_total = name, state, {"CPU": 8.0, "GPU": gpus}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    fake = types.SimpleNamespace(commands=[], nodes=[Node("windlass-0", 4.0), Node("other", 1.0)], failure=None)

    def cli(command: list[str], *, standalone_mode: bool) -> None:
        assert standalone_mode is False
        fake.commands.append(command)
        fake.opens_client_port = sys.modules["ray.scripts.scripts"].get_ray_client_dependency_error() is None
        if fake.failure is not None:
            raise fake.failure

    def client(*, address: str) -> Any:
        return types.SimpleNamespace(get_all_node_info=lambda timeout: dict(enumerate(fake.nodes)))

    for name in [each for each in sys.modules if each.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)  # a real Ray that another test imported would be used, and changed
    for name, content in (
        ("ray", {}),
        ("ray._private", {}),
        ("ray.scripts", {}),
        ("ray.scripts.scripts", {"cli": cli, "get_ray_client_dependency_error": lambda: None}),  # grpc is there
        ("ray._raylet", {"GcsClient": client}),
        ("ray.exceptions", {"RpcError": RpcError}),
    ):
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(ray_start, "_raylets", lambda: [7])  # a Ray of other tests may live below this process
    return fake


def run(spec: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found = StartSpec(**{"rank": 0, "address": address, "options": ("--x",), "num_nodes": 1, "fd": write, **spec})
        code = ray_start_main([found.to_text()])
    os.close(write)
    with open(read, "rb") as file:
        return code, [json.loads(line) for line in file]


@pytest.mark.system
def test_the_head_counts_its_own_nodes_only(ray: types.SimpleNamespace) -> None:
    code, told = run({})
    assert code == 0
    assert ray.commands[0] == ["start", "--head", "--x"]
    assert not ray.opens_client_port
    assert {"nodes": {"0": [4.0, 8.0]}} in told
    assert {"started": [7], "authenticates": False} in told  # as a Ray before 2.52


@pytest.mark.system
def test_a_worker_joins_when_the_head_is_in_the_table(ray: types.SimpleNamespace) -> None:
    code, told = run({"rank": 1})
    assert code == 0
    assert ray.commands[0][0] == "start"
    assert ray.commands[0][1].startswith("--address=127.0.0.1:")
    assert told == [{"started": [7], "authenticates": False}]


@pytest.mark.system
@pytest.mark.parametrize(
    ("reads_words", "option"),
    [(True, "--labels=kind=worker,zone=a"), (False, '--labels={"kind": "worker", "zone": "a"}')],
    ids=["words", "json"],
)
def test_the_version_is_told_and_labels_are_as_it_reads_them(
    ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, reads_words: bool, option: str
) -> None:
    monkeypatch.setattr(sys.modules["ray"], "__version__", "2.40.0", raising=False)
    if reads_words:
        scripts = sys.modules["ray.scripts.scripts"]
        monkeypatch.setattr(scripts, "parse_node_labels_string", lambda text: {}, raising=False)
    code, told = run({"rank": 1, "options": ("--labels=kind=worker,zone=a", "--port=1")})
    assert (code, told[0]) == (0, {"version": "2.40.0"})
    assert ray.commands[0][2:] == [option, "--port=1"]


@pytest.mark.system
def test_the_newest_ray_knows_tokens(need: Callable[[str], None]) -> None:
    need("ray")
    assert ray_start.authenticates()


@pytest.mark.system
def test_a_start_that_fails_is_told(ray: types.SimpleNamespace) -> None:
    ray.failure = ValueError("no such option\nmore")
    code, told = run({"rank": 1})
    assert (code, told) == (1, [{"error": "`ray start` failed: no such option", "cause": "start-failed"}])


def test_a_node_is_looked_for_as_long_as_its_raylet_lives(
    ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself gives up after 30 s, wherever its raylet is by then."""
    looks: list[str] = []

    def get_node(address: str) -> str:
        looks.append(address)
        if len(looks) < 4:
            raise RuntimeError("not in the table")
        return "found"

    services = types.ModuleType("ray._private.services")
    services.__dict__["get_node"] = get_node
    monkeypatch.setitem(sys.modules, "ray._private", types.ModuleType("ray._private"))
    monkeypatch.setitem(sys.modules, "ray._private.services", services)
    monkeypatch.setattr(ray_start, "_POLL_S", 0.0)
    monkeypatch.setattr(ray_start, "_raylets", lambda: [7] if len(looks) < 3 else [])
    ray_start._extend_node_wait()
    with pytest.raises(RuntimeError, match="not in the table"):
        services.get_node("h:1")
    assert looks == ["h:1"] * 3
    assert services.get_node("h:1") == "found"


@pytest.mark.system
@pytest.mark.parametrize(("rank", "folder"), [(0, None), (1, "/own")])
def test_a_worker_keeps_its_folder_where_ray_drops_the_option(
    ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, rank: int, folder: str | None
) -> None:
    class RayParams:
        def __init__(self, temp_dir: str | None = None) -> None:
            self.temp_dir = temp_dir

    parameter = types.ModuleType("ray._private.parameter")
    parameter.__dict__["RayParams"] = RayParams
    monkeypatch.setitem(sys.modules, "ray._private.parameter", parameter)
    assert run({"rank": rank, "options": ("--temp-dir=/own",)})[0] == 0
    assert RayParams().temp_dir == folder
    assert RayParams(temp_dir="/other").temp_dir == "/other"


def test_no_ray_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, told = _without_ray()
    assert (code, told[0]["cause"]) == (1, "setup-failed")
    assert "is not installed" in told[0]["error"]


def _without_ray() -> tuple[int, list[dict[str, Any]]]:
    read, write = os.pipe()
    code = ray_start_main([StartSpec(0, "127.0.0.1:1", (), 1, write).to_text()])
    os.close(write)
    with open(read, "rb") as file:
        return code, [json.loads(line) for line in file]


def test_a_ray_without_that_client_is_asked_as_a_driver(
    ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    del sys.modules["ray._raylet"].GcsClient
    public = sys.modules["ray"]
    joined: list[str] = []
    monkeypatch.setattr(public, "is_initialized", lambda: bool(joined), raising=False)
    monkeypatch.setattr(public, "init", lambda address, log_to_driver: joined.append(address), raising=False)
    table = [{"NodeName": "windlass-1", "Alive": True, "Resources": {"CPU": 2.0}}]
    monkeypatch.setattr(public, "nodes", lambda: table, raising=False)
    assert _table("h:1")() == {1: [0.0, 2.0]}
    assert joined == ["h:1"]


def test_a_table_that_does_not_answer_is_an_empty_one(
    ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(timeout: float) -> None:
        raise RpcError("unavailable")

    monkeypatch.setattr(
        sys.modules["ray._raylet"], "GcsClient", lambda address: types.SimpleNamespace(get_all_node_info=fail)
    )
    assert _table("h:1")() == {}


def test_dead_nodes_and_strangers_do_not_count() -> None:
    nodes = [("windlass-0", True, {"GPU": 2.0, "CPU": 1.0}), ("windlass-1", False, {}), ("head", True, {})]
    assert _by_rank(nodes) == {0: [2.0, 1.0]}


@pytest.mark.parametrize("is_wanted", [False, None])
def test_no_process_is_started_for_a_dashboard_that_is_refused(
    ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, is_wanted: bool | None
) -> None:
    written: dict[tuple[bytes, bytes], bytes] = {}

    def put(key: bytes, value: bytes, overwrite: bool, namespace: bytes) -> None:
        written[namespace, key] = value

    monkeypatch.setattr(
        sys.modules["ray._raylet"], "GcsClient", lambda address: types.SimpleNamespace(internal_kv_put=put)
    )
    constants = types.ModuleType("ray._private.ray_constants")
    constants.__dict__.update(KV_NAMESPACE_DASHBOARD=b"dashboard", DASHBOARD_ADDRESS="dashboard")
    services = types.ModuleType("ray._private.services")
    services.__dict__["start_api_server"] = lambda is_wanted, *where, **options: ("h:8265", "process")
    monkeypatch.setitem(sys.modules, "ray._private.ray_constants", constants)
    monkeypatch.setitem(sys.modules, "ray._private.services", services)
    leave_dashboard_out("h:1")
    found = services.start_api_server(is_wanted, False, "h", "h:1", port=None)
    if is_wanted is None:
        assert (found, written) == (("h:8265", "process"), {})
    else:
        assert found == ("", None)  # as Ray's own, and nothing runs
        there = b"255.255.255.255:1"
        assert written == {
            (b"dashboard", b"dashboard"): there,
            (b"dashboard", b"dashboard_rpc"): there,
            (b"dashboard", b"webui:url"): b"",
        }
        address, _, port = there.decode().partition(":")
        with socket.socket() as probe, pytest.raises(OSError):  # whoever listens: it is no address of a machine
            probe.connect((address, int(port)))
