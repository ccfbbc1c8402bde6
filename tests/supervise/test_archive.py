from __future__ import annotations

import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from windlass.supervise import archive
from windlass.supervise.archive import ensure_archive


def test_threads_that_build_at_once_make_one_whole_archive(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        (path,) = set(pool.map(lambda _: ensure_archive(tmp_path), range(4)))
    assert zipfile.ZipFile(path).testzip() is None
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_who_comes_second_leaves_the_archive_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that is just mounting it would fail if its file were another one meanwhile."""
    build, inodes = archive._build, []

    def overtaken(*args: object) -> bytes:
        monkeypatch.setattr(archive, "_build", build)
        inodes.append(ensure_archive(tmp_path).stat().st_ino)
        return build(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(archive, "_build", overtaken)
    assert ensure_archive(tmp_path).stat().st_ino == inodes[0]


def test_every_module_of_the_archive_can_be_imported(tmp_path: Path) -> None:
    path = ensure_archive(tmp_path)
    names = [name for name in zipfile.ZipFile(path).namelist() if name.startswith("windlass/") and name.endswith(".py")]
    modules = [name[:-3].replace("/", ".").removesuffix(".__init__") for name in names]
    lines = [f"import {module}" for module in modules]
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n" + "\n".join(lines)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
