"""Conversion of a gantry launch to a windlass experiment.

Settings that are not supported get a note or are rejected.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from windlass.compat.gantry.durations import to_seconds
from windlass.compat.gantry.request import GantryRequest
from windlass.compat.gantry.settings import RecipeSettings
from windlass.compat.gantry.to_experiment.environment import env_there
from windlass.compat.gantry.to_experiment.inputs import paths_there
from windlass.compat.gantry.to_experiment.unsupported_options import check_at_beaker, note_on_beaker, note_on_job
from windlass.compat.to_experiment.constraints import beaker_compat, priority_at, retry_policy, size_bytes_of
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics, ConvertedExperiment
from windlass.compat.to_experiment.relocation import OUT, Relocation
from windlass.core.dataclass import dataclass
from windlass.core.names import as_name
from windlass.spec import Context, Experiment, Gpus, Limit, Task

__all__ = ["ConvertedExperiment", "to_experiment"]

_SETUP = 'set -e\n{steps}\nexec "$@"'


def to_experiment(request: GantryRequest, place: Destination, *, folder: Path) -> ConvertedExperiment:
    """Return the experiment for `windlass gantry run --on SITE`.

    Reads only pyproject.toml in `folder`.

    Raises:
        SpecError: missing inputs, or an environment that windlass cannot create; has all problems.
    """
    return _Conversion(request, place, folder, ConversionDiagnostics(code="unsupported-setting")).run()


@dataclass(frozen=True, slots=True)
class _Conversion:
    """Conversion of one launch, which collects notes and problems."""

    request: GantryRequest
    place: Destination
    folder: Path
    diagnostics: ConversionDiagnostics

    @property
    def recipe(self) -> RecipeSettings:
        """Return the recipe from the request."""
        return self.request.recipe

    def run(self) -> ConvertedExperiment:
        """Return the complete experiment."""
        recipe, diagnostics = self.recipe, self.diagnostics
        if recipe.remote or (recipe.ref and not self._is_here()):
            message = "`--on` runs the commit that is checked out on this machine"
            diagnostics.refuse(message, "git clone, git switch --detach COMMIT")
        paths = paths_there(self.request, self.place, self.folder, diagnostics)
        partitions = self.place.partitions(tuple(recipe.clusters or ()))
        if self.place.kind == "beaker":
            check_at_beaker(recipe, self.place, diagnostics, has_partition=bool(partitions))
        else:
            note_on_beaker(recipe, self.place, diagnostics, has_partitions=bool(partitions))
        note_on_job(recipe, diagnostics)
        env = env_there(self.request, self.place, paths, self.folder, diagnostics)
        task = self._task(paths)
        diagnostics.check()
        return diagnostics.converted(
            Experiment(
                name=as_name(recipe.name or "") or as_name(self.request.name) or "gantry",
                why=recipe.description or "",
                env=env,
                tasks={_task_name(recipe.task_name): task},
                where=self.place.where(partitions),
                context=self._context(),
                limit=Limit(time=_seconds("--task-timeout", recipe.task_timeout)),
                retry=retry_policy(recipe.retries or 0, is_resumed=recipe.auto_resume is not False),
                beaker=self._groups(),
            )
        )

    def _is_here(self) -> bool:
        from windlass.compat.gantry.checkout import checkout_of  # lazy: only with --ref

        return checkout_of(self.folder, ref=None, branch=None, is_online=False).ref == self.request.checkout.ref

    def _task(self, paths: Relocation) -> Task:
        recipe = self.recipe
        start = _seconds("--synchronized-start-timeout", recipe.synchronized_start_timeout)
        run, given = self._command(paths), dict(self.request.inputs.variables)
        compat = beaker_compat(
            (*run, *given.values()),
            self.place,
            self.diagnostics,
            finds_others=bool(recipe.num_replicas) and not recipe.torchrun,
            how="`compat: beaker` in the file of `--emit spec`",
        )
        variables = {} if compat or "RESULTS_DIR" in given else {"RESULTS_DIR": OUT.token}
        return Task(
            run=run,
            nodes=recipe.num_replicas,
            gpus=Gpus(count=recipe.gpus) if recipe.gpus else None,
            cpus=recipe.cpus or None,
            memory=size_bytes_of("--memory", recipe.memory, self.diagnostics),
            shared_memory=self._shared_memory(),
            cluster="torchrun" if recipe.torchrun else "none",
            ready_timeout=start or 600.0,
            vars=variables,
            compat=compat,
            beaker=self._asked_of_beaker(),
        )

    def _command(self, paths: Relocation) -> tuple[str, ...]:
        """Return the command, preceded by the setup steps of gantry's job."""
        recipe = self.recipe
        words = tuple(paths.value(word) for word in recipe.args)
        if recipe.torchrun:
            words = ("torchrun", *(() if words[0].endswith(".py") else ("--no-python",)), *words)
        if recipe.exec_method == "bash":
            words = ("bash", "-c", " ".join(words))
        steps = [step for step in (recipe.pre_setup, recipe.install, recipe.post_setup) if step]
        if steps and recipe.torchrun:
            message = "setup steps with `--torchrun` would run in every process"
            self.diagnostics.refuse(message, "call them from the command itself, or move them to the environment")
        elif steps:
            lines = "\n".join(paths.value(_step(step)) for step in steps)
            return ("bash", "-c", _SETUP.format(steps=lines), "gantry", *words)
        return words

    def _asked_of_beaker(self) -> dict[str, Any]:
        """Return the keys of a Beaker task that have no equivalent in an experiment; empty at other sites."""
        if self.place.kind != "beaker":
            return {}
        task = self.request.spec["tasks"][0]
        mounts = [each for each in task.get("datasets", ()) if each["mountPath"] not in self.place.present]
        context = {key: value for key, value in task["context"].items() if key == "minRuntime"}
        if self.recipe.priority == "immediate":
            context["priority"] = "immediate"
        constraints = task.get("constraints", {})
        if self.place.partitions(tuple(self.recipe.clusters or ())):
            constraints = {}
        given = {"datasets": mounts, "context": context, "constraints": constraints}
        return {key: value for key, value in given.items() if value}

    def _groups(self) -> dict[str, Any]:
        """Return the groups if there are several; a single group is the experiment's `context.group`."""
        names = list(self.recipe.group_names or ())
        return {"groups": names} if self.place.kind == "beaker" and len(names) > 1 else {}

    def _shared_memory(self) -> int | None:
        text = self.recipe.shared_memory
        if text and self.place.kind not in ("docker", "beaker"):
            self.diagnostics.note(f"--shared-memory {text}: the nodes of the site set the size of shared memory")
            return None
        return size_bytes_of("--shared-memory", text, self.diagnostics)

    def _context(self) -> Context:
        recipe = self.recipe
        return Context(
            priority=priority_at(recipe.priority or "normal", self.place, self.diagnostics),
            preemptible=bool(recipe.preemptible or recipe.auto_resume),
            group=next(iter(recipe.group_names or ()), ""),
            account=(recipe.budget or "") if self.place.kind == "beaker" else "",
        )


def _seconds(option: str, text: str | None) -> float | None:
    return max(1.0, to_seconds(option, text)) if text else None


def _step(step: str) -> str:
    return f'if [ -f {step} ]; then . "./{step}"; else {step}; fi' if re.fullmatch(r"[\w./-]+\.sh", step) else step


def _task_name(text: str) -> str:
    return as_name(text.replace(".", "-")) or "main"
