"""Data: add, verify, push and pull beside cp, sha256sum and plain fsspec.

    python benches/bench_data.py [GB [ROUNDS [SHARE]]]

10 GB by default (or WINDLASS_BENCH_GB), half of it (SHARE) in files of 256 MB and the rest in files of 100 kB; below
WINDLASS_BENCH_DIR, which needs three times as much. Everything is timed on the same bytes, in rounds, and compared per
core used: CPU seconds of the process and its children, over wall time. That says what the work costs, not how long it
takes: waiting for a disk is free. The best of the rounds counts for each, ours and others'.

`verify` only hashes, so its limit is hashlib alone, in as many threads as there are cores. `add` and `pull` (from a store
at file://) also write every byte, so theirs is hashlib followed by `cp`; the share of hashlib alone stands beside it.

What is no longer needed is emptied and only at the end removed: ext4 without a journal takes ten times as long to make a
file where others were removed in the last minutes (`recently_deleted`), and would time the round before.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from windlass.store.local import LocalStore
from windlass.store.placing import place
from windlass.store.remote import RemoteStore

GOAL = 0.8
_LARGE_BYTES = 256_000_000
_SMALL_BYTES = 100_000


def _write(folder: Path, num_bytes: int, share_large: float) -> int:
    """Files of both sizes; returns what they hold."""
    block = os.urandom(1 << 20)
    written = 0
    for size, share in ((_LARGE_BYTES, int(num_bytes * share_large)), (_SMALL_BYTES, num_bytes)):
        number = 0
        while written < share:
            path = folder / f"{size}" / f"{number // 1000}" / f"{number}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                file.write(number.to_bytes(8, "big") + size.to_bytes(8, "big"))
                left = size - 16
                while left > 0:
                    left -= file.write(block[: min(left, len(block))])
            written += size
            number += 1
    return written


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _timed(name: str, num_bytes: int, do: Callable[[], object]) -> float:
    """Print wall time and throughput; returns bytes per second and core used."""
    os.sync()
    wall, cpu = time.monotonic(), _cpu_s()
    do()
    wall, cpu = time.monotonic() - wall, _cpu_s() - cpu
    cores = max(cpu / wall, 0.01)
    per_core = num_bytes / wall / cores
    print(
        f"{name:<22} {wall:7.1f} s  {num_bytes / wall / 1e6:8.0f} MB/s  {cores:4.1f} cores  {per_core / 1e6:8.0f} MB/s/core"
    )
    return per_core


def _run(command: str, *paths: Path) -> None:
    subprocess.run(["sh", "-c", command, "sh", *map(str, paths)], check=True, stdout=subprocess.DEVNULL)


def _plain(source: Path, target: Path) -> None:
    import fsspec

    fsspec.filesystem("file").put(str(source), str(target), recursive=True)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def _hash(paths: list[Path]) -> None:
    """Every file with hashlib, in as many threads as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(_hash_some, [paths[start : start + 64] for start in range(0, len(paths), 64)]):
            pass


def _hash_some(paths: list[Path]) -> None:
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            hashlib.file_digest(file, "sha256")


def _round(data: Path, size: int, where: Path) -> dict[str, float]:
    """One look at everything, with new stores; bytes per second and core used by name."""
    where.mkdir()
    paths = _files(data)
    store, other = LocalStore(where / "store"), LocalStore(where / "other")
    remote = RemoteStore(f"file://{where}/remote")
    _timed("sha256sum", size, lambda: _run('find "$1" -type f -exec sha256sum {} +', data))
    found = {"hash": _timed("hashlib", size, lambda: _hash(paths))}
    found["cp"] = _timed("cp + sync", size, lambda: _run('cp -r "$1" "$2"; sync', data, where / "copy"))
    _empty(where / "copy")
    _timed("plain fsspec put", size, lambda: _plain(data, where / "plain"))
    _empty(where / "plain")
    found["add"] = _timed("windlass add", size, lambda: store.add(data))
    (digest,) = store.versions()
    version = store.read(digest)
    found["verify"] = _timed("windlass verify+place", size, lambda: place(store, version, where / "placed"))
    _timed("windlass push", size, lambda: remote.push(store, digest))
    _empty(where / "store")
    found["pull"] = _timed("windlass pull", size, lambda: remote.pull(other, digest))
    for name in ("remote", "other"):
        _empty(where / name)
    return found


def _empty(folder: Path) -> None:
    """Free the space of files that stay."""
    _run('chmod -R u+w "$1"', folder)
    for path in _files(folder):
        os.truncate(path, 0)


def _remove(where: Path) -> None:
    subprocess.run(["chmod", "-R", "u+w", str(where)], check=True)
    shutil.rmtree(where)


def main() -> int:
    """Print the table; 1 where a goal is missed."""
    gigabytes = float(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("WINDLASS_BENCH_GB", "10"))
    num_rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    share_large = float(sys.argv[3]) if len(sys.argv) > 3 else 0.5
    where = Path(tempfile.mkdtemp(prefix="windlass-bench-", dir=os.environ.get("WINDLASS_BENCH_DIR")))
    try:
        size = _write(where / "data", int(gigabytes * 1e9), share_large)
        _run('find "$1" -type f -exec cat {} + >/dev/null', where / "data")
        rounds = []
        for number in range(num_rounds):
            print(f"round {number + 1}: {size / 1e9:.2f} GB, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
            rounds.append(_round(where / "data", size, where / f"round{number}"))
        return _verdict({name: max(each[name] for each in rounds) for name in rounds[0]})
    finally:
        _remove(where)


def _verdict(best: dict[str, float]) -> int:
    both = 1 / (1 / best["hash"] + 1 / best["cp"])
    is_met = True
    for name, limit in (("add", both), ("verify", best["hash"]), ("pull", both)):
        ratio = best[name] / limit
        is_met = is_met and ratio >= GOAL
        said = "ok" if ratio >= GOAL else f"goal {GOAL}"
        print(f"{name}: {ratio:.2f} of its limit per core ({said}); {best[name] / best['hash']:.2f} of hashlib alone")
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
