"""Conversion of a mason command line to a windlass experiment for any site.

The tasks run the commands that mason would send to Beaker, except for parts that depend on Beaker's machines: launchers
for several nodes, folders on its storage, variables of its network, clusters. Each unsupported part gets a note or an
error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from windlass.compat.mason.caching import CACHE_FOLDER_FLAG, build_words
from windlass.compat.mason.launchers import LaunchedLine, RequestedNodes, start_line
from windlass.compat.mason.options import MasonOptions
from windlass.compat.mason.quoting import join_words
from windlass.compat.mason.reading import MasonCommand, MasonLaunch
from windlass.compat.mason.rewriting import without
from windlass.compat.mason.to_experiment.job_env import Surroundings, kept_path_note, surroundings_of, unknown_path
from windlass.compat.mason.to_experiment.unsupported_options import (
    DEFAULTS,
    asked_of_beaker,
    context_there,
    env_there,
    note_on_place,
    shared_memory_there,
    time_there,
)
from windlass.compat.to_experiment.bash_line import BashLine
from windlass.compat.to_experiment.constraints import beaker_compat, retry_policy
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics, ConvertedExperiment
from windlass.compat.to_experiment.relocation import CACHE, CHECKPOINTS, OUT, Relocation, command_of, escaped
from windlass.core.dataclass import dataclass
from windlass.core.errors import SpecError
from windlass.core.names import as_name
from windlass.plan.tokens.shell import is_assignment
from windlass.spec import DataSource, Env, Experiment, Gpus, Limit, Task

__all__ = ["ConvertedExperiment", "Moved", "move", "to_experiment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Command as started at the site; `build` creates its dataset cache, and is empty if it has none."""

    started: LaunchedLine
    build: tuple[str, ...] = ()


def move(
    command: MasonCommand,
    asked: RequestedNodes,
    place: Destination,
    paths: Relocation,
    diagnostics: ConversionDiagnostics,
    *,
    caches: bool,
) -> Moved:
    """Return the command as it runs at the site.

    Args:
        asked: the nodes that it was written for.
        caches: whether a step of prepared data may cache its dataset.
    """
    words = _own_folders(command, place, diagnostics)
    lifted = [word for word in words[:3] if is_assignment(word) and word.startswith("WANDB_")]
    text = join_words(words[len(lifted) :])
    diagnostics.note(*(kept_path_note(path, "the command", place) for path in paths.kept(text)))
    line = BashLine.read(paths.line(text))
    diagnostics.add(unknown_path(path, "the command", place) for path in paths.strangers(line.text))
    build = _build(line, diagnostics) if caches and command.training else ()
    if build:
        line = _with_cache_folder(line)
    try:
        started = start_line(line, asked)
    except SpecError as error:
        diagnostics.add(error.problems)
        return Moved(started=LaunchedLine(line=line), build=build)
    diagnostics.note(*started.notes)
    variables = {name: escaped(value) for name, _, value in (word.partition("=") for word in lifted)}
    return Moved(started=replace(started, vars={**variables, **started.vars}), build=build)


def _own_folders(command: MasonCommand, place: Destination, diagnostics: ConversionDiagnostics) -> list[str]:
    """Return the words, with the run's folders in place of those that mason chose on Beaker's storage."""
    words = list(command.words) if place.kind == "beaker" else _without_bucket(command, diagnostics)
    for flag, mark in (("--output_dir", OUT), ("--checkpoint_state_dir", CHECKPOINTS)):
        for at in (index + 1 for index, word in enumerate(words[:-1]) if word == flag):
            if words[at] not in command.given:
                diagnostics.note(f"`{flag} {words[at]}`, which mason chose, is replaced by {mark.token}")
                words[at] = mark.text
    return words


def _without_bucket(command: MasonCommand, diagnostics: ConversionDiagnostics) -> list[str]:
    """Return the words without mason's additions for Google Cloud: the model copy and the output folder."""
    words, given = list(command.words), command.given
    if "gsutil" in words and "gsutil" not in given:
        source, copy = words[words.index("gsutil") + 4], words[2]
        words = [source if word == copy else word for word in words[words.index("&&", words.index("gsutil")) + 1 :]]
        diagnostics.note(f"{source} is not copied first, unlike on Google Cloud with mason")
    return words if "--gs_bucket_path" in given else without(words, "--gs_bucket_path")


def _build(line: BashLine, diagnostics: ConversionDiagnostics) -> tuple[str, ...]:
    """Return the command that writes the dataset cache to ${out}.

    It is empty, with a note, if the command cannot be read from the line.
    """
    for called in line.commands:
        found = build_words([word.value for word in called.words])
        if found:
            return tuple(word if word == OUT.token else escaped(word) for word in found)
    diagnostics.note(
        "the training caches the dataset itself: its command is inside a shell construct that windlass cannot read"
    )
    return ()


def _with_cache_folder(line: BashLine) -> BashLine:
    """Return the line with the dataset cache taken from the prepared data."""
    name = CACHE_FOLDER_FLAG[2:].replace("_", "-")
    for index, called in enumerate(line.commands):
        if build_words([word.value for word in called.words]):
            line = line.without(called.flags([name], until_script=False))
            return line.insert(line.commands[index].words[-1].end, f"{CACHE_FOLDER_FLAG} {CACHE.text}")
    return line


def to_experiment(
    launch: MasonLaunch, place: Destination, *, env: Env | None = None, caches: bool = True, name: str = ""
) -> ConvertedExperiment:
    """Return the experiment for `windlass mason --on SITE`. Pure: makes no requests and writes nothing.

    Args:
        env: image, lock file or interpreter of the tasks; if None, the site's own, or mason's `--image` at `docker`.
        caches: create the dataset caches of known trainings as steps of prepared data.
        name: name of the experiment; if empty, taken from the command line.

    Raises:
        SpecError: a path of Beaker's storage has no known counterpart at the site, or sizes do not fit its nodes;
            contains all problems.
    """
    caches = caches and not launch.options.no_auto_dataset_cache
    return _Conversion(launch, place, env or Env(), caches, ConversionDiagnostics(code="invalid-value")).run(name)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """Conversion of one launch, which collects notes and problems."""

    launch: MasonLaunch
    place: Destination
    env: Env
    caches: bool
    diagnostics: ConversionDiagnostics

    @property
    def options(self) -> MasonOptions:
        """Return mason's options for the launch."""
        return self.launch.options

    def run(self, name: str) -> ConvertedExperiment:
        """Return the complete experiment."""
        options, diagnostics = self.options, self.diagnostics
        partitions = self.place.partitions(options.cluster)
        around = surroundings_of(self.launch, self.place)
        diagnostics.note(*self.launch.notes, *around.notes)
        note_on_place(options, self.place, partitions, diagnostics)
        diagnostics.add(around.problems)
        tasks, data = self._tasks(around, partitions)
        env = env_there(options, self.env, self.place, around, diagnostics)
        context, time = context_there(options, self.place, diagnostics), time_there(options, diagnostics)
        diagnostics.check()
        return diagnostics.converted(
            Experiment(
                name=name or _name(self.launch),
                why=options.description if options.description != DEFAULTS.description else "",
                env=env,
                data=data,
                tasks=tasks,
                where=self.place.where(partitions),
                context=context,
                limit=Limit(time=time),
                retry=retry_policy(options.max_retries, is_resumed=not options.no_auto_resume),
            )
        )

    def _tasks(
        self, around: Surroundings, partitions: tuple[str, ...]
    ) -> tuple[dict[str, Task], dict[str, DataSource]]:
        """Return a task for each command, and the dataset caches of the tasks."""
        options = self.options
        asked = RequestedNodes(
            nodes=options.num_nodes,
            gpus=options.gpus,
            there=self.place.gpus_per_node(partitions),
            splits_learners=self.launch.own.is_split,
        )
        tasks: dict[str, Task] = {}
        data: dict[str, DataSource] = {}
        names = self._names()
        for name, command in zip(names, self.launch.commands, strict=True):
            moved = move(command, asked, self.place, around.paths, self.diagnostics, caches=self.caches)
            key = "cache" if len(names) == 1 else f"cache-{name}"
            if moved.build:
                data[key] = DataSource(build=moved.build)
            cache = "${data." + key + "}" if moved.build else ""
            tasks[name] = self._task(moved, asked, command, around, partitions, cache)
        return tasks, data

    def _names(self) -> list[str]:
        if len(self.launch.commands) == 1:
            return ["main"]
        start = as_name(self.options.task_name.replace(".", "-")) or "task"
        return [f"{start}-{index}" for index in range(len(self.launch.commands))]

    def _task(
        self,
        moved: Moved,
        asked: RequestedNodes,
        command: MasonCommand,
        around: Surroundings,
        partitions: tuple[str, ...],
        cache: str,
    ) -> Task:
        started = moved.started
        variables = {**started.vars, **around.task_variables(command, is_one=len(self.launch.commands) == 1)}
        run = command_of(started.line)
        if cache:
            run = tuple(cache if word == CACHE.token else word for word in run)
            variables |= {CACHE.variable: cache} if cache not in run else {}
        total = asked.nodes * asked.gpus
        name = "main" if len(self.launch.commands) == 1 else "TASK"
        if asked.is_reshaped:
            self.diagnostics.note(
                f"{asked.nodes} x {asked.gpus} GPUs become {total} GPUs on nodes of {asked.there} (total_gpus)"
            )
        return Task(
            run=run,
            nodes=None if asked.is_reshaped or asked.nodes == 1 else asked.nodes,
            gpus=Gpus(count=asked.gpus) if asked.gpus and not asked.is_reshaped else None,
            total_gpus=total if asked.is_reshaped else None,
            shared_memory=shared_memory_there(self.options, self.place, self.diagnostics),
            cluster=started.cluster,  # type: ignore[arg-type]  # one of the names that `Task` knows
            vars=variables,
            compat=beaker_compat(
                (started.line.text, *variables.values(), *around.variables.values()),
                self.place,
                self.diagnostics,
                finds_others=asked.nodes > 1 and not started.is_placed,
                how=f"--set tasks.{name}.compat=beaker",
            ),
            beaker=asked_of_beaker(self.launch, self.place, partitions),
        )


def _name(launch: MasonLaunch) -> str:
    """Return a name for the experiment, from `--task_name`, the training's `--exp_name`, or its script."""
    if launch.options.task_name != DEFAULTS.task_name and as_name(launch.options.task_name):
        return as_name(launch.options.task_name)
    words = launch.commands[0].given
    named = next((as_name(value) for flag, value in _pairs(words) if flag in ("--exp_name", "--experiment_name")), "")
    if named:
        return named
    scripts = re.findall(r"[^\s'\"]+\.py\b", " ".join(words)) or re.findall(r"[^\s'\"]+\.sh\b", " ".join(words))
    found = (as_name(script.rpartition("/")[2].rpartition(".")[0]) for script in scripts)
    return next((each for each in found if each), "mason")


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(words, [*words[1:], ""], strict=True))
