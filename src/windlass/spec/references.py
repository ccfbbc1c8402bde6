"""References between names: `after`, `from`, and variables that hide a secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from windlass.config.annotations import Diagnostic
from windlass.config.path import join_path
from windlass.core.names import nearest
from windlass.spec.data import DATA_SCHEMES, DataSource
from windlass.spec.env import Env
from windlass.spec.task import Task

__all__ = ["check_after", "check_data", "check_evaluate", "check_variables", "find_cycle"]


def check_after(tasks: Mapping[str, Task]) -> Iterator[Diagnostic]:
    """Check the order of tasks for unknown names and cycles."""
    for name, task in tasks.items():
        for index, other in enumerate(task.after):
            path = join_path(("tasks", name, "after", str(index)))
            if other == name:
                yield (
                    path,
                    f"task `{name}` waits for itself",
                    "dependency-cycle",
                    f"remove `{name}` from its own `after`",
                )
            elif other not in tasks:
                yield (
                    path,
                    f"unknown task `{other}` in tasks.{name}.after",
                    "unknown-task",
                    _suggest(other, tasks, "tasks"),
                )
            elif other in task.after[:index]:
                yield path, f"task `{other}` is listed twice in tasks.{name}.after", "invalid-value", "remove one"
    cycle = find_cycle({name: [other for other in task.after if other != name] for name, task in tasks.items()})
    if cycle:
        path = join_path(("tasks", cycle[0], "after"))
        yield (
            path,
            f"the tasks wait for each other: {' -> '.join(cycle)}",
            "dependency-cycle",
            "remove one `after` of the cycle",
        )


def check_evaluate(tasks: Mapping[str, Task]) -> Iterator[Diagnostic]:
    """Check the tasks that evaluate checkpoints: each of an existing task, and nothing waits for their end."""
    for name, task in tasks.items():
        if task.evaluate is None:
            continue
        other, path = task.evaluate.of, join_path(("tasks", name, "evaluate", "of"))
        if other not in tasks:
            message = f"unknown task `{other}` in tasks.{name}.evaluate.of"
            yield path, message, "unknown-task", _suggest(other, tasks, "tasks")
        elif other == name or tasks[other].evaluate is not None:
            message = f"task `{other}` publishes no checkpoints, since it evaluates those of another task"
            yield path, message, "invalid-value", "name a task that trains"
        if task.after:
            message = f"task `{name}` has both `after` and `evaluate`"
            hint = "remove `after`: the task starts with the first checkpoint"
            yield join_path(("tasks", name, "after")), message, "conflicting-options", hint
        for each, waits in tasks.items():
            if name in waits.after:
                message = f"task `{each}` waits for `{name}`, which evaluates checkpoints"
                hint = f"wait for `{other}` instead: evaluations hold up no other task"
                yield join_path(("tasks", each, "after")), message, "invalid-value", hint


def check_data(data: Mapping[str, DataSource]) -> Iterator[Diagnostic]:
    """Check built data for unknown names and cycles."""
    edges: dict[str, list[str]] = {}
    for name, entry in data.items():
        if not entry.from_ or ":" in entry.from_:
            continue
        path = join_path(("data", name, "from"))
        edges[name] = [entry.from_]
        if entry.from_ not in data:
            schemes = ", ".join(f"{scheme}:" for scheme in DATA_SCHEMES)
            hint = (
                _suggest(entry.from_, data, "data")
                if data.keys() - {name}
                else f"write a source that begins with one of {schemes}"
            )
            yield path, f"unknown data `{entry.from_}` in data.{name}.from", "unknown-name", hint
    cycle = find_cycle(edges)
    if cycle:
        path = join_path(("data", cycle[0], "from"))
        yield (
            path,
            f"the data is built from itself: {' -> '.join(cycle)}",
            "dependency-cycle",
            "build one of them from a source",
        )


def check_variables(tasks: Mapping[str, Task], env: Env) -> Iterator[Diagnostic]:
    """Check that no task variable hides a secret with the same name."""
    secrets = {secret.name for secret in env.secrets}
    for name, task in tasks.items():
        for variable in task.vars:
            if variable in secrets:
                message = f"`{variable}` is both a secret and a variable of task `{name}`"
                hint = f"remove `{variable}` from `vars`; its value comes from the vault"
                yield join_path(("tasks", name, "vars", variable)), message, "conflicting-options", hint


def find_cycle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the first cycle in a graph as `[a, b, a]`, or an empty list; not recursive."""
    done: set[str] = set()
    for start in edges:
        trail: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = []
        _enter(start, edges, done, trail, stack)
        while stack:
            following = next(stack[-1][1], None)
            if following is None:
                done.add(trail.pop())
                stack.pop()
            elif following in trail:
                return [*trail[trail.index(following) :], following]
            else:
                _enter(following, edges, done, trail, stack)
    return []


def _enter(
    node: str,
    edges: Mapping[str, Sequence[str]],
    done: set[str],
    trail: list[str],
    stack: list[tuple[str, Iterator[str]]],
) -> None:
    if node not in done:
        trail.append(node)
        stack.append((node, iter(edges.get(node, ()))))


def _suggest(word: str, names: Mapping[str, object], what: str) -> str:
    close = nearest(word, names)
    return f"did you mean `{close}`?" if close else f"the {what} are: {', '.join(names)}"
