"""A site shell with prepared results, which records the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from windlass.backends.site_shell import RawShellResult, ShellResult

__all__ = ["FakeShell", "listing"]

Reply = ShellResult | Exception | Callable[[Sequence[str]], ShellResult]


class FakeShell:
    """Answers by the program's name; a program without an answer fails the test.

    A shell, which is asked for signs of life, finds none unless the test says otherwise.
    """

    def __init__(self, name: str, **replies: Reply) -> None:
        self._name = name
        self.replies: dict[str, Reply] = {"sh": ShellResult(0, "100 now\n", ""), **replies}
        self.asked: list[tuple[str, ...]] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_local(self) -> bool:
        return False

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> ShellResult:
        self.asked.append(tuple(argv))
        reply = self.replies[Path(argv[0]).name]
        if isinstance(reply, Exception):
            raise reply
        return reply(argv) if callable(reply) else reply

    def run_bytes(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> RawShellResult:
        answer = self.run(argv, stdin=stdin, timeout_s=timeout_s, env=env)
        return RawShellResult(answer.code, answer.out.encode(), answer.err)

    def count(self, program: str) -> int:
        """How often a program was run."""
        return sum(Path(argv[0]).name == program for argv in self.asked)


def listing(*rows: Sequence[str]) -> ShellResult:
    """What squeue prints for rows of (id, state, reason, start, end, nodes, name, comment)."""
    return ShellResult(0, "".join("\x1e" + "\x1f".join(row) + "\n" for row in rows), "")
