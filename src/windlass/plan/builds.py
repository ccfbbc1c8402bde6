"""Prepared data in a plan: each build's key, and the task `data.NAME` that runs it.

After planning, such a task is like any other task. It is not part of the recorded experiment or of the plan's hash,
which contain the key instead, so that the hash does not depend on whether the build exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from windlass.core.dataclass import dataclass
from windlass.core.names import nearest
from windlass.core.phrases import size
from windlass.pin.builds import build_key
from windlass.pin.data.pinned import BuildPin
from windlass.plan.derived_builds import adapted_command
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.pins import BUILDS, Pins, built_name
from windlass.plan.tokens.resolve import LATE_TOKENS, Scope, resolve_text
from windlass.plan.tokens.tokens import IN_JOB_TOKENS, Token, flat_params, parse_tokens
from windlass.spec import Command, DataSource, Experiment, Task
from windlass.spec.references import find_cycle

__all__ = [
    "build_scope",
    "describe_build",
    "expected_inputs",
    "needed_builds",
    "pin_builds",
    "source_name",
    "variables_of_build",
    "with_builds",
    "with_commands",
    "without_builds",
]

_KEPT = ("out", "code")
_VARYING = {*LATE_TOKENS, *IN_JOB_TOKENS} - set(_KEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """Declared build: its unresolved command, and the data that it reads."""

    command: Command
    source: DataSource
    inputs: tuple[str, ...]
    variables: Mapping[str, str]


def source_name(name: str, source: DataSource) -> str:
    """Return the name under which the data in `from` is pinned: an entry, or `NAME.from` for a source; may be empty."""
    return f"{name}.from" if ":" in source.from_ else source.from_


def pin_builds(
    experiment: Experiment, pins: Pins, code: Mapping[str, str], diagnostics: Diagnostics
) -> dict[str, BuildPin]:
    """Return the pins of all builds that tasks need, in the order of building. Pure.

    Args:
        code: digest of the code that each build runs.
    """
    builds = _declared(experiment, diagnostics)
    found: dict[str, BuildPin] = {}
    for name in _in_order(builds, diagnostics):
        build = builds[name]
        if any(each in builds and each not in found for each in build.inputs):
            continue  # already refused
        scope = build_scope(name, experiment)
        resolved = _resolved(build.command, scope, diagnostics, _command_path(name, build.source))
        variables = {
            key: resolve_text(text, scope, diagnostics, f"env.vars.{key}") for key, text in build.variables.items()
        }
        identity = pins.identity()
        environment = {key: value for key, value in identity.items() if key in ("environment", "image")}
        key = build_key(
            resolved,
            variables=variables,
            inputs={each: found[each].key if each in found else pins.data[each].digest for each in build.inputs},
            code=code.get(name, ""),
            subdir=pins.code.subdir,
            environment=environment,
        )
        found[name] = BuildPin(name=name, key=key, code=code.get(name, ""))
    needed = needed_builds(experiment)
    return {name: pin for name, pin in found.items() if name in needed}


def needed_builds(experiment: Experiment) -> set[str]:
    """Return the names of the builds that tasks need, directly or through other builds."""
    builds = _declared(experiment, Diagnostics())
    todo = [name for task in experiment.tasks.values() for name in _named_by_task(task, experiment)]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name in builds and name not in found:
            found.add(name)
            todo += builds[name].inputs
    return found


def with_builds(experiment: Experiment, builds: Mapping[str, BuildPin]) -> Experiment:
    """Add a task for each missing build that a task or another build needs."""
    if not builds:
        return experiment
    declared = _declared(experiment, Diagnostics())
    missing = {name for name, pin in builds.items() if not pin.is_hit}
    tasks: dict[str, Task] = {}
    for name, task in experiment.tasks.items():
        wanted = [f"{BUILDS}{each}" for each in _named_by_task(task, experiment) if each in missing]
        tasks[name] = replace(task, after=(*task.after, *wanted)) if wanted else task
    wanted_builds = _waited_for(tasks, declared, missing)
    made = {
        f"{BUILDS}{name}": Task(
            run=declared[name].command,
            after=tuple(f"{BUILDS}{each}" for each in declared[name].inputs if each in missing),
            cpus=declared[name].source.cpus,
            memory=declared[name].source.memory,
        )
        for name in builds
        if name in wanted_builds
    }
    return replace(experiment, tasks={**made, **tasks})


def without_builds(experiment: Experiment) -> Experiment:
    """Return the experiment without the tasks that `with_builds` added."""
    if not any(map(built_name, experiment.tasks)):
        return experiment
    tasks = {
        name: replace(task, after=tuple(each for each in task.after if not built_name(each)))
        for name, task in experiment.tasks.items()
        if not built_name(name)
    }
    return replace(experiment, tasks=tasks)


def with_commands(experiment: Experiment) -> dict[str, DataSource]:
    """Return the data sources with adapters replaced by the commands they stand for. Raises SpecError."""
    diagnostics = Diagnostics()
    builds = _declared(experiment, diagnostics)
    diagnostics.raise_all()
    return {
        name: replace(source, build=builds[name].command, adapter="none", task="", drop=())
        if source.build is None and source.is_built
        else source
        for name, source in experiment.data.items()
    }


def build_scope(name: str, experiment: Experiment) -> Scope:
    """Return the token scope for a build's command, with only the values that are equal in every run."""
    build = _declared(experiment, Diagnostics())[name]
    values = {**flat_params(experiment.params), "name": experiment.name}
    later = {*_KEPT, *(f"data.{each}" for each in build.inputs if not each.endswith(".from"))}
    later |= {"from"} if build.source.from_ else set()
    later |= {token for token in _tokens(_texts_of(build.command)) if _is_refused(token)}
    return Scope(task=f"{BUILDS}{name}", values=values, later=frozenset(later))


def variables_of_build(name: str, experiment: Experiment) -> Mapping[str, str]:
    """Return the variables for a build: only those that are equal in every run."""
    return _declared(experiment, Diagnostics())[name].variables


def expected_inputs(name: str, experiment: Experiment, pins: Pins) -> int:
    """Return the total size of a build's inputs in bytes, as far as it is known; 0 if unknown."""
    inputs = _declared(experiment, Diagnostics())[name].inputs
    sizes = [pins.data[each].size_bytes if each in pins.data else pins.builds[each].size_bytes for each in inputs]
    return sum(sizes)


def describe_build(pin: BuildPin) -> str:
    """Describe a build, for the plan page."""
    files = "1 file" if pin.num_files == 1 else f"{pin.num_files} files"
    if pin.is_hit:
        return f"key {pin.key[:12]}  hit: sha256:{pin.digest[:12]}  {size(pin.size_bytes)}, {files}"
    text = f"key {pin.key[:12]}  miss: task {BUILDS}{pin.name} builds it first"
    if pin.expected == "last build":
        return f"{text} (its last build had {size(pin.size_bytes)})"
    return f"{text} (its inputs have {size(pin.size_bytes)})" if pin.expected else text


def _declared(experiment: Experiment, diagnostics: Diagnostics) -> dict[str, _Build]:
    """Return all declared builds whose command is known, by name."""
    experiment = without_builds(experiment)
    found: dict[str, _Build] = {}
    for name, source in experiment.data.items():
        if not source.is_built:
            continue
        command = source.build if source.build is not None else adapted_command(name, source, experiment, diagnostics)
        if command is None:
            continue
        origin = source_name(name, source)
        named = _data_named(_texts_of(command))
        for each in named:
            if each not in experiment.data:
                path = _command_path(name, source)
                close = nearest(each, experiment.data)
                hint = f"did you mean `${{data.{close}}}`?" if close else f"declare it: `data: {{{each}: file:PATH}}`"
                diagnostics.add(path, f"unknown data `${{data.{each}}}` in {path}", "unknown-name", hint)
        inputs = tuple(
            dict.fromkeys([*([origin] if origin else []), *(each for each in named if each in experiment.data)])
        )
        _refuse_varying(command, _command_path(name, source), diagnostics)
        allowed = {*_KEPT, *(f"data.{each}" for each in inputs)}
        variables = {key: text for key, text in experiment.env.vars.items() if _is_steady(text, allowed)}
        found[name] = _Build(command=command, source=source, inputs=inputs, variables=variables)
    return found


def _command_path(name: str, source: DataSource) -> str:
    return f"data.{name}.{'build' if source.adapter == 'none' else 'adapter'}"


def _refuse_varying(command: Command, path: str, diagnostics: Diagnostics) -> None:
    for token in _tokens(_texts_of(command)):
        if token in _VARYING or token.startswith("tasks."):  # names of data are checked elsewhere
            message = f"`${{{token}}}` in {path} differs from run to run, but the build is shared by many runs"
            hint = "remove it; a build writes to ${out} and reads its inputs, ${code} and ${params.NAME}"
            diagnostics.add(path, message, "unknown-token", hint)


def _is_refused(token: str) -> bool:
    """Return whether `_declared` already refuses this token, with a better message than the scope's."""
    return token in _VARYING or token.startswith(("tasks.", "data."))


def _in_order(builds: Mapping[str, _Build], diagnostics: Diagnostics) -> list[str]:
    """Return the builds' names in the order of building; refuse cycles and omit the names in them."""
    edges = {name: [each for each in build.inputs if each in builds] for name, build in builds.items()}
    cycle = find_cycle(edges)
    if cycle:
        path = _command_path(cycle[0], builds[cycle[0]].source)
        message = f"the data is built from itself: {' -> '.join(cycle)}"
        diagnostics.add(path, message, "dependency-cycle", "build one of them from a source")
        return []
    order: list[str] = []
    todo = list(builds)[::-1]
    while todo:
        name = todo[-1]
        waiting = [each for each in edges[name] if each not in order]
        todo += waiting
        if not waiting and todo.pop() not in order:
            order.append(name)
    return order


def _waited_for(tasks: Mapping[str, Task], declared: Mapping[str, _Build], missing: Iterable[str]) -> set[str]:
    todo = [built_name(each) for task in tasks.values() for each in task.after if built_name(each)]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [each for each in declared[name].inputs if each in missing]
    return found


def _named_by_task(task: Task, experiment: Experiment) -> list[str]:
    texts = [*_texts_of(task.run), *task.vars.values(), *experiment.env.vars.values()]
    return [name for name in _data_named(texts) if name in experiment.data]


def _texts_of(command: Command) -> tuple[str, ...]:
    return (command,) if isinstance(command, str) else command


def _data_named(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.removeprefix("data.") for name in _tokens(texts) if name.startswith("data.")))


def _tokens(texts: Iterable[str]) -> Iterator[str]:
    """Yield the names of all tokens in strings; skip strings that are refused elsewhere."""
    for text in texts:
        try:
            pieces = parse_tokens(text)
        except ValueError:
            continue
        yield from (piece.name for piece in pieces if isinstance(piece, Token))


def _is_steady(text: str, allowed: Iterable[str]) -> bool:
    """Return whether a variable has the same value in every run."""
    names = [
        name
        for name in _tokens([text])
        if name in {*LATE_TOKENS, *IN_JOB_TOKENS} or name.startswith(("data.", "tasks."))
    ]
    return all(name in allowed for name in names)


def _resolved(command: Command, scope: Scope, diagnostics: Diagnostics, path: str) -> Command:
    if isinstance(command, str):
        return resolve_text(command, scope, diagnostics, path, is_shell=True)
    return tuple(resolve_text(item, scope, diagnostics, path) for item in command)
