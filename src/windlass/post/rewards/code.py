"""Verifier that runs the code of an answer against the tests of its ground truth, in the sandbox."""

from __future__ import annotations

import json
import re
import secrets

from windlass.post.rewards.protocol import Answer
from windlass.post.rewards.sandbox import SandboxConfig, run

__all__ = ["code", "code_of"]

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)

# A test runs in a process of its own. The mark proves that it reached its end: `os._exit(0)` does not pass. It is no
# secret from code that searches the memory of its own process, which no sandbox can hide it from.
_PROGRAM = """
import os, json
def _run():
    code, tests, mark = json.loads({settings!r})
    for number, test in enumerate(tests):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            empty = os.open(os.devnull, os.O_RDWR)
            os.dup2(empty, 1)
            os.dup2(empty, 2)
            try:
                names = {{"__name__": "__main__"}}
                exec(compile(code, "answer.py", "exec"), names)
                exec(compile(test, "test.py", "exec"), names)
                os.write(writer, mark.encode())
            finally:
                os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        os.set_blocking(reader, False)
        try:
            passed = os.read(reader, 64) == mark.encode()
        except BlockingIOError:
            passed = False
        os.close(reader)
        print(mark, number, int(passed), flush=True)
_run()
"""


def code(
    answer: Answer, ground_truth: object, *, timeout_s: float = 5.0, memory_bytes: int = 512 << 20, weak: bool = False
) -> float:
    """Return the share of tests that pass; tests after the one that exceeds a limit count as failed.

    The ground truth is a list of Python statements, such as `assert f(2) == 4`. The code is the answer's last fenced
    block, or the whole answer without one. The code can manipulate what its own tests see, for example by an object
    that equals everything; it cannot reach anything outside the sandbox.

    Args:
        answer: the answer.
        ground_truth: its tests.
        timeout_s: wall time of all tests of an answer; less than the pool's deadline.
        memory_bytes: memory of the program.
        weak: whether to run on a machine that lacks parts of the sandbox.
    """
    if (
        not isinstance(ground_truth, list)
        or not ground_truth
        or not all(isinstance(test, str) for test in ground_truth)
    ):
        raise ValueError("the ground truth is not a list of tests")
    mark = secrets.token_hex(16)
    settings = json.dumps([code_of(answer.text), ground_truth, mark])
    config = SandboxConfig(timeout_s=timeout_s, memory_bytes=memory_bytes, weak=weak)
    outcome = run(_PROGRAM.format(settings=settings), config)
    lines = set(outcome.output.decode(errors="replace").splitlines())
    return sum(f"{mark} {number} 1" in lines for number in range(len(ground_truth))) / len(ground_truth)


def code_of(text: str) -> str:
    """Return the last fenced block of an answer, or the whole text if there is none."""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else text
