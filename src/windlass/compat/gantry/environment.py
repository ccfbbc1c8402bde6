"""Variables that tell the script in the job which Python environment to create."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.compat.gantry.checkout import Checkout
from windlass.compat.gantry.settings import RecipeSettings
from windlass.core.errors import UsageError

__all__ = ["manager_of", "python_variables"]

PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
CONDA_FILES = ("environment.yml", "environment.yaml")


def manager_of(recipe: RecipeSettings, checkout: Checkout) -> str:
    """Return `uv` or `conda`: the requested one, else conda if the repository has a conda file."""
    if recipe.python_manager is not None:
        return recipe.python_manager
    return "conda" if recipe.conda_env or recipe.conda_file or checkout.has(*CONDA_FILES) else "uv"


def python_variables(recipe: RecipeSettings, checkout: Checkout) -> Iterator[tuple[str, str]]:
    """Yield (name, value) pairs in gantry's order.

    Raises:
        UsageError: uv options for a conda environment, or extras without a project.
    """
    if recipe.no_python:
        yield "GANTRY_NO_PYTHON", "1"
        return
    manager = manager_of(recipe, checkout)
    yield "GANTRY_DEFAULT_PYTHON_VERSION", recipe.default_python_version
    if recipe.system_python:
        yield "GANTRY_USE_SYSTEM_PYTHON", "1"
    yield "GANTRY_PYTHON_MANAGER", manager
    yield from _uv(recipe, checkout) if manager == "uv" else _conda(recipe, checkout)


def _uv(recipe: RecipeSettings, checkout: Checkout) -> Iterator[tuple[str, str]]:
    is_project = checkout.files is None or checkout.has(*PROJECT_FILES)
    if recipe.uv_venv is not None:
        yield "GANTRY_UV_VENV", recipe.uv_venv
    wants_all = recipe.uv_all_extras
    if wants_all is None:
        wants_all = not recipe.uv_extras and is_project
    if (wants_all or recipe.uv_extras) and not is_project:
        option = "--uv-all-extras" if wants_all else "--uv-extra"
        message = f"`{option}` without a project: the repository has no {', '.join(PROJECT_FILES)}"
        raise UsageError(message, hint=f"commit one of them, or remove `{option}`", code="conflicting-options")
    if wants_all:
        yield "GANTRY_UV_ALL_EXTRAS", "1"
    if recipe.uv_extras:
        yield "GANTRY_UV_EXTRAS", " ".join(recipe.uv_extras)
    if recipe.uv_torch_backend is not None:
        yield "UV_TORCH_BACKEND", recipe.uv_torch_backend


def _conda(recipe: RecipeSettings, checkout: Checkout) -> Iterator[tuple[str, str]]:
    asks_uv = recipe.uv_venv or recipe.uv_extras or recipe.uv_all_extras is not None or recipe.uv_torch_backend
    if asks_uv:
        message = "uv options are set, but the repository has a conda file"
        raise UsageError(message, hint="add `--python-manager uv`", code="conflicting-options")
    if recipe.conda_env is not None:
        yield "GANTRY_CONDA_ENV", recipe.conda_env
    file = recipe.conda_file or next((name for name in CONDA_FILES if checkout.has(name)), None)
    if file is not None:
        yield "GANTRY_CONDA_FILE", file
