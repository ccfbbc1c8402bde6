"""The Python tool in the sandbox, and tasks of verifiers."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.post.environments.test_process import turns
from windlass.core.errors import PreconditionError, UsageError
from windlass.post.environments.process import EpisodePool
from windlass.post.environments.protocol import Reply, Turn
from windlass.post.environments.python_tool import PythonTool
from windlass.post.environments.verifiers import VerifiersTask, rows
from windlass.post.rewards.sandbox import missing

needs_sandbox = pytest.mark.skipif(
    bool(missing()) and os.environ.get("WINDLASS_LAB") != "required", reason="; ".join(missing())
)


def said(turn: Turn) -> str:
    assert len(turn.messages) == 1
    assert turn.messages[0]["role"] == "tool"
    return str(turn.messages[0]["content"])


@needs_sandbox
@pytest.mark.system
@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("so:\n```python\nprint(6 * 7)\n```", "42"),
        ("```py\nx = 1\n```\nor\n```python\nprint('last')\n```", "last"),
        ('<tool_call>{"name": "python", "arguments": {"code": "print(1)"}}</tool_call>', "1"),
        ('<tool_call>{"name": "shell", "arguments": {"code": "print(1)"}}</tool_call>', "is not a call of python"),
        ("<tool_call>[[[</tool_call>", "is not a call of python"),
        ("```python\n1 / 0\n```", "ZeroDivisionError"),
        ("```python\nx = 1\n```", "(no output)"),
        ("```python\nwhile True: pass\n```", "stopped after 2 s"),
        ("```python\nprint('a' * 5000)\n```", "characters cut"),
        ("```python\nwhile True: print('a' * 5000)\n```", "printed too much"),
        ("```python\nopen('/etc/passwd').read()\n```", "FileNotFoundError"),
    ],
)
def test_code_is_run_and_its_output_read(text: str, output: str) -> None:
    tool = PythonTool(timeout_s=2.0 if "stopped after" in output else 120.0)  # a program begins late on a busy machine
    assert tool.reset({}, 0) == Turn()
    assert output in said(tool.step(Reply(text=text)))
    assert tool.step(Reply(text="the answer is 42")) == Turn(is_done=True)


@needs_sandbox
@pytest.mark.system
def test_the_tool_runs_in_the_process_of_an_episode() -> None:
    pool = EpisodePool({"python": {"timeout_s": 120.0}}, deadline_s=240.0, num_workers=2)
    number = pool.begin("python", {}, seed=0)
    assert turns(pool, 1)[number].error == ""
    pool.step(number, Reply(text="```python\nprint(2**10)\n```"))
    assert said(turns(pool, 1)[number]) == "1024"
    pool.close()


def test_a_machine_without_a_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.post.environments.python_tool.missing", lambda: ("no namespaces",))
    with pytest.raises(PreconditionError, match="no sandbox on this machine: no namespaces"):
        PythonTool()
    PythonTool(weak=True)


# ------------------------------------------------------------------------------------------------------------ verifiers


@dataclass
class _Node:
    parent: int | None
    message: Any
    sampled: bool


@dataclass
class _Trace:
    task: Any
    agent: Any
    nodes: list[_Node] = field(default_factory=list)
    is_completed: bool = False
    reward: float = 0.0


class _Task:
    NEEDS_CONTAINER = False
    config = None

    def __init__(self, number: int) -> None:
        self.data = types.SimpleNamespace(prompt_text=f"{number}+1=", system_prompt=None, answer=str(number + 1))

    @classmethod
    def toolsets(cls, config: object) -> list[object]:
        return []

    def hooks(self, kind: str) -> list[Any]:
        return [self.right] if kind == "reward" else []

    async def right(self, trace: _Trace) -> float:
        return float(trace.nodes[-1].message.content == self.data.answer)

    async def score(self, trace: _Trace) -> None:
        assert [node.parent for node in trace.nodes] == [None, 0]
        assert [node.sampled for node in trace.nodes] == [False, True]
        trace.reward = 2.0 * await self.right(trace)


class _Boxed(_Task):
    NEEDS_CONTAINER = True

    @classmethod
    def toolsets(cls, config: object) -> list[object]:
        return [object()]

    def hooks(self, kind: str) -> list[Any]:
        return [lambda trace, runtime: 1.0] if kind == "reward" else []


class Sums:
    """A taskset of five sums."""

    bounded = True
    kind: type[_Task] = _Task

    def __init__(self, config: object) -> None:
        self.config = config

    def __iter__(self) -> Iterator[_Task]:
        return iter([self.kind(number) for number in range(5)])

    @classmethod
    def toolsets(cls, config: object) -> list[object]:
        return []


class Boxes(Sums):
    """Tasks that need what the environment does not give."""

    kind = _Boxed


class Endless(Sums):
    """A taskset without an end."""

    bounded = False


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for verifiers 0.4, whose names and signatures it has as far as they are used."""
    found: Any = types.ModuleType("verifiers.v1")
    for name in ("SystemMessage", "UserMessage", "AssistantMessage", "TraceTask", "AgentInfo", "AgentConfig"):
        setattr(found, name, types.SimpleNamespace)
    found.TasksetConfig = types.SimpleNamespace
    found.Taskset, found.Trace, found.MessageNode = Sums, _Trace, _Node
    loaders: Any = types.ModuleType("verifiers.v1.utils.loaders")
    loaders.taskset_class = lambda name: Sums
    generic: Any = types.ModuleType("verifiers.v1.utils.generic")
    generic.concrete_type = lambda kind, base, origin: None
    modules = {"verifiers": types.ModuleType("verifiers"), "verifiers.utils": types.ModuleType("verifiers.v1.utils")}
    for name, module in {**modules, **{each.__name__: each for each in (found, loaders, generic)}}.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("package")
def test_tasks_of_verifiers_score_answers() -> None:
    name = f"{__name__}:Sums"
    task = VerifiersTask(name)
    assert task.reset({"task": 3}, 0) == Turn()
    assert task.step(Reply(text="4")) == Turn(reward=2.0, is_done=True)
    assert task.step(Reply(text="5")) == Turn(reward=0.0, is_done=True)
    assert "is None; the taskset has 5 tasks" in task.reset({}, 0).error
    assert list(rows(name))[1] == {"prompt": [{"role": "user", "content": "1+1="}], "task": 1}
    assert len(list(rows("sums"))) == 5


@pytest.mark.usefixtures("package")
def test_tasks_that_need_more_than_a_conversation_are_refused() -> None:
    with pytest.raises(UsageError, match="needs a container and tools and a runtime to score in"):
        VerifiersTask(f"{__name__}:Boxes")
    with pytest.raises(UsageError, match="is infinite"):
        VerifiersTask(f"{__name__}:Endless")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(PreconditionError, match="needs the package verifiers"):
        VerifiersTask("sums")
