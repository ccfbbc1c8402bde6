"""Builds of environments: once for everybody, and never half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pin.conftest import Shell
from tests.pin.projects import lock, make_project
from tests.pin.test_environment import run_python
from windlass.core.errors import PreconditionError
from windlass.core.process import descendants, identify
from windlass.pin.code.checkouts import checkout
from windlass.pin.code.pinning import pin_code
from windlass.pin.environment.building import build_once
from windlass.pin.environment.ensuring import ensure_environment
from windlass.pin.environment.pinning import pin_environment

pytestmark = pytest.mark.system

PROGRAM = """
import sys
from pathlib import Path
from windlass.pin.environment.ensuring import ensure_environment
from windlass.pin.environment.pinning import pin_environment
folder, cache = map(Path, sys.argv[1:])
built = ensure_environment(pin_environment("uv", folder), folder, cache, log=lambda line: None)
print(built.is_hit, built.python)
"""


def counting_uv(folder: Path, monkeypatch: pytest.MonkeyPatch, sync: str = "") -> Path:
    """A uv before the real one that notes every `sync`, and may do something first; returns the notes."""
    from windlass.pin.environment.uv_tool import find_uv

    notes, script = folder / "syncs", folder / "uv"
    script.write_text(f'#!/bin/sh\nif [ "$1" = sync ]; then echo $$ >> {notes}; {sync}\nfi\nexec {find_uv()} "$@"\n')
    script.chmod(0o755)
    # uv.find_uv_bin cannot be told another place, so the package is hidden and PATH decides.
    (folder / "hide/uv").mkdir(parents=True)
    (folder / "hide/uv/__init__.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(folder / "hide"))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return notes


def start(folder: Path, cache: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", PROGRAM, str(folder), str(cache)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_twenty_processes_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lock(make_project(tmp_path / "p"))
    notes = counting_uv(tmp_path, monkeypatch)
    started = [start(folder, tmp_path / "cache") for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        ends = list(pool.map(lambda each: (*each.communicate(), each.returncode), started))
    assert [code for _, _, code in ends] == [0] * 20, ends[0][1]
    answers = [out.split() for out, _, _ in ends]
    assert len({python for _, python in answers}) == 1
    assert sorted(is_hit for is_hit, _ in answers) == ["False"] + ["True"] * 19
    assert len(notes.read_text().split()) == 1


def test_two_commits_with_one_lock_import_their_own_code(tmp_path: Path, sh: Shell) -> None:
    repo = lock(make_project(tmp_path / "repo"))
    sh(
        "git init -q && git add . && git commit -qm one && echo 'VALUE = 2' > src/demo/__init__.py && git commit -qam two",
        repo,
    )
    seen = []
    for revision in ("HEAD~1", "HEAD"):
        code_pin = pin_code(repo, revision=revision)
        code = checkout(code_pin, repo, tmp_path / "runs" / revision / "code")
        pin = pin_environment("uv", code)
        built = ensure_environment(pin, code, tmp_path / "cache", log=print, tree=code_pin.tree)
        seen.append(
            (
                pin.key,
                built.python,
                run_python(built.python, built.path_entries, "import demo, tiny; print(demo.VALUE)"),
            )
        )
    assert [value for _, _, value in seen] == ["1", "2"]
    assert seen[0][:2] == seen[1][:2]


def test_a_builder_killed_midway_leaves_nothing_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lock(make_project(tmp_path / "p"))
    go = tmp_path / "go"
    notes = counting_uv(tmp_path, monkeypatch, sync=f"while [ ! -e {go} ]; do sleep 0.05; done")
    builder = start(folder, tmp_path / "cache")
    deadline = time.monotonic() + 300
    while not notes.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    orphans = descendants(builder.pid)
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    assert not list((tmp_path / "cache/envs").glob("*/complete.json"))
    assert len(list((tmp_path / "cache/envs").glob("*/*/"))) == 1

    # The orphaned uv goes on just while the next builder works, and neither disturbs the other.
    go.touch()
    out, err = start(folder, tmp_path / "cache").communicate()
    assert out.startswith("False"), err
    python = Path(out.split()[1])
    assert run_python(python, (), "import tiny; print(tiny.VERSION)") == "2.0"
    for pid in orphans:
        while identify(pid) is not None and time.monotonic() < deadline:
            time.sleep(0.02)
    assert start(folder, tmp_path / "cache").communicate()[0].startswith(f"True {python}")


def test_a_failed_build_says_why_and_can_be_tried_again(tmp_path: Path) -> None:
    folder = lock(make_project(tmp_path / "p"))
    wheel = folder / "wheels/tiny-2.0-py3-none-any.whl"
    whole = wheel.read_bytes()
    wheel.unlink()
    pin = pin_environment("uv", folder)
    with pytest.raises(PreconditionError) as caught:
        ensure_environment(pin, folder, tmp_path / "cache", log=print)
    log_file = tmp_path / f"cache/envs/{pin.key}.log"
    assert caught.value.code == "build-failed"
    assert "tiny-2.0-py3-none-any.whl" in caught.value.message
    assert caught.value.message.endswith(f"log: {log_file}")
    assert log_file.exists()
    assert os.listdir(tmp_path / f"cache/envs/{pin.key}") == []
    wheel.write_bytes(whole)
    assert not ensure_environment(pin, folder, tmp_path / "cache", log=print).is_hit


def test_a_hit_starts_nothing_and_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lock(make_project(tmp_path / "p"))
    pin = pin_environment("uv", folder)
    first = ensure_environment(pin, folder, tmp_path / "cache", log=print)
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail("a hit started a process"))
    started = time.process_time()
    again = ensure_environment(pin, folder, tmp_path / "cache", log=print)
    assert time.process_time() - started < 0.02
    assert again.is_hit
    assert (again.python, again.packages, again.path_entries) == (first.python, first.packages, first.path_entries)
    assert again.path_entries == (folder / "src", folder)


def test_an_environment_whose_interpreter_is_gone_is_built_again(tmp_path: Path) -> None:
    folder = lock(make_project(tmp_path / "p"))
    pin = pin_environment("uv", folder)
    first = ensure_environment(pin, folder, tmp_path / "cache", log=print)
    first.python.unlink()
    first.python.symlink_to("/gone/python3")
    again = ensure_environment(pin, folder, tmp_path / "cache", log=print)
    assert not again.is_hit
    assert run_python(again.python, (), "import tiny; print(1)") == "1"
    assert not first.python.parent.exists()


def test_a_torn_marker_is_no_marker(tmp_path: Path) -> None:
    def build(folder: Path) -> dict[str, object]:
        (folder / "proof").touch()
        return {"n": 1}

    place = tmp_path / "place"
    assert not build_once(place, "proof", build, print).is_hit
    for torn in (b"", b"{", b"[]", b'{"generation": "nothing"}', json.dumps({"n": 1}).encode()):
        (place / "complete.json").write_bytes(torn)
        assert not build_once(place, "proof", build, print).is_hit
    assert build_once(place, "proof", build, print).is_hit
    assert sorted(path.name for path in place.iterdir() if path.is_file()) == ["complete.json"]
