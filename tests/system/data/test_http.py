"""Sources over HTTP, and the hub's way of naming files, from a server in this process through the faulty proxy."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.lab.s3 import FaultyProxy, cut_after, status
from windlass import Options
from windlass.core.errors import AccessError, NotFoundError, PreconditionError
from windlass.launcher.data import Data
from windlass.launcher.prepare import prepare
from windlass.pin.data.pinned import DataPlaces
from windlass.pin.data.pinning import pin_data, place_data
from windlass.runs.home import Home
from windlass.secrets.lookup import open_secrets
from windlass.spec import DataSource, Experiment
from windlass.store.remote_files import _Redirects

pytestmark = pytest.mark.system

CONTENT = os.urandom(300_000)
SHA = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "c0ffee" * 6 + "c0ff"


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.store.fetching._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("windlass.store.fetching._SMALL_BYTES", 1 << 16)
    for name in ("http_proxy", "HTTP_PROXY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def served() -> dict[str, bytes]:
    return {"/file.bin": CONTENT}


@pytest.fixture
def web(served: dict[str, bytes]) -> Iterator[FaultyProxy]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = served.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:])

        def log_message(self, *arguments: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    with FaultyProxy(server.server_address[1]) as proxy:
        yield proxy
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def places(home: Path) -> DataPlaces:
    return DataPlaces.of(home)


def test_a_file_with_a_digest_is_fetched_once(web: FaultyProxy, places: DataPlaces, tmp_path: Path) -> None:
    source = f"{web.address}/file.bin#sha256={SHA}"
    pin = pin_data("d", source, tmp_path, places=places)
    assert (pin.digest, pin.kind, pin.size_bytes) == (SHA, "file", len(CONTENT))
    path = place_data(pin, tmp_path, places)
    assert (path.name, path.read_bytes()) == ("file.bin", CONTENT)
    pin_data("d", source, tmp_path, places=places)
    assert len(web.seen) == 1


def test_a_cut_fetch_goes_on_by_range(web: FaultyProxy, places: DataPlaces, tmp_path: Path) -> None:
    web.fault = cut_after(100_000, times=1)
    pin_data("d", f"{web.address}/file.bin#sha256={SHA}", tmp_path, places=places)
    assert [each.headers.get("Range", "") for each in web.seen] == ["", "bytes=100000-"]


def test_no_digest_is_refused_and_add_tells_it(web: FaultyProxy, places: DataPlaces, home: Path) -> None:
    source = f"{web.address}/file.bin"
    with pytest.raises(PreconditionError, match="has no digest") as caught:
        pin_data("d", source, home, places=places)
    assert caught.value.code == "data-digest-missing"
    assert Data(home=Home(home)).add(source, name="d").digest == SHA


def test_a_plan_tells_of_what_it_fetches_and_not_of_what_is_here(web: FaultyProxy, home: Path, tmp_path: Path) -> None:
    source = f"{web.address}/file.bin#sha256={SHA}"
    experiment = Experiment(name="e", run="cat ${data.d}", data={"d": DataSource(source=source)})
    for fetched in ([f"fetching data `d` from {source}"], []):
        said: list[str] = []
        prepare(experiment, tmp_path, Options(allow_dirty=True), home=Home(home), log=said.append)
        assert said[0] == f"data `d`: asking {source}", "it is said before the network is used"
        assert [line for line in said if line.startswith("fetching data `d` from ")] == fetched


def test_another_digest_is_refused(web: FaultyProxy, places: DataPlaces, tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=f"its sha256 is {SHA}, not {'ab' * 32}") as caught:
        pin_data("d", f"{web.address}/file.bin#sha256={'ab' * 32}", tmp_path, places=places)
    assert caught.value.code == "digest-mismatch"
    assert places.store.versions() == []


def test_refusals(web: FaultyProxy, places: DataPlaces, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        pin_data("d", f"{web.address}/none#sha256={SHA}", tmp_path, places=places)
    web.fault = status(403)
    with pytest.raises(AccessError, match="HTTP 403"):
        pin_data("d", f"{web.address}/file.bin#sha256={SHA}", tmp_path, places=places)


@pytest.fixture
def hub(web: FaultyProxy, served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> FaultyProxy:
    siblings = [
        {"rfilename": "config.json", "size": 2},
        {"rfilename": "data/train.bin", "size": len(CONTENT), "lfs": {"sha256": SHA, "size": len(CONTENT)}},
    ]
    for revision in ("main", "v1", COMMIT):
        answer = {"sha": COMMIT, "siblings": siblings}
        served[f"/api/datasets/org/set/revision/{revision}?blobs=true"] = json.dumps(answer).encode()
    served[f"/datasets/org/set/resolve/{COMMIT}/config.json"] = b"{}"
    served[f"/datasets/org/set/resolve/{COMMIT}/data/train.bin"] = CONTENT
    monkeypatch.setenv("HF_ENDPOINT", web.address)
    monkeypatch.setenv("HF_TOKEN", "planted-token")
    return web


def test_a_repository_is_pinned_to_a_commit(hub: FaultyProxy, places: DataPlaces, tmp_path: Path) -> None:
    pin = pin_data("d", "hf:datasets/org/set@v1", tmp_path, places=places)
    assert (pin.revision, pin.num_files, pin.file_name) == (COMMIT, 2, "set")
    assert (place_data(pin, tmp_path, places) / "data/train.bin").read_bytes() == CONTENT
    assert {each.headers.get("Authorization") for each in hub.seen} == {"Bearer planted-token"}
    hub.seen.clear()
    assert pin_data("d", "hf:datasets/org/set@v1", tmp_path, places=places) == pin
    assert [each.path for each in hub.seen] == ["/api/datasets/org/set/revision/v1?blobs=true"]


def test_the_token_comes_from_the_vault_unless_the_environment_has_one(
    hub: FaultyProxy, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_secrets(home).store.set("HF_TOKEN", b"token-of-the-vault")
    experiment = Experiment(name="e", run="ls ${data.d}", data={"d": DataSource(source="hf:datasets/org/set@v1")})
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))  # no token of `hf auth login`
    with_vault: set[str | None] = {"Bearer token-of-the-vault"}
    Data(home=Home(home)).add("hf:datasets/org/set", name="d")
    assert {each.headers.get("Authorization") for each in hub.seen} == with_vault
    hub.seen.clear()
    prepare(experiment, tmp_path, Options(allow_dirty=True), home=Home(home), log=lambda line: None)
    assert {each.headers.get("Authorization") for each in hub.seen} == with_vault
    hub.seen.clear()
    monkeypatch.setenv("HF_TOKEN", "planted-token")
    prepare(experiment, tmp_path, Options(allow_dirty=True), home=Home(home), log=lambda line: None)
    assert {each.headers.get("Authorization") for each in hub.seen} == {"Bearer planted-token"}


def test_a_part_of_a_repository(hub: FaultyProxy, places: DataPlaces, tmp_path: Path) -> None:
    folder = pin_data("d", "hf:datasets/org/set/data", tmp_path, places=places)
    assert (folder.kind, folder.num_files) == ("folder", 1)
    assert pin_data("d", "hf:datasets/org/set/data/train.bin", tmp_path, places=places).digest == SHA
    with pytest.raises(NotFoundError, match="no `other` in org/set"):
        pin_data("d", "hf:datasets/org/set/other", tmp_path, places=places)


def test_a_token_does_not_follow_to_another_host() -> None:
    request = urllib.request.Request("https://hub.example/x", headers={"Authorization": "Bearer t"})
    for target, kept in (
        ("https://hub.example/y", True),
        ("https://cdn.example/y", False),
        ("http://hub.example/y", False),
    ):
        made = _Redirects().redirect_request(request, None, 302, "", {}, target)  # type: ignore[arg-type]
        assert made is not None
        assert made.has_header("Authorization") is kept
