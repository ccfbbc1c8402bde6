"""Conversion of a gantry job's Python environment, variables, secrets and image."""

from __future__ import annotations

from pathlib import Path

from windlass.compat.gantry.environment import CONDA_FILES, PROJECT_FILES, manager_of
from windlass.compat.gantry.request import GantryRequest
from windlass.compat.gantry.settings import RecipeSettings
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics
from windlass.compat.to_experiment.relocation import Relocation, escaped
from windlass.config.foreign_text import load_toml
from windlass.spec import Env, Image, SecretUse

__all__ = ["env_there"]

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
