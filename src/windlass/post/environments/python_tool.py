"""Environment that runs the model's Python code in the sandbox, and answers with its output.

The code is the last fenced block of a reply, or the argument `code` of a call `<tool_call>{"name": "python", "arguments":
{"code": "..."}}</tool_call>`. A reply without code ends the episode. Each program starts anew: nothing is kept between calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.core.json_text import decode_json
from windlass.post.environments.protocol import Reply, Turn
from windlass.post.rewards.sandbox import ProgramResult, SandboxConfig, missing, run

__all__ = ["PythonTool"]

_BLOCK = re.compile(r"```(?:python|py)[ \t]*\n(.*?)```", re.DOTALL)
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class PythonTool:
    """A Python interpreter for the model.

    Args:
        timeout_s: wall time of a program; less than the deadline of a turn.
        memory_bytes: memory of a program.
        output_chars: longest output that the model reads; the middle of a longer one is cut out.
        role: role of the message with the output.
        weak: whether to run on a machine that lacks parts of the sandbox.

    Raises:
        PreconditionError: this machine cannot give what the sandbox needs, and `weak` is not set.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        memory_bytes: int = 512 << 20,
        output_chars: int = 2000,
        role: str = "tool",
        weak: bool = False,
    ) -> None:
        self._config = SandboxConfig(timeout_s=timeout_s, memory_bytes=memory_bytes, weak=weak)
        self._output_chars, self._role = output_chars, role
        if not weak and (lacks := missing()):
            hint = "run where these exist, or accept the risk with `settings: {weak: true}`"
            raise PreconditionError(f"no sandbox on this machine: {'; '.join(lacks)}", hint=hint, code="precondition")

    def reset(self, row: Mapping[str, Any], seed: int) -> Turn:
        """Begin an episode; nothing is kept of it."""
        del row, seed
        return Turn()

    def step(self, reply: Reply) -> Turn:
        """Run the code of a reply; the episode ends with a reply that has none."""
        code = _code(reply.text)
        if code is None:
            return Turn(is_done=True)
        try:
            text = code if isinstance(code, ValueError) else self._text(run(code, self._config))
        except PreconditionError as error:
            return Turn(error=error.message, is_done=True)
        return Turn(messages=[{"role": self._role, "content": str(text)}])

    def close(self) -> None:
        """Do nothing: no program outlives its turn."""

    def _text(self, result: ProgramResult) -> str:
        text = (result.output + result.errors).decode(errors="replace").strip()
        if len(text) > self._output_chars:
            half = self._output_chars // 2
            text = f"{text[:half]}\n... {len(text) - 2 * half} characters cut ...\n{text[-half:]}"
        ends = {
            "timeout": f"stopped after {self._config.timeout_s:g} s",
            "output": "stopped: it printed too much",
            "died": "stopped: it exceeded a limit, such as that of memory",
        }
        return "\n".join(part for part in (text, ends.get(result.end, "")) if part) or "(no output)"


def _code(text: str) -> str | ValueError | None:
    """Return the code of a reply; None if it has none, a ValueError that the model reads if its call is not one."""
    calls = _CALL.findall(text)
    if not calls:
        blocks = _BLOCK.findall(text)
        return blocks[-1] if blocks else None
    try:
        call = decode_json(calls[-1])
        code = call["arguments"]["code"]
        if call["name"] != "python" or not isinstance(code, str):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        return ValueError('this is not a call of python with the argument "code"')
    return code
