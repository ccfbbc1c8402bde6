"""Script that machines boot with: its size, what it holds, and what it does."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.hosts import wait_until
from windlass.core.errors import InternalError
from windlass.supervise.node.boot import MAX_BYTES, NodeBoot, render_boot

NODE = NodeBoot(store="127.0.0.1:1", token="7" * 64, group="gpu", metadata="virtual", patience_s=0.0)


def test_it_is_a_shell_script_below_the_limit_of_user_data() -> None:
    script = render_boot(shutdown="shutdown -h now", deadline_at=2e9, deadline_s=3600, node=NODE)
    assert script.startswith(b"#!/bin/sh\n")
    assert len(script) <= MAX_BYTES
    assert subprocess.run(["sh", "-n"], input=script, check=False).returncode == 0


def test_the_token_is_in_no_command_line() -> None:
    lines = render_boot(shutdown="true", node=NODE).decode().splitlines()
    (place,) = [number for number, line in enumerate(lines) if "7" * 64 in line]
    assert lines[place] == "7" * 64
    assert lines[place - 1] == "cat > \"$work/token\" <<'WINDLASS_END'"


def test_a_head_has_the_deadline_alone() -> None:
    script = render_boot(shutdown="shutdown -h now", deadline_at=2e9, deadline_s=10)
    assert b"boot.py" not in script
    assert b"shutdown -h now" in script


def test_a_script_above_the_limit_is_an_error() -> None:
    with pytest.raises(InternalError, match="at most 16384"):
        render_boot(shutdown="true", node=NodeBoot(store="h:1", token="t" * 20_000, group="g", metadata="aws"))


def run_script(script: bytes, tmp_path: Path, temporary: Path | None = None) -> None:
    path = tmp_path / "user-data"
    path.write_bytes(script)
    environment = {
        "PATH": os.environ["PATH"],
        "WINDLASS_VIRTUAL_ID": "m1",
        "HOME": str(tmp_path),
        "TMPDIR": str(temporary or tmp_path),
    }
    subprocess.run(["sh", str(path)], env=environment, stdin=subprocess.DEVNULL, check=False, timeout=300)


@pytest.mark.parametrize("clock", ["slow", "right", "fast"])
def test_the_deadline_ends_the_machine_whatever_its_clock_says(tmp_path: Path, clock: str) -> None:
    mark = tmp_path / "ended"
    at = {"slow": 0.0, "right": time.time() + 1.0, "fast": 4e9}[clock]
    run_script(render_boot(shutdown=f"echo x >> {mark}; exit", deadline_at=at, deadline_s=1), tmp_path)
    wait_until(mark.exists, "the deadline")


@pytest.mark.skipif(shutil.which("python3") is None, reason="python3 on the PATH")
def test_a_machine_that_never_finds_its_head_ends_itself(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    run_script(render_boot(shutdown=f"touch {mark}", node=NODE), tmp_path)
    assert mark.exists()


def test_the_token_never_lies_in_a_folder_that_others_can_write(tmp_path: Path) -> None:
    where = tmp_path / "where"
    script = render_boot(shutdown="true", node=NODE).replace(
        b"\npython=\n", f'\nstat -c %a "$work" > {where}; exit 0\n'.encode()
    )
    for temporary in (tmp_path, tmp_path / "missing"):
        run_script(script, tmp_path, temporary)
        assert where.read_text() == "700\n"
