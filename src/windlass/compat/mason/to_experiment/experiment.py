"""Conversion of a mason command line to a windlass experiment for any site.

The tasks run the commands that mason would send to Beaker, except for parts that depend on Beaker's machines: launchers
for several nodes, folders on its storage, variables of its network, clusters. Each unsupported part gets a note or an
error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from windlass.compat.mason.launchers import RequestedNodes
from windlass.compat.mason.options import MasonOptions
from windlass.compat.mason.reading import MasonCommand, MasonLaunch
from windlass.compat.mason.to_experiment.command import Moved, move
from windlass.compat.mason.to_experiment.job_env import Surroundings, surroundings_of
from windlass.compat.mason.to_experiment.unsupported_options import (
    DEFAULTS,
    asked_of_beaker,
    context_there,
    env_there,
    note_on_place,
    shared_memory_there,
    time_there,
)
from windlass.compat.to_experiment.constraints import beaker_compat, retry_policy
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics, ConvertedExperiment
from windlass.compat.to_experiment.relocation import CACHE, command_of
from windlass.core.dataclass import dataclass
from windlass.core.names import as_name
from windlass.spec import DataSource, Env, Experiment, Gpus, Limit, Task

__all__ = ["ConvertedExperiment", "to_experiment"]


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
