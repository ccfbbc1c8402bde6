"""Conversion of a gantry launch to a windlass experiment: inputs, environment, variables, secrets and image.

Settings that are not supported get a note or are rejected.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from windlass.compat.gantry.durations import to_seconds
from windlass.compat.gantry.environment import CONDA_FILES, PROJECT_FILES, manager_of
from windlass.compat.gantry.mounts import GantryMount
from windlass.compat.gantry.request import GantryRequest
from windlass.compat.gantry.settings import RecipeSettings
from windlass.compat.gantry.to_experiment.unsupported_options import check_at_beaker, note_on_beaker, note_on_job
from windlass.compat.to_experiment.constraints import beaker_compat, priority_at, retry_policy, size_bytes_of
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics, ConvertedExperiment
from windlass.compat.to_experiment.relocation import OUT, Relocation, escaped
from windlass.config.foreign_text import load_toml
from windlass.core.dataclass import dataclass
from windlass.core.names import as_name
from windlass.spec import Context, Env, Experiment, Gpus, Image, Limit, SecretUse, Task

__all__ = ["ConvertedExperiment", "env_there", "paths_there", "to_experiment"]

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


def paths_there(
    request: GantryRequest, place: Destination, folder: Path, diagnostics: ConversionDiagnostics
) -> Relocation:
    """Return the mapping of the job's paths to the site; inputs unavailable at the site are rejected.

    Args:
        folder: the local checkout, which contains the uploads.
    """
    inputs = request.inputs
    paths = {request.recipe.results: OUT.text, **place.paths}
    if place.kind == "beaker":  # its jobs have the mounts
        for mount in inputs.uploads:
            hint = "put the files on storage that the site mounts, or commit them"
            diagnostics.refuse(f"`--upload {mount.source}:{mount.path}`: `--on` uploads nothing", hint)
        return Relocation(paths=paths, present=place.present)
    known = _Known(paths, place.present, request.recipe.results)
    for mount in inputs.mounts:
        if mount not in known:
            paths[mount.path] = mount.source
            diagnostics.note(f"--mount {mount.source}:{mount.path}: the task uses {mount.source} itself")
    for mount in inputs.uploads:
        if place.kind == "local":
            paths[mount.path] = str((folder / mount.source).resolve())
        elif mount not in known:
            _refuse("--upload", mount, diagnostics)
    for option, mounts in (("--dataset", inputs.datasets), ("--weka", inputs.weka)):
        for mount in mounts:
            if mount not in known:
                _refuse(option, mount, diagnostics)
    for mount in inputs.secrets:
        hint = f"`--env-secret NAME={mount.source}`, and read the variable"
        diagnostics.refuse(
            f"`--dataset-secret {mount.source}:{mount.path}`: at this site secrets are only variables, not files", hint
        )
    return Relocation(paths=paths, present=place.present)


class _Known:
    """Set of mounts whose folder at the site is known, from the profile or another mount, or because it is the same."""

    def __init__(self, paths: dict[str, str], present: tuple[str, ...], results: str) -> None:
        self._paths, self._present, self._results = paths, present, results

    def __contains__(self, mount: GantryMount) -> bool:
        known = (*(path for path in self._paths if path != self._results), *self._present)
        return any(mount.path == each or mount.path.startswith(each.rstrip("/") + "/") for each in known)


def _refuse(option: str, mount: GantryMount, diagnostics: ConversionDiagnostics) -> None:
    hint = f"add its path to the site's profile: `brought: {{paths: {{{mount.path}: /FOLDER}}}}`"
    diagnostics.refuse(
        f"`{option} {mount.source}:{mount.path}` is on Beaker, and its path at the site is unknown", hint
    )


_LOCKS = ("uv.lock", "pylock.toml")


def env_there(
    request: GantryRequest, place: Destination, paths: Relocation, folder: Path, diagnostics: ConversionDiagnostics
) -> Env:
    """Return the task's environment at the site. Reads only pyproject.toml in `folder`."""
    recipe, checkout = request.recipe, request.checkout
    secrets = [
        SecretUse(name=name, from_="" if name == held else held) for name, held in _secrets(request, diagnostics)
    ]
    variables = {"GITHUB_REPO": checkout.repo, "GIT_REF": checkout.ref}
    if checkout.branch:
        variables["GIT_BRANCH"] = escaped(checkout.branch)
    variables |= {name: paths.value(value) for name, value in request.inputs.variables}
    python, uv = "", ""
    extras: tuple[str, ...] = ()
    if recipe.uv_venv:
        python = paths.value(recipe.uv_venv)
    elif not recipe.no_python and not recipe.system_python:
        python, uv, extras = _made(request, paths, folder, diagnostics)
    image = _image(recipe, place, diagnostics, is_used=not (python or uv))
    return Env(image=image, uv=uv, python=python, extras=extras, vars=variables, secrets=tuple(secrets))


def _made(
    request: GantryRequest, paths: Relocation, folder: Path, diagnostics: ConversionDiagnostics
) -> tuple[str, str, tuple[str, ...]]:
    """Return the interpreter, uv project and extras of the environment that gantry would create."""
    recipe, checkout = request.recipe, request.checkout
    if manager_of(recipe, checkout) == "conda":
        if recipe.conda_env and "/" in recipe.conda_env:
            return paths.value(f"{recipe.conda_env}/bin/python"), "", ()
        what = recipe.conda_env or recipe.conda_file or next(name for name in CONDA_FILES if checkout.has(name))
        diagnostics.refuse(f"conda environments are not supported (`{what}`)", "`--conda-env /PATH`, or `uv lock`")
    elif checkout.has(*_LOCKS):
        return "", ".", _extras(recipe, folder, diagnostics)
    elif checkout.has("requirements.txt", *PROJECT_FILES):
        diagnostics.refuse("the project has no lock file, so its packages are not pinned", "uv lock; git add uv.lock")
    else:
        diagnostics.note("no Python project: the task runs in the site's own environment")
    return "", "", ()


def _extras(recipe: RecipeSettings, folder: Path, diagnostics: ConversionDiagnostics) -> tuple[str, ...]:
    if recipe.uv_torch_backend:
        diagnostics.note(f"--uv-torch-backend {recipe.uv_torch_backend}: the lock file selects the builds")
    if recipe.uv_extras or recipe.uv_all_extras is False:
        return tuple(recipe.uv_extras or ())
    try:
        project = load_toml((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        return tuple(project.get("optional-dependencies", {}))
    except (OSError, ValueError, AttributeError) as error:
        diagnostics.refuse(f"pyproject.toml cannot be read: {error}", "name the extras: `--uv-extra NAME`")
        return ()


def _image(recipe: RecipeSettings, place: Destination, diagnostics: ConversionDiagnostics, *, is_used: bool) -> Image:
    name = f"beaker:{recipe.beaker_image}" if recipe.beaker_image else recipe.docker_image
    if not name:
        return Image()
    if not is_used:
        diagnostics.note(f"the image {name} is not used: windlass creates the Python environment")
    elif recipe.docker_image or place.kind == "beaker":
        if place.kind != "local":
            return Image(name=name)
        diagnostics.note(f"the image {name} is not used at `local`; `--on docker` runs in it")
    else:
        diagnostics.note(f"the image {name} is Beaker's: the task runs in the site's own environment")
    return Image()


def _secrets(request: GantryRequest, diagnostics: ConversionDiagnostics) -> list[tuple[str, str]]:
    recipe = request.recipe
    found = [(each.name, each.secret or each.name) for each in request.inputs.secret_variables]
    for option in ("aws_config_secret", "aws_credentials_secret", "google_credentials_secret"):
        if getattr(recipe, option):
            flag = "--" + option.replace("_", "-")
            diagnostics.refuse(
                f"`{flag} {getattr(recipe, option)}`: secrets cannot be written to this file at the site",
                "use `--env-secret`",
            )
    return found
