"""Check of a site's nodes: one process per node, all in one Slurm job, exchanging data through a folder.

Each reads check.json, publishes its address, connects to the others and writes result-<rank>.json. Needs only Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, WindlassError
from windlass.core.files import check_locks, write_json
from windlass.core.json_text import decode_json, read_json
from windlass.core.process import run
from windlass.supervise.gang.address import own_address

__all__ = ["CHECK_FILE", "CheckSpec", "NodeFinding", "check_node"]

CHECK_FILE = "check.json"
_PAUSE_S = 0.1
_TALK_S = 10.0
_MAX_PEER_CLOCK_S = 1.0
_MAX_FILE_CLOCK_S = 5.0
_LOW_DISK_BYTES = 1 << 30
_ALL_REDUCE_S = 180.0

_ALL_REDUCE = """
import datetime, json, sys, time
try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit(0)
is_gpu = torch.cuda.is_available()
device = torch.device("cuda", 0) if is_gpu else torch.device("cpu")
dist.init_process_group("nccl" if is_gpu else "gloo", timeout=datetime.timedelta(seconds=120))
world = dist.get_world_size()
content = torch.ones((64 if is_gpu else 4) << 18, device=device)
dist.all_reduce(content)
is_right = bool((content == world).all())
wait = torch.cuda.synchronize if is_gpu else (lambda: None)
wait()
start = time.perf_counter()
for _ in range(5):
    dist.all_reduce(content)
wait()
took = (time.perf_counter() - start) / 5
num_bytes = content.numel() * content.element_size()
bandwidth = 2 * (world - 1) / world * num_bytes / took / 1e9
print(json.dumps({"backend": dist.get_backend(), "gbps": bandwidth, "torch": torch.__version__, "right": is_right}))
dist.destroy_process_group()
"""
# Bus bandwidth as in nccl-tests: 2 (n - 1) / n times the bytes, divided by the time.


@dataclass(frozen=True)
class CheckSpec:
    """Parameters of a check of nodes.

    Attributes:
        nodes: number of nodes that take part.
        nonce: content of the file `nonce`, written by the login node.
        interface: network interface to use, or the beginning of its name.
        gpus: expected GPUs per node; None if unknown.
        cuda: newest CUDA that the driver should support; empty if unknown.
        node_local: folder on the node's own disk.
        python: interpreter whose torch runs an all-reduce over the nodes; empty if skipped.
        env: the site's variables for that; None unsets a variable.
        wait_s: time limit for connecting to the other nodes.
    """

    nodes: int
    nonce: str
    interface: str = ""
    gpus: int | None = None
    cuda: str = ""
    node_local: str = "/tmp"  # noqa: S108 - a default that profiles override
    python: str = ""
    env: Mapping[str, str | None] = field(default_factory=dict)
    wait_s: float = 120.0


@dataclass(frozen=True)
class NodeFinding:
    """Result of one check on one node: `ok`, `failed` or `not-tried`."""

    name: str
    status: str
    message: str
    hint: str = ""


def check_node(folder: Path, environ: Mapping[str, str]) -> int:
    """Check this node and write result-<rank>.json; blocks until all nodes have done so, or for `wait_s`."""
    spec = CheckSpec(**read_json(folder / CHECK_FILE))
    rank = int(environ.get("SLURM_PROCID", "0"))
    end = time.monotonic() + spec.wait_s
    facts = _facts()
    found = [_python(), _gpus(spec, environ, facts), *_driver(spec, facts)]
    found += [_disk(spec), _shared(folder, spec), _locks(folder), _file_clock(folder, rank)]
    try:
        own = own_address(spec.interface)
    except PreconditionError as error:
        found += [NodeFinding("interface", "failed", error.message, error.hint)]
        found += [NodeFinding(name, "not-tried", "no address to meet on") for name in ("port", "clock", "all-reduce")]
        own = ""
    else:
        found.append(NodeFinding("interface", "ok", f"{own}{f' on {spec.interface}*' if spec.interface else ''}"))
        found += _together(folder, spec, rank, own, environ, end)
    result = {"rank": rank, "host": _host(), "facts": facts, "findings": [asdict(finding) for finding in found]}
    write_json(folder / f"result-{rank}.json", result)
    _wait(lambda: all((folder / f"result-{other}.json").exists() for other in range(spec.nodes)), end)
    return 0


def _host() -> str:
    return os.uname().nodename.partition(".")[0]


def _facts() -> dict[str, object]:
    facts: dict[str, object] = {"arch": platform.machine(), "cpus": len(os.sched_getaffinity(0))}
    facts["interfaces"] = sorted(name for _, name in socket.if_nameindex() if name != "lo")
    return facts


def _python() -> NodeFinding:
    return NodeFinding("python", "ok", platform.python_version())


def _gpus(spec: CheckSpec, environ: Mapping[str, str], facts: dict[str, object]) -> NodeFinding:
    """Count the GPUs that nvidia-smi lists, or else those that Slurm allocated to the job."""
    counted = _listed_gpus(facts)
    if counted is None:
        named = [environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS")]
        stated = next((text for text in named if text), "")
        counted = len(stated.split(",")) if stated else 0
    if spec.gpus is None:
        return NodeFinding("gpus", "not-tried", f"{counted} here; not set in the profile")
    status = "ok" if counted == spec.gpus else "failed"
    message = f"{counted}" if status == "ok" else f"{counted} here, {spec.gpus} in the profile"
    return NodeFinding("gpus", status, message, "" if status == "ok" else "correct `gpus` of the partition")


def _listed_gpus(facts: dict[str, object]) -> int | None:
    try:
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        listed = run(query, timeout_s=60)
        version = re.search(r"CUDA Version: *([0-9.]+)", run(["nvidia-smi"], timeout_s=60).stdout)
    except WindlassError:
        return None
    rows = [line.split(", ") for line in listed.stdout.splitlines() if line.count(", ") == 2]
    if listed.code != 0 or not rows:
        return None
    facts.update(gpu=rows[0][0], gpu_memory=rows[0][1], driver=rows[0][2], cuda=version[1] if version else "")
    return len(rows)


def _driver(spec: CheckSpec, facts: Mapping[str, object]) -> Iterator[NodeFinding]:
    """Check that the driver supports the profile's CUDA version; without a driver, skip the check."""
    if not facts.get("cuda"):
        return
    found = f"{facts['driver']}, CUDA {facts['cuda']}"
    if not spec.cuda:
        yield NodeFinding("driver", "not-tried", f"{found}; not set in the profile", "set `cuda`, `driver`")
    elif spec.cuda == facts["cuda"]:
        yield NodeFinding("driver", "ok", found)
    else:
        message = f"{found} here, CUDA {spec.cuda} in the profile"
        yield NodeFinding("driver", "failed", message, "correct `cuda` and `driver` of the partition")


def _disk(spec: CheckSpec) -> NodeFinding:
    try:
        free = shutil.disk_usage(spec.node_local).free
        is_writable = os.access(spec.node_local, os.W_OK | os.X_OK)
    except OSError as error:
        hint = "correct fs.node_local"
        return NodeFinding("node-local", "failed", f"{spec.node_local}: {error.strerror}", hint)
    message = f"{free / 2**30:.1f} GiB free in {spec.node_local}"
    if not is_writable:
        return NodeFinding("node-local", "failed", f"{spec.node_local} is not writable", "correct fs.node_local")
    if free < _LOW_DISK_BYTES:
        return NodeFinding("node-local", "failed", f"only {message}", "choose another fs.node_local")
    return NodeFinding("node-local", "ok", message)


def _shared(folder: Path, spec: CheckSpec) -> NodeFinding:
    try:
        text = (folder.parent / "nonce").read_text()
    except OSError as error:
        text = f"({error.strerror})"
    if text != spec.nonce:
        message = f"{folder.parent}/nonce differs from the file on the login node: {text[:40]}"
        return NodeFinding("shared", "failed", message, "correct fs.shared: one folder that all nodes see")
    return NodeFinding("shared", "ok", f"{folder.parent} is the same as on the login node")


def _locks(folder: Path) -> NodeFinding:
    """Check that files in the shared folder can be locked, since every replica locks its own file."""
    try:
        check_locks(folder)
    except WindlassError as error:
        return NodeFinding("file locks", "failed", error.message, error.hint)
    except OSError as error:
        return NodeFinding("file locks", "failed", f"{folder}: {error.strerror}", "correct fs.shared")
    return NodeFinding("file locks", "ok", f"files in {folder.parent} can be locked")


def _file_clock(folder: Path, rank: int) -> NodeFinding:
    """Compare this node's clock with the file server's, which sets the times of written files."""
    path = folder / f"clock-{rank}"
    before = time.time()
    path.write_bytes(b"")
    after, stamped = time.time(), path.stat().st_mtime
    off = max(before - stamped, stamped - after, 0.0)
    status = "ok" if off <= _MAX_FILE_CLOCK_S else "failed"
    hint = "" if status == "ok" else "report it to the site; times in records of this node are wrong"
    return NodeFinding("file clock", status, f"{off:.3f} s off the shared folder's clock", hint)


def _together(
    folder: Path, spec: CheckSpec, rank: int, own: str, environ: Mapping[str, str], end: float
) -> Iterator[NodeFinding]:
    """Run the checks that need at least two nodes: connections, clocks, an all-reduce."""
    if spec.nodes == 1:
        for name in ("port", "clock", "all-reduce"):
            yield NodeFinding(name, "not-tried", "needs two nodes")
        return
    listener = socket.create_server((own, 0), backlog=64)  # replies until this process ends
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    with socket.create_server((own, 0)) as spare:
        free = spare.getsockname()[1]
    card = {"address": own, "port": listener.getsockname()[1], "free": free, "host": _host()}
    write_json(folder / f"card-{rank}.json", card)
    cards = _cards(folder, spec.nodes, end)
    if len(cards) < spec.nodes:
        message = f"no sign of {spec.nodes - len(cards)} of {spec.nodes} nodes within {spec.wait_s:g} s"
        yield NodeFinding("port", "failed", message, "read the job's output in the check's folder")
        for name in ("clock", "all-reduce"):
            yield NodeFinding(name, "not-tried", "some nodes are missing")
        return
    yield from _talk(rank, cards)
    yield _all_reduce(spec, rank, cards[0], environ)


def _cards(folder: Path, nodes: int, end: float) -> dict[int, Mapping[str, object]]:
    paths = {rank: folder / f"card-{rank}.json" for rank in range(nodes)}
    _wait(lambda: all(path.exists() for path in paths.values()), end)
    return {rank: read_json(path) for rank, path in paths.items() if path.exists()}


def _answer(listener: socket.socket) -> None:
    """Send this node's time to every client."""
    while True:
        channel, _ = listener.accept()
        with channel, contextlib.suppress(OSError):
            channel.sendall(f"{time.time():.6f}\n".encode())


def _talk(rank: int, cards: Mapping[int, Mapping[str, object]]) -> Iterator[NodeFinding]:
    offsets, failed = {}, []
    for other, card in cards.items():
        if other == rank:
            continue
        where = f"{card['host']} ({card['address']}:{card['port']})"
        try:
            before = time.time()
            with socket.create_connection((str(card["address"]), int(str(card["port"]))), _TALK_S) as channel:
                theirs = float(channel.makefile().readline())
            offsets[str(card["host"])] = theirs - (before + time.time()) / 2
        except (OSError, ValueError) as error:
            failed.append(f"{where}: {error}")
    if failed:
        hint = "a firewall, or the wrong interface: correct net.interface"
        yield NodeFinding("port", "failed", "; ".join(failed)[:400], hint)
    else:
        yield NodeFinding("port", "ok", f"reaches {', '.join(offsets)}")
    if not offsets:
        yield NodeFinding("clock", "not-tried", "no other node answered")
        return
    worst = max(offsets, key=lambda host: abs(offsets[host]))
    status = "ok" if abs(offsets[worst]) <= _MAX_PEER_CLOCK_S else "failed"
    hint = (
        "" if status == "ok" else "report it to the site: nodes whose clocks differ cannot agree on which one is late"
    )
    yield NodeFinding("clock", status, f"{abs(offsets[worst]):.3f} s off {worst}", hint)


def _all_reduce(spec: CheckSpec, rank: int, first: Mapping[str, object], environ: Mapping[str, str]) -> NodeFinding:
    if not spec.python:
        return NodeFinding("all-reduce", "not-tried", "no environment given", "--python /path/to/env/bin/python")
    env = {**environ, **{name: value for name, value in spec.env.items() if value is not None}}
    for name in [name for name, value in spec.env.items() if value is None]:
        env.pop(name, None)
    env.update(MASTER_ADDR=str(first["address"]), MASTER_PORT=str(first["free"]))
    env.update(RANK=str(rank), WORLD_SIZE=str(spec.nodes), LOCAL_RANK="0")
    exact = sorted(name for _, name in socket.if_nameindex() if spec.interface and name.startswith(spec.interface))
    if exact:
        env.setdefault("GLOO_SOCKET_IFNAME", exact[0])
    try:
        done = run([spec.python, "-c", _ALL_REDUCE], env=env, timeout_s=_ALL_REDUCE_S)
    except WindlassError as error:
        return NodeFinding("all-reduce", "failed", error.message, "check the network variables in net.vars")
    printed = (done.stdout.strip().splitlines() or [""])[-1]
    if done.code != 0 or not printed.startswith("{"):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.code}"])[-1]
        return NodeFinding("all-reduce", "failed", last[:300], "check the network variables in net.vars")
    got = decode_json(printed)
    if "missing" in got:
        return NodeFinding("all-reduce", "not-tried", f"{spec.python}: {got['missing']}")
    message = f"{got['gbps']:.2f} GB/s bus bandwidth, {got['backend']}, torch {got['torch']}"
    if not got["right"]:
        return NodeFinding("all-reduce", "failed", f"wrong sums ({message})", "look at the network's variables")
    return NodeFinding("all-reduce", "ok", message)


def _wait(is_done: Callable[[], bool], end: float) -> None:
    """Poll until `is_done` returns true or the deadline, in monotonic time, has passed."""
    while not is_done() and time.monotonic() < end:
        time.sleep(_PAUSE_S)
