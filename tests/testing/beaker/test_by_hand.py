"""The fake as a program, and what importing it costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def test_importing_the_package_imports_no_client() -> None:
    code = "import sys, windlass.testing, windlass.testing.beaker; print(sorted({'grpc', 'beaker'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.system
def test_by_hand(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "windlass.testing.beaker", str(tmp_path / "x y"), "--secret", "A=b", "--image", "i"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        exports = process.stdout.readline() + process.stdout.readline()
        use = (
            "from beaker import Beaker\n"
            "with Beaker.from_env(check_for_upgrades=False) as client:\n"
            "    print(client.user_name, client.secret.read(client.secret.get('A')), client.image.get('me/i').name)\n"
        )
        done = subprocess.run(
            ["sh", "-c", f'{exports} exec "$@"', "sh", sys.executable, "-c", use],
            capture_output=True, text=True, check=True, env=dict(os.environ),
        )  # fmt: skip
        assert done.stdout == "me b i\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
