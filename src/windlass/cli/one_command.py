"""`windlass launch -- COMMAND`: wrap a single command in an experiment."""

from __future__ import annotations

import re
from pathlib import PurePath

from windlass.config.emit import to_yaml
from windlass.config.loading import from_data, load_config
from windlass.core.errors import UsageError
from windlass.core.names import NAME_RULE, is_name
from windlass.spec import Experiment

__all__ = ["experiment_of", "name_of"]

_SOURCE = "command line"
_INTERPRETERS = re.compile(r"(?:python(?:3(?:\.\d+)?)?|bash|sh|torchrun|env|uv|run)\Z")


def experiment_of(
    command: tuple[str, ...], overrides: tuple[str, ...], *, name: str, gpus: str, nodes: int | None, env_uv: str
) -> Experiment:
    """Return an experiment whose task `main` runs the command in the current folder.

    A single word that contains spaces is a shell line.

    Raises:
        UsageError: no command, or an invalid `--name`.
        SpecError: an invalid override or option.
    """
    if not command:
        raise UsageError("no command after `--`", hint="windlass launch -- python train.py", code="missing-argument")
    if name and not is_name(name):
        raise UsageError(f"invalid name `{name}`", hint=NAME_RULE, code="invalid-name")
    is_shell = len(command) == 1 and " " in command[0]
    task: dict[str, object] = {"run": command[0] if is_shell else list(command)}
    if nodes is not None:
        task["nodes"] = nodes
    if gpus:
        task["gpus"] = int(gpus) if gpus.isdecimal() else gpus
    data: dict[str, object] = {"name": name or name_of(command), "tasks": {"main": task}}
    if env_uv:
        data["env"] = {"uv": env_uv}
    plain = from_data(Experiment, data, source=_SOURCE)
    return load_config(Experiment, to_yaml(plain), source=_SOURCE, overrides=overrides).value if overrides else plain


def name_of(command: tuple[str, ...]) -> str:
    """Return a name based on the program or script that a command runs: `train` for `python -u train.py`."""
    words = command[0].split() if len(command) == 1 else [word.split(" ", 1)[0] for word in command]
    for word in words:
        stem = PurePath(word).name.lower()
        if word.startswith("-") or _INTERPRETERS.match(stem):
            continue
        found = stem.removesuffix(".py").removesuffix(".sh")
        if is_name(found):
            return found
    return "command"
