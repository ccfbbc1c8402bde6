"""Mounts and variables of a job, parsed from `SOURCE:/MOUNT` and `NAME=VALUE`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from windlass.compat.gantry.settings import Pair, RecipeSettings
from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError

__all__ = ["GantryMount", "Inputs", "SecretVariable", "read_inputs"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class GantryMount:
    """Mount in a job: its source, the part of the source to mount, and its path in the job."""

    source: str
    path: str
    sub_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariable:
    """Variable whose value is a secret.

    Without `secret` it is the secret of the same name, which is created from your variable if it does not exist.
    """

    name: str
    secret: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All inputs of a recipe, parsed and checked without looking anything up."""

    datasets: tuple[GantryMount, ...]
    secrets: tuple[GantryMount, ...]
    mounts: tuple[GantryMount, ...]
    weka: tuple[GantryMount, ...]
    uploads: tuple[GantryMount, ...]
    variables: tuple[tuple[str, str], ...]
    secret_variables: tuple[SecretVariable, ...]


def read_inputs(recipe: RecipeSettings, environ: Mapping[str, str]) -> Inputs:
    """Parse every input of a recipe.

    Raises:
        UsageError: a malformed word, a relative mount path, two mounts at one path, a duplicate or unset variable.
    """
    inputs = Inputs(
        datasets=tuple(_dataset(text) for text in recipe.datasets or ()),
        secrets=tuple(_mount("--dataset-secret", pair, "SECRET:/MOUNT") for pair in recipe.dataset_secrets or ()),
        mounts=tuple(_mount("--mount", pair, "HOST:/MOUNT") for pair in recipe.mounts or ()),
        weka=tuple(_mount("--weka", pair, "BUCKET:/MOUNT") for pair in recipe.weka or ()),
        uploads=tuple(_upload(pair) for pair in recipe.uploads or ()),
        variables=_variables(recipe, environ),
        secret_variables=tuple(_secret(pair) for pair in recipe.env_secrets or ()),
    )
    _check_paths([*inputs.datasets, *inputs.secrets, *inputs.mounts, *inputs.weka, *inputs.uploads])
    _check_names(inputs)
    return inputs


def _dataset(text: str) -> GantryMount:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(parts):
        hint = "--dataset NAME:/MOUNT or --dataset NAME:SUB/PATH:/MOUNT"
        raise UsageError(f"`--dataset {text}` does not name a dataset", hint=hint, code="invalid-value")
    sub_path = parts[1] if len(parts) == 3 else None
    return GantryMount(source=parts[0], sub_path=sub_path, path=_absolute("--dataset", text, parts[-1]))


def _mount(option: str, pair: Pair, form: str) -> GantryMount:
    text = pair if isinstance(pair, str) else ":".join(pair)
    source, _, path = text.partition(":") if isinstance(pair, str) else (pair[0], ":", pair[1])
    if not source or not path:
        raise UsageError(
            f"`{option} {text}` needs a source and a mount path", hint=f"{option} {form}", code="invalid-value"
        )
    return GantryMount(source=source, path=_absolute(option, text, path))


def _upload(pair: Pair) -> GantryMount:
    mount = _mount("--upload", pair, "PATH:/MOUNT")
    if PurePosixPath(mount.path).suffix:
        message = f"`--upload {mount.source}:{mount.path}` looks like a file, but a dataset is mounted as a folder"
        hint = f"--upload {mount.source}:{PurePosixPath(mount.path).parent}"
        raise UsageError(message, hint=hint, code="invalid-value")
    return mount


def _absolute(option: str, text: str, path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        message = f"`{option} {text}`: the mount `{path}` is not an absolute path"
        raise UsageError(message, hint=f"write `/{path}`", code="invalid-value")
    return path


def _check_paths(mounts: Sequence[GantryMount]) -> None:
    seen: dict[str, GantryMount] = {}
    for mount in mounts:
        plain = str(PurePosixPath(mount.path)).lower()  # Beaker rejects paths that differ only by case
        if plain in seen:
            message = f"`{seen[plain].source}` and `{mount.source}` are both mounted at `{mount.path}`"
            raise UsageError(message, hint="give each its own path", code="invalid-value")
        seen[plain] = mount


def _variables(recipe: RecipeSettings, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = [_variable(pair, environ) for pair in recipe.env_vars or ()]
    if recipe.uv_cache_dir is not None:
        found.append(("UV_CACHE_DIR", recipe.uv_cache_dir))
    return tuple(found)


def _variable(pair: Pair, environ: Mapping[str, str]) -> tuple[str, str]:
    if not isinstance(pair, str):
        return _named("--env", pair[0]), pair[1]
    name, has_value, value = pair.partition("=")
    if has_value:
        return _named("--env", name), value
    if name not in environ:
        hint = f"write `--env {name or 'NAME'}=VALUE`, or export it"
        raise UsageError(
            f"`--env {pair}` has no value, and the variable is not set here", hint=hint, code="invalid-value"
        )
    return _named("--env", name), environ[name]


def _secret(pair: Pair) -> SecretVariable:
    name, has_secret, secret = pair.partition("=") if isinstance(pair, str) else (pair[0], "=", pair[1])
    if has_secret and not secret:
        message = f"`--env-secret {name}=` does not name a secret"
        raise UsageError(message, hint=f"write `--env-secret {name}=SECRET`", code="invalid-value")
    return SecretVariable(name=_named("--env-secret", name), secret=secret if has_secret else None)


def _named(option: str, name: str) -> str:
    if not _NAME.match(name):
        hint = "use letters, digits and `_`, not starting with a digit"
        raise UsageError(f"`{option}`: `{name}` is not a valid variable name", hint=hint, code="invalid-value")
    return name


def _check_names(inputs: Inputs) -> None:
    names: dict[str, str] = {}
    given = [("--env", name) for name, _ in inputs.variables]
    given += [("--env-secret", variable.name) for variable in inputs.secret_variables]
    for option, name in given:
        if name in names:
            message = f"the variable `{name}` is set twice, by `{names[name]}` and `{option}`"
            raise UsageError(message, hint="keep one of them", code="invalid-value")
        names[name] = option
