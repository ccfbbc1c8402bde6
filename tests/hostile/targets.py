"""What reads bytes that others wrote, each with a good document and the errors that it may raise."""

from __future__ import annotations

import json
import random
import selectors
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.mutations import mutated
from tests.runs.journals import RunScript
from windlass.config.loading import load_config
from windlass.core.clock import FakeClock
from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_object
from windlass.launcher.gc.removable import needs, old_runs
from windlass.launcher.gc.retain_rules import retained
from windlass.record.frames import read_frames
from windlass.record.journal import read_journal
from windlass.record.manifest import commit_manifest, read_manifest
from windlass.record.state import End, fold
from windlass.runs.archive.contents import Contents, Item
from windlass.runs.home import Home
from windlass.runs.index import Index
from windlass.runs.provenance.graph import provenance_graph
from windlass.runs.retention import readers
from windlass.runs.store import RunFolder
from windlass.sites.profile import Profile
from windlass.spec import Experiment
from windlass.store.data_version import Version, VersionEntry
from windlass.supervise.gang.connection import LeaderServer
from windlass.supervise.gang.handshake import ClientHandshake
from windlass.supervise.gang.messages import Order, ReplicaStatus
from windlass.supervise.job import JobDocument, JobPaths, JobSecret, ReplicaCommand, TaskSettings
from windlass.supervise.remote.delivery import read_delivery
from windlass.supervise.remote.framing import pack, unpack
from windlass.tune.controller.requests import _read as read_request

__all__ = ["GOOD", "RUN", "TARGETS", "Bench"]

TOKEN = "0123456789abcdef"
RUN, GOOD = "play-aaaaaaaa", "good-bbbbbbbb"
DIGEST = "0" * 64
EXPERIMENT = {
    "name": "play",
    "params": {"lr": 0.1},
    "retain": {"ttl": "1s", "checkpoints": {"last": 1, "best": {"metric": "loss", "keep": 1}}},
    "tasks": {"train": {"run": "true", "nodes": 2, "checkpoints": {"pattern": "step_*"}}},
}
PLAN = {
    "schema": "windlass.plan/2",
    "name": "play",
    "plan_hash": "h",
    "overrides": ["params.lr=0.1"],
    "experiment": EXPERIMENT,
    "pins": {
        "code": {"kind": "git", "commit": "c" * 40},
        "data": {"a": {"source": f"run:{GOOD}/out", "digest": DIGEST}, "b": {"source": "file:x", "digest": DIGEST}},
        "environments": {},
        "images": {},
        "builds": {},
    },
    "tasks": {"train": {"command": ["true"], "checkpoint_pattern": "step_*"}},
}
PROVENANCE = {"schema": "windlass.provenance/1", "base": "/nowhere", "environment": {}, "images": {}, "data": {}}


class Bench:
    """A folder with a home of one good run and one that is damaged again and again, and a leader's socket.

    `try_one` gives a reader a mutated document and returns what was wrong with how it took that, or an empty string.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Home(folder / "home")
        self.home.runs.mkdir(parents=True, exist_ok=True)
        RunScript(self.home, GOOD).submit().start().end()
        bad = RunScript(self.home, RUN).submit().start().metric("loss", 1, 0.5)
        (bad.run.path / "provenance.json").write_text(json.dumps(PROVENANCE))
        bad.run.checkpoints("train").mkdir(parents=True)
        bad.end()
        self.run = bad.run
        self.client = next(self.run.journal.glob("client*.wj"))
        self.journal = self.client.read_bytes()
        (folder / "tree").mkdir()
        (folder / "tree" / "file").write_text("x")
        commit_manifest(folder / "tree")
        self.selector = selectors.DefaultSelector()
        self.statuses: list[ReplicaStatus] = []
        self.server = LeaderServer(
            "127.0.0.1", TOKEN, self.selector, self.statuses.append, lambda rank: None, num_replicas=4
        )
        self.index = Index(self.home, folder=folder / "cache", clock=FakeClock())

    def close(self) -> None:
        self.index.close()
        self.server.close()
        self.selector.close()

    def try_one(self, name: str, seed: int) -> str:
        rng = random.Random(f"{name} {seed}")
        try:
            TARGETS[name](self, rng)
        except Exception as error:  # noqa: BLE001  what it may raise it has caught
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            return f"{name}:{seed}: {type(error).__name__} at {where}: {str(error)[:200]}"
        return ""

    def file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(0o600)
        return path


def _allowed(*errors: type[Exception]) -> Callable[[Callable[[Bench, bytes], object], bytes], Any]:
    """A target that reads bytes, and may raise these."""

    def make(read: Callable[[Bench, bytes], object], good: bytes) -> Callable[[Bench, random.Random], None]:
        def run(bench: Bench, rng: random.Random) -> None:
            try:
                read(bench, mutated(good, rng))
            except errors:
                return

        return run

    return make


def _job() -> bytes:
    job = JobDocument(
        run="r",
        task="train",
        job=1,
        token="t",
        paths=JobPaths("/nowhere", out="/nowhere", checkpoints="/nowhere"),
        command=ReplicaCommand(("true",), cwd="/"),
        settings=TaskSettings(secrets=(JobSecret("A"),)),
    )
    return json.dumps(job.to_data()).encode()


def _talk(bench: Bench, content: bytes, *, proves_itself: bool) -> None:
    """Give the leader's socket some bytes, as a stranger or as a replica, and let it work."""
    with socket.create_connection(("127.0.0.1", bench.server.port)) as channel:
        channel.settimeout(10)
        if proves_itself:
            caller = ClientHandshake(TOKEN, 1)
            channel.sendall(caller.hello())
            while bench.server.num_unverified == 0:
                _serve(bench)
            _serve(bench)
            channel.sendall(caller.receive(channel.recv(4096)))
            while bench.server.num_unverified:
                _serve(bench)
        for start in range(0, len(content), 30_000):
            try:
                channel.sendall(content[start : start + 30_000])
            except OSError:
                break
            _serve(bench)
    for _ in range(1000):
        _serve(bench)
        if len(bench.selector.get_map()) == 1:
            return
    raise AssertionError("a connection that was closed is still kept")


def _serve(bench: Bench) -> None:
    for key, _ in bench.selector.select(0.001):
        key.data()


def _whole_home(name: str, good: bytes) -> Callable[[Bench, random.Random], None]:
    """Damage one file of one run; what looks at all runs must not fail, nor lose the other run."""

    def run(bench: Bench, rng: random.Random) -> None:
        path = bench.run.path / name
        path.write_bytes(mutated(good, rng))
        try:
            bench.index.rebuild()
            rows = {row.id: row for row in bench.index.dump()}
            assert set(rows) == {RUN, GOOD}
            assert rows[GOOD].state == "succeeded"
            assert not rows[GOOD].note
            list(retained(bench.home))
            needs(bench.home)
            list(old_runs(bench.home, 0.0))
            readers(bench.home)(RunFolder(bench.home.runs / GOOD), "")
            try:
                provenance_graph(bench.run)
            except WindlassError:
                return
        finally:
            path.unlink(missing_ok=True)

    return run


def _journal(bench: Bench, rng: random.Random) -> None:
    """A writer's file with whole frames of wrong facts, or with damaged bytes."""
    records, _, _ = read_frames(bench.journal)
    if rng.random() < 0.7:
        lines = []
        for record in records:
            data = {"kind": record.kind, "writer": record.writer, "seq": record.seq, "at": record.at, **record.data}
            lines.append(_frame(mutated(json.dumps(data).encode(), rng)))
        content = b"".join(lines)
    else:
        content = mutated(bench.journal, rng)
    bench.client.write_bytes(content)
    try:
        facts = fold(read_journal(bench.run.journal))
        assert facts.state
        bench.index.rebuild()
        rows = {row.id: row for row in bench.index.dump()}
        assert set(rows) == {RUN, GOOD}
        assert rows[GOOD].state == "succeeded"
        list(retained(bench.home))
        list(old_runs(bench.home, 0.0))
    finally:
        bench.client.write_bytes(bench.journal)


def _frame(body: bytes) -> bytes:
    import zlib

    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


_STATUS = json.dumps(ReplicaStatus(rank=1, end=End("ok", tail=("a",))).to_data()).encode()
_CONTENTS = Contents(run_id=RUN, items=(Item(path="run/f", size=1, sha256=DIGEST),), facts={"a": 1}).to_bytes()
_PROFILE = b"name: here\nkind: slurm\nfs:\n  shared: /shared\nnet:\n  interface: eth\n  vars: {A: b}\n"
_VERSION = Version(kind="folder", entries=(VersionEntry(path="a/b", mode="-", size_bytes=1, sha256=DIGEST),)).to_bytes()
_DELIVERY = b'{"schema": 1, "values": {"A": "YWJj"}}'
_REQUEST = b'{"what": "stop", "at": 1.0, "trials": ["a"]}'

TARGETS: dict[str, Callable[[Bench, random.Random], None]] = {
    "strangers": _allowed()(
        lambda bench, content: _talk(bench, content, proves_itself=False), ClientHandshake(TOKEN, 1).hello() + b"0" * 65
    ),
    "replicas": _allowed()(lambda bench, content: _talk(bench, content + b"\n", proves_itself=True), _STATUS),
    "orders": _allowed(ValueError, TypeError, KeyError, AttributeError)(
        lambda bench, content: Order.from_data(decode_object(content)), json.dumps(Order(epoch=1).to_data()).encode()
    ),
    "parcel": _allowed(ValueError)(lambda bench, content: unpack(content), pack({"path": "x"}, [b"abc"])),
    "job.json": _allowed(WindlassError)(lambda bench, content: JobDocument.read(bench.file("j", content)), _job()),
    "delivery": _allowed(WindlassError)(lambda bench, content: read_delivery(bench.file("d", content)), _DELIVERY),
    "manifest": _allowed(WindlassError)(
        lambda bench, content: (
            bench.file("tree/.windlass-manifest.json", content),
            read_manifest(bench.folder / "tree"),
        ),
        b'{"schema": 1, "step": 1, "at": 0.0, "digest": "x", "files": [{"path": "a", "size": 1, "sha256": "x"}]}',
    ),
    "archive.json": _allowed(ValueError, KeyError, TypeError, AttributeError)(
        lambda bench, content: Contents.from_bytes(content), _CONTENTS
    ),
    "version": _allowed(ValueError, WindlassError)(
        lambda bench, content: Version.from_bytes(content, DIGEST), _VERSION
    ),
    "request": _allowed()(lambda bench, content: read_request(content), _REQUEST),
    "experiment": _allowed(WindlassError)(
        lambda bench, content: load_config(Experiment, content.decode("latin-1"), source="x"),
        json.dumps(EXPERIMENT).encode(),
    ),
    "profile": _allowed(WindlassError)(
        lambda bench, content: load_config(Profile, content.decode("latin-1"), source="x"), _PROFILE
    ),
    "plan.json": _whole_home("plan.json", json.dumps(PLAN).encode()),
    "provenance.json": _whole_home("provenance.json", json.dumps(PROVENANCE).encode()),
    "retention.json": _whole_home("retention.json", b'{"schema": 1, "at": 1.0, "removed": {"a": "b"}}'),
    "import.json": _whole_home("imported.json", b'{"schema": 1, "at": 1.0, "places": {}}'),
    "journal": _journal,
}
"""By what they read."""
