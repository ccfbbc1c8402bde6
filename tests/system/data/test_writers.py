"""Twenty writers at once, and processes killed at any moment: no half-valid object or version is ever used."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.store.collecting import collect
from windlass.store.local import LocalStore
from windlass.store.remote import RemoteStore

pytestmark = pytest.mark.system

ADD = """
import sys
from pathlib import Path
from windlass.store.local import LocalStore
print(LocalStore(Path(sys.argv[1])).add(Path(sys.argv[2]), name=sys.argv[3]).digest)
"""
PULL = """
import sys
from pathlib import Path
from windlass.store.local import LocalStore
from windlass.store.remote import RemoteStore
print(RemoteStore(sys.argv[2]).pull(LocalStore(Path(sys.argv[1])), sys.argv[3]).digest)
"""
PUSH = """
import sys
from pathlib import Path
from windlass.store.local import LocalStore
from windlass.store.remote import RemoteStore
print(RemoteStore(sys.argv[2]).push(LocalStore(Path(sys.argv[1])), sys.argv[3]).digest)
"""
PLACE = """
import sys
from pathlib import Path
from windlass.store.local import LocalStore
from windlass.store.placing import place
store = LocalStore(Path(sys.argv[1])); print(place(store, store.read(sys.argv[3]), Path(sys.argv[2])))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(60):
        (folder / f"small-{number}").write_bytes(os.urandom(2000))
    for number in range(3):
        (folder / f"big-{number}").write_bytes(os.urandom(2 << 20))
    return folder


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.strip()


def check(store: LocalStore) -> None:
    """Whatever is visible is whole."""
    for item in store.objects.walk():
        assert store.objects.check(Path(item.path), item.name.removesuffix(".x")), item.name
    for digest in store.versions():
        for entry in store.read(digest).entries:
            if entry.mode != "l":
                store.verify(entry)


def test_twenty_writers_of_the_same_and_of_other_data(tmp_path: Path, data: Path) -> None:
    store, num_files = LocalStore(tmp_path / "store"), len(os.listdir(data))
    folders = [data]
    for number in range(4):
        folders.append(tmp_path / f"data-{number}")
        shutil.copytree(data, folders[-1])
        (folders[-1] / "own").write_text(str(number))
    running = [start(ADD, store.root, folders[number % 5], f"d{number % 5}") for number in range(20)]
    time.sleep(1.0)
    collect(store, pinned={})
    digests = [finish(process) for process in running]
    assert [digests[number] == digests[number % 5] for number in range(20)] == [True] * 20
    assert store.versions() == sorted(set(digests))
    check(store)
    assert list((store.root / "incoming").glob("*")) == []  # a collection that came last took the folder too
    num_objects = len(list(store.objects.walk()))
    assert num_objects == num_files + 4


def _kill_often(tmp_path: Path, data: Path, times: int) -> None:
    """Add, push, pull and place again and again; each is killed somewhere, then done in peace."""
    chosen = random.Random(int(os.environ.get("WINDLASS_SEED", "1")))
    wanted = LocalStore(tmp_path / "whole").add(data).digest
    for round_ in range(times):
        store, other = LocalStore(tmp_path / f"{round_}/store"), LocalStore(tmp_path / f"{round_}/other")
        there, placed = f"file://{tmp_path}/{round_}/remote", tmp_path / f"{round_}/placed"
        steps = [
            (ADD, store.root, data, "d"),
            (PUSH, store.root, there, wanted),
            (PULL, other.root, there, wanted),
            (PLACE, other.root, placed, wanted),
        ]
        for step in steps:
            process = start(*step)
            time.sleep(chosen.uniform(0.05, 0.9))
            process.kill()
            process.communicate()
            for each in (store, other):
                check(each)
            for digest in RemoteStore(there).versions():
                RemoteStore(there).pull(LocalStore(tmp_path / f"{round_}/probe"), digest)
            finish(start(*step))
        for each in (store, other):
            check(each)
            collect(each, pinned={wanted: "run"})
            assert each.versions() == [wanted]
            assert not (each.root / "incoming").exists()
        (found,) = placed.glob("*/data")
        assert LocalStore(tmp_path / f"{round_}/again").add(found).digest == wanted
        subprocess.run(["chmod", "-R", "u+w", str(tmp_path / str(round_))], check=True)
        shutil.rmtree(tmp_path / str(round_))


def test_killed_at_any_moment(tmp_path: Path, data: Path) -> None:
    _kill_often(tmp_path, data, 3)


@pytest.mark.soak
def test_killed_a_hundred_times(tmp_path: Path, data: Path) -> None:
    _kill_often(tmp_path, data, 25)


def test_a_full_disk_loses_nothing(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("tmpfs")
    small, data = tmp_path / "small", tmp_path / "data"
    data.mkdir()
    for number in range(8):
        (data / str(number)).write_bytes(os.urandom(1 << 20))
    script = f"""
        mkdir -p {small}; mount -t tmpfs -o size=5m none {small}
        export WINDLASS_STORE={small}/store WINDLASS_HOME={tmp_path}/home
        {Path(sys.executable).parent}/windlass data add {data} --name d; echo "code $?"
        find {small}/store/incoming -type f | wc -l
        mount -o remount,size=20m {small}
        {Path(sys.executable).parent}/windlass data add {data} --name d; echo "code $?"
    """
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=300)
    assert "error: no space left for the store" in done.stderr
    assert "[store-full]" in done.stderr
    lines = done.stdout.splitlines()
    assert (lines[0], lines[1], lines[3]) == ("code 8", "0", "code 0")
