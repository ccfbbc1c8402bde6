from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.supervise.launchers.host_file import host_lines, mpi_main
from windlass.supervise.launchers.ranks import rank_variables, ranks_main

PLACE = {**os.environ, "WINDLASS_RANK": "1", "WINDLASS_NUM_REPLICAS": "2"}


def ranks(code: str, num: int = 2) -> int:
    before = signal.getsignal(signal.SIGTERM)
    try:
        return ranks_main([f"--procs={num}", "--", sys.executable, "-c", code], PLACE)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_process_finds_its_place() -> None:
    found = rank_variables(PLACE, 2, 4)
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("6", "2", "8")
    assert (found["SLURM_PROCID"], found["SLURM_LOCALID"], found["SLURM_NTASKS"]) == ("6", "2", "8")


@pytest.mark.system
def test_every_gpu_gets_a_process(tmp_path: Path) -> None:
    code = f"import os; open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(os.environ['LOCAL_RANK'])"
    assert ranks(code, 3) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"3": "0", "4": "1", "5": "2"}


@pytest.mark.system
def test_the_first_failure_ends_the_others_and_its_code_is_the_code(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os, sys, time; time.sleep(0 if os.environ['RANK'] == '3' else 600); sys.exit(7)"
    assert ranks(code) == 7
    assert "rank 3 (number 1 of this node) exited with code 7" in capfd.readouterr().err


@pytest.mark.system
def test_a_signal_of_a_process_is_a_code() -> None:
    assert ranks("import os; os.kill(os.getpid(), 9)") == 128 + signal.SIGKILL


@pytest.mark.system
def test_a_program_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    assert ranks_main(["--procs=2", "--", "no-such-program"], PLACE) == 127
    assert "`no-such-program` cannot be executed: No such file or directory" in capfd.readouterr().err


def test_the_host_file_has_a_line_per_host() -> None:
    assert host_lines("a=10.0.0.1,b=10.0.0.2", 4) == "10.0.0.1 slots=4\n10.0.0.2 slots=4\n"
    assert host_lines("vm=127.0.0.1,vm=127.0.0.1", 4) == "127.0.0.1 slots=8\n"


@pytest.mark.system
def test_the_head_becomes_the_command_with_the_host_file(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "WINDLASS_RANK": "0",
        "WINDLASS_HOSTS": "a=10.0.0.1",
        "WINDLASS_HOSTFILE": str(tmp_path / "wl" / "hosts"),
        "OUT": str(tmp_path / "out"),
    }
    line = 'cat "$WINDLASS_HOSTFILE" > "$OUT"; echo "$X" >> "$OUT"; exit 5'
    entry = "import os, sys; from windlass.supervise.launchers.host_file import mpi_main; sys.exit(mpi_main(sys.argv[1:], os.environ))"
    argv = [sys.executable, "-c", entry, "--slots=2", "--driver-set=X=y", "--", "/bin/sh", "-c", line]
    assert subprocess.run(argv, env=environ).returncode == 5
    assert (tmp_path / "out").read_text() == "10.0.0.1 slots=2\ny\n"


def test_a_head_that_knows_no_hosts_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert mpi_main(["--slots=2", "--", "x"], {"WINDLASS_RANK": "0"}) == 1
    assert "the host list of this attempt was lost with its leader" in capsys.readouterr().err
