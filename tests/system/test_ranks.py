"""`cluster: mpi` and `cluster: srun` on the local backend."""

from __future__ import annotations

import pytest

from tests.system.stage import PYTHON, Stage
from windlass.record.state import State

pytestmark = pytest.mark.system


def test_mpi_runs_the_command_once_with_a_file_of_hosts(stage: Stage) -> None:
    line = 'echo run >> runs; cat ${hostfile} "$WINDLASS_HOSTFILE" > hosts; exit 0'
    run = stage.launch(stage.task(line, nodes=3, procs_per_node=2, cluster="mpi"))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert (stage.code / "runs").read_text() == "run\n"
    assert (stage.code / "hosts").read_text() == "127.0.0.1 slots=6\n" * 2
    ends = [replica.end for _, replica in sorted(stage.attempts(run)[0].replicas.items())]
    assert [(end.cause, end.code) for end in ends if end] == [("ok", 0), ("ok", -9), ("ok", -9)]
    assert "replica 2 serves replica 0" in stage.log(run, rank=2)
    assert not stage.survivors(run)


def test_the_code_of_the_head_is_the_code_of_the_attempt(stage: Stage) -> None:
    run = stage.launch(stage.task("exit 5", nodes=2, cluster="mpi"))
    assert stage.end(run) is State.FAILED
    (end,) = stage.ends(run)
    assert (end.cause, end.code, end.rank) == ("user-error", 5, 0)


def test_srun_starts_every_process_in_its_place(stage: Stage) -> None:
    text = (
        "import os; names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'SLURM_PROCID'); "
        "os.write(1, (' '.join(os.environ[n] for n in names) + '\\n').encode())  # one write: they share a pipe"
    )
    run = stage.launch(stage.python(text, nodes=2, procs_per_node=2, cluster="srun"))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert sorted(stage.log(run, rank=0).splitlines()) == ["0 0 4 0", "1 1 4 1"]
    assert sorted(stage.log(run, rank=1).splitlines()) == ["2 0 4 2", "3 1 4 3"]


def test_a_process_that_fails_ends_the_gang_with_its_code(stage: Stage) -> None:
    stage.write("user.py", "import os, sys, time\nif os.environ['RANK'] == '2': sys.exit(9)\ntime.sleep(600)\n")
    run = stage.launch(stage.task(f"{PYTHON} user.py", nodes=2, procs_per_node=2, cluster="srun"))
    assert stage.end(run) is State.FAILED
    (end,) = stage.ends(run)
    assert (end.cause, end.code, end.rank) == ("user-error", 9, 1), stage.story(run)
    assert not stage.survivors(run)


def test_a_stop_lets_every_process_save(stage: Stage) -> None:
    text = """
import os, signal, sys, time
def leave(*_):
    os.write(1, f"saved {os.environ['RANK']}\\n".encode())
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"ready\\n")
time.sleep(600)
"""
    stage.write("user.py", text)
    run = stage.launch(stage.task(f"{PYTHON} user.py; exit $?", procs_per_node=2, cluster="srun", grace="20s"))
    stage.wait_for_line(run, "ready\nready")
    run.stop()
    assert stage.end(run) is State.STOPPED
    assert sorted(line for line in stage.log(run).splitlines() if line.startswith("saved")) == ["saved 0", "saved 1"]
