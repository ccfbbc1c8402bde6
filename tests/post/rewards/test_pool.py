"""The pool of killable workers, against verifiers and completions that hang, crash, fork and flood."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.core.errors import UsageError, WindlassError
from windlass.core.process import descendants
from windlass.post.rewards.pool import OnError, PoolConfig, RewardPool, RewardRequest
from windlass.post.rewards.protocol import Answer, Score
from windlass.post.rewards.registry import FunctionVerifier, find_verifier

pytestmark = pytest.mark.system

DEADLINE_S = 1.0

VERIFIER = """
import os

def run(answer, truth):
    names = {"os": os, "mark": truth}
    exec(answer.text, names)
    return names["value"]

def once(answer, truth):
    try:
        os.close(os.open(truth, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return 1.0
    os._exit(3)
"""

HOSTILE = {
    "endless loop": "while True: pass",
    "huge output": "while True: os.write(1, b'x' * 65536)",
    # Never without an end: where no control group bounds it, a fork bomb of root's stops the whole machine.
    "fork": "import time\nfor _ in range(200):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)",
    "setsid": "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        import time; time.sleep(600)\n    os._exit(0)\nos._exit(0)",
    "exit": "os._exit(0)",
    "kills itself": "import signal, time; os.kill(os.getpid(), signal.SIGKILL); time.sleep(600)",
    "memory": "value = len(bytearray(10 << 30))",
    "recursion": "def f(): return f()\nf()",
    "closes descriptors": "os.closerange(0, 1024)\nvalue = 1.0",
    "ignores SIGTERM": "import signal, time\nfor n in (15, 2, 1): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)",
    "floods the pipe": "for n in range(3, 64):\n    try: os.write(n, b'{' * 70000)\n    except OSError: pass\nvalue = 1.0",
    "exits": "raise SystemExit(0)",
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own.py").write_text(VERIFIER)
    monkeypatch.setenv("WINDLASS_TEST_POOL", str(tmp_path))
    yield str(tmp_path / "own.py")
    assert survivors(tmp_path) == []


def survivors(mark: Path) -> list[int]:
    """Return the processes that were started with this test's mark in their environment, except this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"WINDLASS_TEST_POOL={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return [pid for pid in found if pid != os.getpid()]


def answer(text: str) -> Answer:
    return Answer(text=text, num_tokens=len(text), is_complete=True)


def requests_of(verifier: FunctionVerifier, texts: list[str], truth: object = None) -> list[RewardRequest]:
    return [RewardRequest(verifier=verifier.name, answer=answer(text), ground_truth=truth) for text in texts]


def check_hostile(own: str, num_hostile: int) -> None:
    """Score hostile completions, an honest one after each: those get their scores, in order, and nothing is left."""
    verifier = find_verifier(f"{own}:run")
    kinds = list(HOSTILE)
    texts = []
    for number in range(num_hostile):
        texts += [HOSTILE[kinds[number % len(kinds)]], f"value = {number} / 1000"]
    with RewardPool([verifier], PoolConfig(deadline_s=DEADLINE_S, num_workers=2)) as pool:
        scores = pool.score(requests_of(verifier, texts))
        counts = pool.errors
    late = [score for score in scores[1::2] if score.kind == "timeout"]  # a busy machine's doing
    assert len(late) <= num_hostile // 20
    for number, score in enumerate(scores[1::2]):
        assert score.value == number / 1000 or score in late
    assert [score.value for score in scores[::2]] == [None] * num_hostile
    assert max(score.seconds for score in scores) < 100  # left alone, the late ones take 600 or for ever
    assert sum(counts.values()) == num_hostile + len(late)
    assert set(counts) == {"timeout", "died", "exception"}


def test_a_hundred_hostile_completions(own: str) -> None:
    check_hostile(own, 100)


@pytest.mark.soak
def test_a_thousand_hostile_completions(own: str) -> None:
    check_hostile(own, 1000)


@pytest.mark.parametrize(
    ("on_error", "value", "num_retries"), [("exclude", None, 0), ("retry", 1.0, 1), ("zero", 0.0, 0)]
)
def test_rules_for_answers_that_could_not_be_scored(
    own: str, tmp_path: Path, on_error: OnError, value: float | None, num_retries: int
) -> None:
    verifier = find_verifier(f"{own}:once")
    with RewardPool([verifier], PoolConfig(on_error=on_error)) as pool:
        (score,) = pool.score(requests_of(verifier, ["x"], str(tmp_path / "mark")))
        assert (score.value, pool.num_retries) == (value, num_retries)
        assert pool.errors == ({} if on_error == "retry" else {"died": 1})
        assert score.error == ("" if on_error == "retry" else "the worker ended with exit code 3")


def test_a_second_failure_is_counted_once_and_not_tried_again(own: str) -> None:
    verifier = find_verifier(f"{own}:run")
    with RewardPool([verifier], PoolConfig(on_error="retry")) as pool:
        (score,) = pool.score(requests_of(verifier, ["1 / 0"]))
        assert score.value is None
        assert score.error == "ZeroDivisionError: division by zero"
        assert (pool.errors, pool.num_retries) == ({"exception": 1}, 1)


def test_without_pid_namespaces_descendants_are_killed_too(own: str) -> None:
    code = Path(own).read_text() + (
        "\nfrom windlass.post.rewards import pool_server\n"
        "pool_server._enter_pid_namespaces = lambda: (pool_server.become_subreaper(), pool_server._Namespaces(None))[1]\n"
    )
    Path(own).write_text(code)
    verifier = find_verifier(f"{own}:run")
    texts = [HOSTILE["setsid"], HOSTILE["kills itself"], "value = 1.0", HOSTILE["ignores SIGTERM"]]
    with RewardPool([verifier], PoolConfig(deadline_s=5.0)) as pool:
        scores = pool.score(requests_of(verifier, texts))
        assert [score.value for score in scores] == [None, None, 1.0, None]
        assert scores[1].error == "the worker ended with signal SIGKILL"
        assert not pool.facts["pid_namespaces"]


def test_the_queue_is_bounded_and_keeps_the_order(own: str) -> None:
    verifier = find_verifier(f"{own}:run")
    slow = requests_of(verifier, ["import time; time.sleep(0.2); value = 0.0", "value = 1.0", "value = 2.0"])
    with RewardPool([verifier], PoolConfig(queue_size=2)) as pool:
        assert pool.submit(slow) == 2
        assert pool.submit(slow[2:]) == 0
        values: list[float | None] = []
        while len(values) < 2:
            values += [score.value for score in pool.poll(10.0)]
        assert values == [0.0, 1.0]
        assert pool.submit(slow[2:]) == 1


def test_inline_verifiers_need_no_process(own: str) -> None:
    with RewardPool([find_verifier("exact")]) as pool:
        before = descendants(os.getpid())
        scores = pool.score(
            [RewardRequest(verifier="exact", answer=answer("a"), ground_truth=truth) for truth in ("a", "b", 3)]
        )
        assert [score.value for score in scores] == [1.0, 0.0, None]
        assert pool.errors == {"exception": 1}
        assert descendants(os.getpid()) == before


def test_a_dead_server_is_replaced(own: str, tmp_path: Path) -> None:
    verifier = find_verifier(f"{own}:run")
    with RewardPool([verifier]) as pool:
        pool.submit(requests_of(verifier, ["import time; time.sleep(600)"]))
        (server,) = [
            pid for pid in survivors(tmp_path) if Path(f"/proc/{pid}/stat").read_text().split()[3] == str(os.getpid())
        ]
        os.kill(server, signal.SIGKILL)
        (score,) = pool.poll(300.0)
        assert (score.value, score.kind) == (None, "pool")
        assert score.error == "the pool's server ended: signal SIGKILL"
        assert pool.score(requests_of(verifier, ["value = 4.0"]))[0].value == 4.0


def test_a_verifier_that_only_this_process_has_is_refused(own: str) -> None:
    verifier = FunctionVerifier(name="lambda.py:f", function=lambda answer, truth: 1.0)
    with RewardPool([verifier]) as pool, pytest.raises(WindlassError, match="cannot start the reward pool"):
        pool.submit(requests_of(verifier, ["x"]))


@pytest.mark.unit
@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"deadline_s": 0.0}, {"on_error": "ignore"}])
def test_settings_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        PoolConfig(**settings)  # type: ignore[arg-type]


def test_a_deadline_is_kept_while_the_caller_is_busy(own: str) -> None:
    verifier = find_verifier(f"{own}:run")
    with RewardPool([verifier], PoolConfig(deadline_s=2.0)) as pool:
        pool.submit(requests_of(verifier, ["while True: pass", "value = 1.0"]))
        time.sleep(10.0)  # a training step
        scores: list[Score] = pool.poll()
        assert [score.value for score in scores] == [None, 1.0]
        assert scores[0].seconds < 8.0  # before the poll


def test_an_endless_mathematical_answer_is_killed_at_the_deadline(own: str) -> None:
    pytest.importorskip("math_verify", reason="needs math-verify: run the tests with `make test`")
    texts = ["$\\boxed{9^{9^{9^9}}}$", "$\\boxed{\\frac{14}{2}}$", "$\\boxed{8}$", "$\\boxed{9^{9^{9^9}}}$"]
    begun = time.monotonic()
    with RewardPool([find_verifier("math")], PoolConfig(num_workers=1, deadline_s=5.0)) as pool:
        scores = pool.score(requests_of(find_verifier("math"), texts, truth="7"))
    assert [score.value for score in scores] == [None, 1.0, 0.0, None]
    assert [score.kind for score in scores] == ["timeout", "", "", "timeout"]
    assert time.monotonic() - begun < 300.0
