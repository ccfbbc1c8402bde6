"""Loading of an experiment file into an `Experiment`, reporting all problems together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from windlass.config.encode import to_data
from windlass.config.loading import LoadedConfig, from_data, load_config
from windlass.config.yaml_reader.parser import decode_text, too_large
from windlass.core.errors import AccessError, NotFoundError, Problem, SourcePlace, SpecError, WindlassError
from windlass.core.names import nearest
from windlass.spec.experiment import Experiment

__all__ = ["checked", "load_experiment", "params_of"]

_MAX_BYTES = 4 << 20


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig[Experiment]:
    """Read an experiment file and apply overrides such as `tasks.train.nodes=2`.

    Raises:
        NotFoundError: the file does not exist or is a folder.
        AccessError: the file cannot be read.
        SpecError: the file or an override is refused; contains all problems.
    """
    text = decode_text(_read(path), source=str(path))
    try:
        return load_config(Experiment, text, source=str(path), overrides=overrides)
    except SpecError as error:
        raise SpecError(_with_params_named(error.problems, path, text, overrides)) from error


def _with_params_named(
    problems: Sequence[Problem], path: Path, text: str, overrides: Sequence[str]
) -> Iterator[Problem]:
    """Yield the problems; those about an override such as `lr=0.1` get the hint `params.lr`."""
    params = _params_of(path, text) if overrides else frozenset()
    for problem in problems:
        override = problem.place.excerpt.lstrip("-+~") if problem.place is not None and not problem.place.line else ""
        is_param = problem.code == "unknown-key" and override.partition("=")[0].partition(".")[0] in params
        yield replace(problem, hint=f"did you mean `params.{override}`?") if is_param else problem


def _params_of(path: Path, text: str) -> frozenset[str]:
    """Return the top-level names in a file's `params`; empty if the file is refused."""
    try:
        params = load_config(Experiment, text, source=str(path)).value.params
    except SpecError:
        return frozenset()
    return frozenset(params)


def params_of(path: Path) -> frozenset[str]:
    """Return the top-level names in a file's `params`; empty if it cannot be read."""
    try:
        return _params_of(path, decode_text(_read(path), source=str(path)))
    except WindlassError:
        return frozenset()


def checked(experiment: Experiment) -> Experiment:
    """Return an experiment in its normal form, after checking it like a file.

    Raises:
        SpecError: contains all problems.
    """
    return from_data(Experiment, to_data(experiment))


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # Opening a pipe would block until its other end opens.
            raise NotFoundError(
                f"`{path}` is not a regular file", hint="name the file: experiment.yaml", code="file-unreadable"
            )
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise NotFoundError(
            f"`{path}` is a folder, not an experiment file", hint=_files_hint(path), code="file-unreadable"
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"no such file: `{path}`", hint=_nearby_hint(path), code="file-not-found") from error
    except PermissionError as error:
        hint = f"make it readable: chmod u+r {path}"
        raise AccessError(f"`{path}` may not be read", hint=hint, code="file-unreadable") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise AccessError(
            f"`{path}` cannot be read: {reason}", hint="check the path", code="file-unreadable"
        ) from error
    if len(content) > _MAX_BYTES:
        raise SpecError([too_large(SourcePlace(str(path)), _MAX_BYTES)])
    return content


def _files_hint(folder: Path) -> str:
    found = [str(file) for file in _yaml_files(folder)]
    return f"did you mean `{found[0]}`?" if found else "name the file: experiment.yaml"


def _nearby_hint(path: Path) -> str:
    names = {file.name: file for file in _yaml_files(path.parent)}
    close = nearest(path.name, names)
    if close:
        return f"did you mean `{names[close]}`?"
    return "`windlass init NAME` creates an experiment file to start from"


def _yaml_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.suffix in (".yaml", ".yml"))
    except OSError:
        return []
