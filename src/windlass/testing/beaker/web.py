"""HTTP interface of the fake Beaker for experiments, secret values, dataset contents and image records."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from windlass.core.json_text import decode_json
from windlass.testing.beaker.acceptance import check_spec
from windlass.testing.beaker.messages import Messages
from windlass.testing.beaker.records import Dataset, StoredExperiment, StoredJob, StoredTask, new_id
from windlass.testing.beaker.scenario import Scenario
from windlass.testing.beaker.world import BeakerState, Refused

__all__ = ["WebServer"]


class HttpReply:
    """HTTP response: status, body and headers."""

    def __init__(self, body: bytes | Mapping[str, Any] = b"", status: int = 200, **headers: str) -> None:
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Routes:
    """HTTP interface with one method per operation; the table at the end maps URL paths to methods."""

    def __init__(self, world: BeakerState, token: str) -> None:
        self._world = world
        self._token = token
        self._messages = Messages(world)
        self._uploads: dict[str, bytearray] = {}
        self.address = ""

    def create_experiment(self, request: Request, workspace_key: str) -> HttpReply:
        """Accept an experiment; names are unique per user."""
        spec = request.json()
        name = request.query.get("name", "")
        world = self._world
        with world.changed:
            workspace = world.workspace(workspace_key)
            if workspace.is_archived:
                raise Refused(400, f"workspace {workspace.name!r} is archived")
            if name:
                world.check_name(name)
                if any(experiment.name == name for experiment in world.experiments):
                    raise Refused(409, f"experiment name {name!r} is already in use")
            check_spec(spec, world, workspace)
            experiment = StoredExperiment(
                name=name or f"experiment-{len(world.experiments) + 1}",
                spec=spec,
                workspace_id=workspace.id,
                budget_id=world.budget_id(spec["budget"]) if spec.get("budget") else workspace.budget_id,
                description=spec.get("description") or "",
            )
            experiment.tasks.extend(task for given in spec["tasks"] for task in _tasks(experiment, given))
            for group in spec.get("groups") or ():
                world.group(group).experiment_ids.append(experiment.id)
            world.experiments.append(experiment)
            world.changed.notify_all()
        return HttpReply({"id": experiment.id, "name": experiment.name})

    def read_secret(self, request: Request, workspace_key: str, name: str) -> HttpReply:
        """Return a secret's value; unlike over gRPC, the name is case-insensitive."""
        del request
        workspace = self._world.workspace(workspace_key)
        for secret in workspace.secrets.values():
            if secret.name.lower() == name.lower():
                return HttpReply(secret.value.encode())
        raise Refused(404, f"secret {name!r} not found")

    def write_secret(self, request: Request, workspace_key: str, name: str) -> HttpReply:
        """Set a secret."""
        self._world.write_secret(self._world.workspace(workspace_key), name, request.body.decode())
        return HttpReply({"name": name})

    def delete_secret(self, request: Request, workspace_key: str, name: str) -> HttpReply:
        """Delete a secret."""
        del request
        with self._world.lock:
            workspace = self._world.workspace(workspace_key)
            self._world.secret(workspace, name)
            del workspace.secrets[name]
        return HttpReply({})

    def create_dataset(self, request: Request) -> HttpReply:
        """Make an empty dataset."""
        asked = request.json()
        workspace = self._world.workspace(asked.get("workspace") or "")
        if asked.get("budget"):
            self._world.budget_id(asked["budget"])
        dataset = self._world.add_dataset(
            request.query.get("name", ""), workspace, description=asked.get("description") or ""
        )
        return HttpReply(self._dataset(dataset))

    def get_dataset(self, request: Request, key: str) -> HttpReply:
        """Return a dataset's record, with its storage address."""
        del request
        return HttpReply(self._dataset(self._world.dataset(key)))

    def change_dataset(self, request: Request, key: str) -> HttpReply:
        """Commit a dataset."""
        dataset = self._world.dataset(key)
        if request.json().get("commit"):
            self._world.commit(dataset)
        return HttpReply(self._dataset(dataset))

    def write_file(self, request: Request, key: str, name: str) -> HttpReply:
        """Write a file of an uncommitted dataset, in one request or from a multipart upload."""
        dataset = self._world.dataset(key)
        if dataset.committed_ns:
            raise Refused(403, f"dataset {dataset.id!r} is committed")
        path = _inside(dataset, name)
        body = request.body
        digest = request.headers.get("Digest")
        if digest:
            body = bytes(self._uploads.pop(digest, b""))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return HttpReply({})

    def read_file(self, request: Request, key: str, name: str) -> HttpReply:
        """Return a file, or a range of it."""
        path = _inside(self._world.dataset(key), name)
        if not path.is_file():
            raise Refused(404, f"file {name!r} not found")
        body = path.read_bytes()
        wanted = re.match(r"bytes=(\d+)-(\d*)", request.headers.get("Range") or "")
        if wanted is None:
            return HttpReply(body)
        first = int(wanted.group(1))
        if first >= len(body):
            return HttpReply({"message": "range not satisfiable"}, 416)
        last = min(int(wanted.group(2) or len(body)), len(body) - 1)
        return HttpReply(body[first : last + 1], 206, Content_Range=f"bytes {first}-{last}/{len(body)}")

    def begin_upload(self, request: Request) -> HttpReply:
        """Begin a multipart upload."""
        del request
        identity = new_id()
        self._uploads[identity] = bytearray()
        return HttpReply({}, Upload_ID=identity)

    def continue_upload(self, request: Request, identity: str) -> HttpReply:
        """Store a part; the reply to the last one has the digest of the whole file."""
        content = self._uploads[identity]
        offset = int(request.headers["Upload-Offset"])
        content[offset:] = request.body
        if len(content) < int(request.headers["Upload-Length"]):
            return HttpReply({})
        digest = f"SHA256 {base64.b64encode(hashlib.sha256(content).digest()).decode()}"
        self._uploads[digest] = self._uploads.pop(identity)
        return HttpReply({}, Digest=digest)

    def create_image(self, request: Request) -> HttpReply:
        """Record an image; its layers are not stored."""
        asked = request.json()
        image = self._world.add_image(
            request.query.get("name") or new_id().lower(),
            workspace=self._world.workspace(asked.get("workspace") or ""),
            docker_id=asked.get("imageId") or "",
            tag=asked.get("imageTag") or "",
            description=asked.get("description") or "",
        )
        return HttpReply({"id": image.id})

    def image_repository(self, request: Request, key: str) -> HttpReply:
        """Return the address of the registry for layers; nothing listens there."""
        del request
        image = self._world.image(key)
        auth = {"user": "user", "password": "", "server_address": "127.0.0.1:1"}
        return HttpReply({"imageTag": f"127.0.0.1:1/{image.id.lower()}", "auth": auth})

    def change_image(self, request: Request, key: str) -> HttpReply:
        """Commit an image."""
        with self._world.lock:
            image = self._world.image(key)
            if request.json().get("commit"):
                image.committed_ns = image.committed_ns or time.time_ns()
        return HttpReply({"id": image.id})

    def _dataset(self, dataset: Dataset) -> dict[str, Any]:
        storage = {
            "id": dataset.id,
            "token": self._token,
            "tokenExpires": "2100-01-01T00:00:00Z",
            "address": f"{self.address}/storage",
        }
        return {"id": dataset.id, "name": dataset.name, "storage": storage}


_API = "/api/v3"
_ROUTES: tuple[tuple[str, str, str, Callable[..., HttpReply]], ...] = (
    ("CreateExperiment", "POST", rf"{_API}/workspaces/([^/]+)/experiments", Routes.create_experiment),
    ("ReadSecret", "GET", rf"{_API}/workspaces/([^/]+)/secrets/([^/]+)/value", Routes.read_secret),
    ("WriteSecret", "PUT", rf"{_API}/workspaces/([^/]+)/secrets/([^/]+)/value", Routes.write_secret),
    ("DeleteSecret", "DELETE", rf"{_API}/workspaces/([^/]+)/secrets/([^/]+)", Routes.delete_secret),
    ("CreateDataset", "POST", rf"{_API}/datasets", Routes.create_dataset),
    ("GetDatasetStorage", "GET", rf"{_API}/datasets/([^/]+)", Routes.get_dataset),
    ("CommitDataset", "PATCH", rf"{_API}/datasets/([^/]+)", Routes.change_dataset),
    ("ReadDatasetFile", "GET", rf"{_API}/datasets/([^/]+)/files/(.+)", Routes.read_file),
    ("WriteDatasetFile", "PUT", r"/storage/datasets/([^/]+)/files/(.+)", Routes.write_file),
    ("BeginUpload", "POST", r"/storage/uploads", Routes.begin_upload),
    ("ContinueUpload", "PATCH", r"/storage/uploads/([^/]+)", Routes.continue_upload),
    ("CreateImage", "POST", rf"{_API}/images", Routes.create_image),
    ("GetImageRepository", "GET", rf"{_API}/images/([^/]+)/repository", Routes.image_repository),
    ("CommitImage", "PATCH", rf"{_API}/images/([^/]+)", Routes.change_image),
)


class Request:
    """HTTP request: query, headers, body."""

    def __init__(self, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> None:
        self.query = query
        self.headers = headers
        self.body = body

    def json(self) -> dict[str, Any]:
        """Return the body as an object; raise Refused (400) if it is not one."""
        try:
            value = decode_json(self.body or b"{}")
        except ValueError as error:
            raise Refused(400, f"invalid JSON: {error}") from error
        if not isinstance(value, dict):
            raise Refused(400, "invalid JSON: not an object")
        return value


class WebServer(ThreadingHTTPServer):
    """HTTP server with one thread per connection; no thread outlives `close`."""

    daemon_threads = False

    def __init__(self, port: int, routes: Routes, scenario: Scenario, token: str, count: Callable[[str], None]) -> None:
        self.routes = routes
        self.scenario = scenario
        self.token = token
        self.count = count
        self.is_stopping = False
        self._connections: list[socket.socket] = []
        super().__init__(("127.0.0.1", port), _Handler)
        routes.address = f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        """Close all connections, refuse new ones, and wait for the threads to end."""
        self.is_stopping = True
        self.shutdown()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it is closed already
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Record a connection, so that `close` can close it."""
        self._connections = [known for known in self._connections if known.fileno() >= 0]
        self._connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected; report any other error."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the standard library's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        """Print nothing."""

    def _serve(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        name, call, groups = _route(self.command, address.path)
        self.server.count(name)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        query = dict(urllib.parse.parse_qsl(address.query))
        request = Request(query, self.headers, body)  # type: ignore[arg-type]  # case does not count in a Message
        fault = self.server.scenario.take_fault(name)
        if fault is not None:
            self._sleep(fault.delay_s)
        try:
            if (
                self.server.scenario.is_token_expired
                or self.headers.get("Authorization") != f"Bearer {self.server.token}"
            ):
                raise Refused(401, "invalid or expired token")
            if fault is not None and fault.status:
                raise Refused(fault.status, fault.message)
            answer = call(self.server.routes, request, *groups)
        except Refused as refused:
            answer = HttpReply({"message": refused.message}, refused.status)
        if fault is not None and fault.lost:
            self._sleep(float("inf") if fault.lost == "hang" else 0.0)
            self.close_connection = True
            return
        self._reply(answer)

    def _sleep(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and not self.server.is_stopping:
            time.sleep(0.02)

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _reply(self, answer: HttpReply) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)


def _route(command: str, path: str) -> tuple[str, Callable[..., HttpReply], tuple[str, ...]]:
    for name, method, pattern, call in _ROUTES:
        match = re.fullmatch(pattern, path)
        if match is not None and method == command:
            return name, call, tuple(urllib.parse.unquote(group) for group in match.groups())
    return "Unknown", _unknown, (path,)


def _unknown(_routes: Routes, _request: Request, path: str) -> HttpReply:
    raise Refused(404, f"the fake Beaker has no {path}")


def _inside(dataset: Dataset, name: str) -> Path:
    path = (dataset.folder / name).resolve()
    if not path.is_relative_to(dataset.folder.resolve()):
        raise Refused(400, f"invalid path {name!r}")
    return path


def _tasks(experiment: StoredExperiment, given: Mapping[str, Any]) -> list[StoredTask]:
    size = given.get("replicas") or 1
    group_id = new_id() if size > 1 else ""
    name = given.get("name") or ""
    tasks = [
        StoredTask(experiment=experiment, spec=given, name=name, group_id=group_id, rank=rank, size=size)
        for rank in range(size)
    ]
    for task in tasks:
        task.jobs.append(StoredJob(task=task))
    return tasks
