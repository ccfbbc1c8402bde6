"""Decisions of a node's agent and its helpers: why it ends, what Ray is told, how the head's silence counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from windlass.core.clock import FakeClock
from windlass.supervise.node import head_link
from windlass.supervise.node.ending import ends_because
from windlass.supervise.node.head_link import HeadLink, silence_limit_s
from windlass.supervise.node.metadata import fetch_instance
from windlass.supervise.node.node_status import status_lines
from windlass.supervise.node.notices import MetadataError, NodeNotice, fetch_notices
from windlass.supervise.node.ray_node import ray_environment, ray_options
from windlass.supervise.node.spec import NodeFolder, NodeSpec, NodeStatus
from windlass.supervise.node.store import NodeStore

SPEC = NodeSpec(cluster="c-1", token="t", number=1, ttl_s=40.0, idle_s=90.0, auth_token="secret")


@pytest.mark.parametrize(
    ("age_s", "is_stop_requested", "silent_s", "reason"),
    [
        (1.0, False, 0.0, ""),
        (1.0, True, 0.0, "stopped"),
        (40.0, False, 0.0, "its time to live of 40 s is over"),
        (1.0, False, 90.0, ""),
        (1.0, False, 91.0, "the head has been silent for 91 s"),
    ],
)
def test_a_node_ends_when_it_should(age_s: float, is_stop_requested: bool, silent_s: float, reason: str) -> None:
    found = ends_because(SPEC, age_s=age_s, is_stop_requested=is_stop_requested, silent_s=silent_s)
    assert found == reason


def test_a_head_may_be_silent_for_the_idle_time_within_one_to_five_minutes() -> None:
    assert silence_limit_s(SPEC) == 90.0
    assert silence_limit_s(replace(SPEC, idle_s=8 * 3600.0)) == 300.0
    assert silence_limit_s(replace(SPEC, idle_s=5.0)) == 60.0
    assert silence_limit_s(replace(SPEC, idle_s=None)) == 300.0


def test_ray_knows_the_machine_and_its_group_and_only_a_scaled_head_has_version_two() -> None:
    assert "RAY_CLOUD_INSTANCE_ID" not in ray_environment({}, SPEC)
    worker = ray_environment({"RAY_ADDRESS": "other"}, replace(SPEC, instance="i-1", group="gpu"))
    assert (worker["RAY_CLOUD_INSTANCE_ID"], worker["RAY_NODE_TYPE_NAME"]) == ("i-1", "gpu")
    assert "RAY_ADDRESS" not in worker
    assert "RAY_enable_autoscaler_v2" not in worker
    head = replace(SPEC, number=0, instance="i-0", group="head", is_scaled=True)
    assert ray_environment({}, head)["RAY_enable_autoscaler_v2"] == "1"
    assert "--no-monitor" in ray_options(head, Path("/tmp/x"), address="10.0.0.1", head="10.0.0.1:6379")
    alone = replace(head, is_scaled=False)
    assert "--no-monitor" not in ray_options(alone, Path("/tmp/x"), address="10.0.0.1", head="10.0.0.1:6379")


def test_a_silent_head_is_counted_from_its_last_reply(tmp_path: Path) -> None:
    clock = FakeClock()
    head = NodeSpec(cluster="c-1", token="head", number=0, auth_token="secret")
    store = NodeStore(NodeFolder(tmp_path), head, address="127.0.0.1", head="h:1", archive=tmp_path / "none")
    store.start()
    status = NodeStatus(token="t", state="ready", instance="i-1")
    link = HeadLink(replace(SPEC, store=store.address), lambda: status, monotonic=clock.monotonic)
    clock.advance(7.0)
    assert link.post()
    assert (link.silent_s, link.is_stop_requested) == (0.0, False)
    NodeFolder(tmp_path).request_stop()
    assert link.post()
    assert link.is_stop_requested
    store.close()
    clock.advance(9.0)
    assert not link.post()
    assert link.silent_s == 9.0


class FullDisk:
    """Standard error on a disk that is full."""

    def write(self, text: str) -> None:
        raise OSError(28, "No space left on device")

    flush = write


def test_a_link_whose_log_is_on_a_full_disk_goes_on_and_says_why_the_head_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = NodeStatus(token="t", state="ready", instance="i-1")
    link = HeadLink(replace(SPEC, store="127.0.0.1:1"), lambda: status)
    monkeypatch.setattr("sys.stderr", FullDisk())
    assert not link.post()
    assert "127.0.0.1:1" in link.problem
    reason = ends_because(SPEC, age_s=1.0, is_stop_requested=False, silent_s=91.0, problem=link.problem)
    assert reason == f"the head has been silent for 91 s: {link.problem}"


def test_a_thread_of_the_link_survives_what_nobody_expects(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def status() -> NodeStatus:
        tries.append("try")
        if len(tries) > 2:
            raise SystemExit  # ends the thread
        raise TypeError("a bug")

    link = HeadLink(replace(SPEC, store="127.0.0.1:1"), status)
    monkeypatch.setattr(head_link, "_POST_S", 0.0)
    with pytest.raises(SystemExit):
        link._run()
    assert len(tries) == 3
    assert capsys.readouterr().err == "status not posted: TypeError: a bug\n"


def test_the_lines_of_a_head_have_its_nodes_and_what_was_tried(tmp_path: Path) -> None:
    assert status_lines(tmp_path) == []
    NodeFolder(tmp_path).write_status(NodeStatus(token="head", state="ready", group="head"))
    (line,) = status_lines(tmp_path)
    assert (line["kind"], line["group"], line["state"]) == ("node", "head", "ready")


class Metadata(BaseHTTPRequestHandler):
    entries: dict[str, bytes]

    def do_PUT(self) -> None:
        self._send(b"token")

    def do_GET(self) -> None:
        if self.path.startswith("/latest/") and self.headers["X-aws-ec2-metadata-token"] != "token":
            self.send_error(401)
            return
        self._send(self.entries.get(self.path))

    def _send(self, content: bytes | None) -> None:
        self.send_response(404 if content is None else 200)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base class names it


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    Metadata.entries = {"/latest/meta-data/instance-id": b"i-7\n", "/notices": b"[]"}
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}/")
    monkeypatch.setenv("WINDLASS_VIRTUAL_METADATA", address)
    yield Metadata.entries
    server.shutdown()
    server.server_close()


def test_notices_of_ec2_are_read_with_a_token_of_version_two(entries: dict[str, bytes]) -> None:
    assert fetch_instance("aws") == "i-7"
    assert fetch_notices("aws") == []
    entries["/latest/meta-data/spot/instance-action"] = b'{"action": "hibernate", "time": "2026-09-18T08:22:00Z"}'
    entries["/latest/meta-data/events/recommendations/rebalance"] = b'{"noticeTime": "2026-09-18T08:00:00.123Z"}'
    assert fetch_notices("aws") == [NodeNotice(1789719720.0, "stop"), NodeNotice(1789718400.0, "rebalance")]


def test_notices_of_virtual_machines(entries: dict[str, bytes]) -> None:
    assert fetch_notices("virtual") == []
    entries["/notices"] = b'[{"at": 5.5, "kind": "terminate"}]'
    assert fetch_notices("virtual") == [NodeNotice(5.5, "terminate")]
    assert fetch_notices("") == []


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"action": "terminate"}', b'{"action": "stop", "time": "soon"}'])
def test_an_unreadable_notice_is_an_error_that_shows_it(entries: dict[str, bytes], content: bytes) -> None:
    entries["/latest/meta-data/spot/instance-action"] = content
    with pytest.raises(MetadataError, match="unreadable notice"):
        fetch_notices("aws")


def test_a_service_that_does_not_reply_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(MetadataError, match=r"127\.0\.0\.1:1"):
        fetch_notices("aws")
