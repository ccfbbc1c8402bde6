from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.tree import ROOT

# Stand-ins: nothing is installed, and apt-get writes down what would have asked before a service starts.
DPKG_QUERY = "#!/bin/sh\nexit 1\n"
APT_GET = '#!/bin/sh\ncase "$*" in *update*) exit 0 ;; esac\nsh "$LAB_POLICY"; echo $? >"$ANSWER"; exit "$APT_CODE"\n'


@pytest.fixture
def install(tmp_path: Path, need: Callable[[str], None]) -> Callable[..., int]:
    need("root")
    for name, text in {"dpkg-query": DPKG_QUERY, "apt-get": APT_GET}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(apt_code: int = 0) -> int:
        env = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "LAB_POLICY": str(tmp_path / "policy-rc.d"),
            "ANSWER": str(tmp_path / "answer"),
            "APT_CODE": str(apt_code),
        }
        done = subprocess.run(["bash", str(ROOT / "tests/lab/install.sh")], env=env, capture_output=True)
        assert (tmp_path / "answer").read_text() == "101\n"  # policy-rc.d: action not allowed
        return done.returncode

    return run


def test_no_service_may_start_while_packages_are_installed(install: Callable[..., int], tmp_path: Path) -> None:
    assert install() == 0
    assert not (tmp_path / "policy-rc.d").exists()


@pytest.mark.parametrize("apt_code", [0, 100])
def test_the_policy_is_put_back_as_it_was(install: Callable[..., int], tmp_path: Path, apt_code: int) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n")
    policy.chmod(0o750)
    assert install(apt_code) == apt_code
    assert policy.read_text() == "#!/bin/sh\nexit 104\n"
    assert policy.stat().st_mode & 0o777 == 0o750


def test_a_killed_installation_is_made_good_by_the_next(install: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "policy-rc.d").write_text("#!/bin/sh\n# for the time of make lab\nexit 101\n")
    (tmp_path / "policy-rc.d.before-lab").write_text("the first\n")
    assert install() == 0
    assert (tmp_path / "policy-rc.d").read_text() == "the first\n"
