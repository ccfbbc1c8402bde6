"""The sandbox, against programs that try to get out of it or to stop the machine, and the verifier of code in it.

A bomb here has an end of its own: if a limit failed, it would not stop the machine that runs the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import windlass
from tests.post.rewards.test_pool import answer
from windlass.config.loading import load_config
from windlass.core.errors import PreconditionError, SpecError
from windlass.post.control.config import RewardsConfig, VerifierConfig
from windlass.post.control.scoring import AnswerScorer
from windlass.post.rewards import cgroup, sandbox
from windlass.post.rewards.code import code, code_of
from windlass.post.rewards.pool import PoolConfig, RewardPool, RewardRequest
from windlass.post.rewards.protocol import Score
from windlass.post.rewards.registry import find_verifier
from windlass.post.rewards.sandbox import SandboxConfig, missing, run
from windlass.post.rollout.types import Sample, SampleId
from windlass.train.data.tokenizer import ByteTokenizer

pytestmark = pytest.mark.system

SMALL = SandboxConfig(timeout_s=120.0, num_processes=16, memory_bytes=128 << 20)
"""For programs that end by themselves, however busy the machine is."""


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    if missing() and os.environ.get("WINDLASS_LAB") != "required":
        pytest.skip("; ".join(missing()))
    yield
    users = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_sandboxed(entry)]
    assert users == []


def _is_sandboxed(entry: Path) -> bool:
    try:
        return entry.stat().st_uid == 61184 + os.getpid() % 4096
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_runs_under_another_uid_without_environment_and_input() -> None:
    outcome = run(
        "import os, sys; print(os.getuid() >= 61184, sorted(os.environ), repr(sys.stdin.read()), os.getcwd())",
        SMALL,
    )
    assert (outcome.end, outcome.code) == ("exit", 0)
    assert outcome.output.decode() == "True ['HOME', 'LANG', 'PATH'] '' /tmp\n"


def test_a_fork_bomb_is_bounded() -> None:
    program = "import os, time\nn = 0\nfor _ in range(10):\n    try: os.fork()\n    except OSError: n = 1\nprint(n)\n"
    outcome = run(program + "time.sleep(2)", SMALL)  # so long that all live at the same time
    lines = outcome.output.split()
    assert b"1" in lines
    assert len(lines) <= SMALL.num_processes


def test_a_memory_bomb_is_bounded() -> None:
    program = (
        "import os, time\nfor _ in range(7):\n    if os.fork() == 0: break\n"
        "held = bytearray(64 << 20)\nfor i in range(0, len(held), 4096): held[i] = 1\ntime.sleep(3)\nprint('held', flush=True)"
    )
    outcome = run(program, SMALL)
    assert outcome.output.count(b"held") <= 1
    assert b"MemoryError" in run("bytearray(10 << 30)", SMALL).errors


def test_home_and_vault_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o777)
    (home / "vault.json").write_text("secret")
    os.chmod(home / "vault.json", 0o666)
    monkeypatch.setenv("WINDLASS_HOME", str(home))
    outcome = run(f"open({str(home / 'vault.json')!r})", SMALL)
    assert b"FileNotFoundError" in outcome.errors
    assert b"FileNotFoundError" in run(f"import os; os.listdir({str(tmp_path)!r})", SMALL).errors
    assert b"No such file" in run("open('/etc/shadow')", SMALL).errors


def test_a_listener_on_loopback_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        assert b"Network is unreachable" in run(program, SMALL).errors


@pytest.mark.parametrize("path", ["/x", "/usr/x", "/program/main.py", "/dev/x", "/proc/sys/kernel/core_pattern"])
def test_nothing_is_written_outside_of_tmp(path: str) -> None:
    outcome = run(
        f"open('/tmp/x', 'w').write('x')\ntry: open({path!r}, 'w')\nexcept OSError as e: print('refused')", SMALL
    )
    assert outcome.output == b"refused\n"
    assert not Path("/tmp/x").exists()


def test_rights_are_not_won_back() -> None:
    program = (
        "import ctypes, os\nc = ctypes.CDLL(None)\n"
        "print(c.setuid(0), c.mount(b'x', b'/tmp', b'tmpfs', 0, None), c.kill(1, 9))\n"
        "print([l for l in open('/proc/self/status') if l.startswith(('CapEff', 'CapPrm', 'NoNewPrivs'))])"
    )
    outcome = run(program, SMALL).output.decode()
    assert outcome.startswith("-1 -1 -1\n")
    assert outcome.count("0000000000000000") == 2
    assert "NoNewPrivs:\\t1" in outcome


def test_a_child_in_a_session_of_its_own_dies_with_the_program() -> None:
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('done')"
    outcome = run(program, SMALL)
    assert (outcome.end, outcome.output) == ("exit", b"done\n")
    assert outcome.seconds < 100


@pytest.mark.parametrize(
    ("program", "timeout_s", "end"),
    [
        ("while True: pass", 1.0, "timeout"),
        ("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)", 1.0, "timeout"),
        ("import os, time; os.closerange(0, 64); time.sleep(600)", 1.0, "timeout"),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", 500.0, "output"),
    ],
)
def test_limits_of_time_and_output(program: str, timeout_s: float, end: str) -> None:
    outcome = run(program, SandboxConfig(timeout_s=timeout_s))
    assert outcome.end == end
    assert outcome.code is None
    assert len(outcome.output) <= SandboxConfig().output_bytes
    assert outcome.seconds < 100  # no program would have ended then


def test_a_machine_that_lacks_something_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: ("no namespaces",))
    monkeypatch.setattr(sandbox, "_namespaces_error", lambda: "no namespaces")
    with pytest.raises(PreconditionError, match="no namespaces"):
        run("print(1)")
    outcome = run("print(1)", SandboxConfig(timeout_s=120.0, weak=True))
    assert (outcome.code, outcome.output) == (0, b"1\n")


GOOD = "Here it is:\n```python\ndef f(x):\n    return x * x\n```\n"
TESTS = ["assert f(2) == 4", "assert f(3) == 9", "assert f(0) == 1"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (GOOD, 2 / 3),
        ("def f(x): return x * x", 2 / 3),
        ("def f(x):\n    import os\n    os._exit(0)", 0.0),
        ("import sys\nsys.exit(0)", 0.0),
        ("this is no code", 0.0),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", 0.0),
    ],
)
def test_share_of_tests_that_pass(text: str, value: float) -> None:
    assert code(answer(text), TESTS, timeout_s=120.0) == pytest.approx(value)


def test_code_in_the_pool() -> None:
    verifier = find_verifier("code")
    assert verifier.isolation == "sandbox"

    def scored(timeout_s: float, *works: tuple[str, object]) -> list[Score]:
        requests = [RewardRequest(verifier="code", answer=answer(text), ground_truth=truth) for text, truth in works]
        with RewardPool([find_verifier("code", {"timeout_s": timeout_s})], PoolConfig(deadline_s=300.0)) as pool:
            return pool.score(requests)

    good, wrong = scored(120.0, (GOOD, TESTS[:2]), (GOOD, "f(2) == 4"))
    (endless,) = scored(1.0, ("while True: pass", TESTS))
    assert [score.value for score in (good, endless, wrong)] == [1.0, 0.0, None]
    assert wrong.error == "ValueError: the ground truth is not a list of tests"


@pytest.mark.unit
def test_the_last_block_is_the_code() -> None:
    assert code_of("```python\na\n```\nno:\n```py\nb\n```") == "b\n"


@pytest.mark.unit
def test_a_run_with_code_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: ("no namespaces", "no control group"))
    config = load_config(RewardsConfig, '{"verifiers": ["code"]}', source="test").value
    with pytest.raises(PreconditionError, match="no namespaces; no control group") as refused:
        AnswerScorer.of(config, ByteTokenizer())
    assert refused.value.hint == "run where these exist, or accept the risk with `reward.sandbox: weak`"
    AnswerScorer.of(replace(config, verifiers=(VerifierConfig(name="gsm8k"),)), ByteTokenizer())


def test_a_weak_sandbox_scores_on_a_machine_that_gives_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: ("no namespaces",))
    verifier = VerifierConfig(name="code", settings={"timeout_s": 120.0})
    config = RewardsConfig(verifiers=(verifier,), sandbox="weak", deadline=300.0)
    monkeypatch.setattr(ByteTokenizer, "decode", lambda self, ids: GOOD)
    scorer = AnswerScorer.of(config, ByteTokenizer())
    sample = Sample(
        id=SampleId(group=0, member=0), ids=(1,), logp=(0.0,), raw_logp=None, spans=(), finish="stop", seconds={}
    )
    scored = scorer.score([sample], [(1,)], [TESTS[:2]])
    scorer.close()
    assert [each.reward for each in scored] == [1.0]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('{"verifiers": ["gsm8k"], "sandbox": "weak"}', "`sandbox: weak` has no effect"),
        ('{"verifiers": [{"name": "code", "settings": {"weak": true}}]}', "`weak` of `code` is set for all"),
    ],
)
def test_the_strength_of_the_sandbox_is_set_in_one_place(settings: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_config(RewardsConfig, settings, source="test")


_OTHER_USER = """
from windlass.post.rewards.sandbox import SandboxConfig, missing, run
from windlass.core.errors import PreconditionError
import json, os
try:
    run("print(1)")
    strict = "ran"
except PreconditionError as error:
    strict = error.message
outcome = run({program!r}, SandboxConfig(timeout_s=120.0, num_processes=16, weak=True))
print(json.dumps([missing(), strict, outcome.end, outcome.output.decode()]))
"""

_LOOK = """
import os, socket
print(sorted(os.environ), os.path.exists({outside!r}), os.path.exists("/etc/shadow"), os.getpid() < 10)
try:
    socket.create_connection(("127.0.0.1", {port}), 2)
except OSError as error:
    print(error.strerror)
"""


def reachable_python() -> str:
    """An interpreter that another user can start: this one may be in a folder of root's."""
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
        is_new = "import os, sys; sys.exit(sys.version_info < (3, 11) or not os.access(sys.executable, os.X_OK))"
        done = subprocess.run([*words, python, "-c", is_new], cwd="/", capture_output=True, check=False)
        if done.returncode == 0:
            return python
    pytest.skip("no interpreter of Python 3.11 that another user than root can start")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches; those of pytest are below one that is its owner's alone."""
    with tempfile.TemporaryDirectory(prefix="windlass-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_another_user_than_root_has_namespaces_and_is_told_what_is_missing(open_folder: Path) -> None:
    """In a user namespace: without other users, and without a control group unless one is delegated to the user."""
    caches = shutil.ignore_patterns("__pycache__")  # other processes write there
    shutil.copytree(Path(windlass.__file__).parent, open_folder / "code" / "windlass", ignore=caches)
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = _LOOK.format(outside=str(open_folder), port=server.getsockname()[1])
        line = [reachable_python(), "-B", "-c", _OTHER_USER.format(program=program)]
        if os.geteuid() == 0:
            line = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *line]
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(open_folder / "code"), "HOME": str(open_folder)}
        done = subprocess.run(line, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lacks, strict, end, output = json.loads(done.stdout)
    assert "programs run under your own uid" in lacks
    assert strict == f"no sandbox on this machine: {'; '.join(lacks)}"
    assert not any("namespaces" in lack for lack in lacks)
    assert (end, output) == ("exit", "['HOME', 'LANG', 'PATH'] False False True\nNetwork is unreachable\n")


def unified(folder: Path, name: str, *, processes: str = "", enabled: str = "") -> Path:
    """A folder with the files of a group; the kernel's rules are not in it."""
    group = folder / name if name else folder
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.procs").write_text(processes)
    (group / "cgroup.subtree_control").write_text(enabled)
    return group


@pytest.mark.unit
def test_a_group_above_that_gives_controllers_to_children_is_used(tmp_path: Path) -> None:
    unified(tmp_path, "", enabled="cpu pids")
    slice_ = unified(tmp_path, "app.slice", enabled="memory pids")
    own = unified(tmp_path, "app.slice/shell.scope", processes="1\n")
    assert cgroup._unified_parent(own, tmp_path, ["pids", "memory"]) == slice_
    assert (own / "cgroup.procs").read_text() == "1\n"


@pytest.mark.unit
def test_processes_of_a_group_that_is_not_delegated_are_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = unified(tmp_path, "session.scope", processes="1\n")
    monkeypatch.setattr(cgroup, "_is_namespace_root", lambda: False)
    with pytest.raises(PermissionError, match="is not delegated"):
        cgroup._move_into_child(own)
    assert not (own / cgroup._LEAF).exists()
