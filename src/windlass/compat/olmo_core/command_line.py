"""Equivalent of `python -m olmo_core.launch.beaker [OPTIONS] -- COMMAND`: `python -m windlass.compat.olmo_core`."""

from __future__ import annotations

import argparse
import importlib
import sys
import uuid
from collections.abc import Sequence
from typing import Any, NoReturn

from windlass.compat.olmo_core.launch_config import (
    BeakerEnvSecret,
    BeakerEnvVar,
    BeakerLaunchConfig,
    BeakerWekaBucket,
)
from windlass.core.errors import NotFoundError, UsageError, WindlassError
from windlass.core.names import nearest

__all__ = ["main", "read_command_line"]

_PROGRAM = "python -m windlass.compat.olmo_core"
_TEXTS = ("description", "budget", "workspace", "beaker-image", "pre-setup", "post-setup")
_LISTS = ("cluster", "gpu-type", "tag", "weka", "env", "env-secret", "preset")
_FLAGS = ("preemptible", "allow-dirty", "shared-filesystem", "debug", "dry-run")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        names = [name for action in self._actions for name in action.option_strings]
        word = next((word for word in message.split() if word.startswith("-")), "").partition("=")[0]
        close = nearest(word, [name for name in names if name != word])
        known = f"did you mean `{close}`?" if close and word not in names else f"{_PROGRAM} --help"
        raise UsageError(message, hint=known, code="usage")


def _parser() -> _Parser:
    parser = _Parser(_PROGRAM, usage=f"{_PROGRAM} [OPTIONS] -- COMMAND", allow_abbrev=False)
    parser.add_argument("--name", default="olmo-core-test", help="name of the run; a random suffix is added")
    parser.add_argument("--task-name", default="main", help="name of the task")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs per node")
    parser.add_argument("--nodes", type=int, default=1, help="nodes")
    parser.add_argument("--priority", choices=("low", "normal", "high", "urgent"), default="low", help="priority")
    for name in _TEXTS:
        parser.add_argument(f"--{name}", help=f"{name.replace('-', ' ')} of the experiment")
    for name in _LISTS:
        parser.add_argument(f"--{name}", nargs="*", help=f"{name.replace('-', ' ')}; several allowed")
    for name in _FLAGS:
        parser.add_argument(f"--{name}", action="store_true", help=name.replace("-", " "))
    for name in ("torchrun", "slack-notifications"):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=name.replace("-", " "))
    return parser


def read_command_line(argv: Sequence[str]) -> tuple[BeakerLaunchConfig, bool]:
    """Return the configuration that a command line describes, and whether it is only to be printed.

    Raises:
        UsageError: no `--`, an unknown option, a malformed variable.
        NotFoundError: there is no such preset, or OLMo-core is not installed.
    """
    words = list(argv)
    if "--help" in words[: words.index("--") if "--" in words else None]:
        _parser().parse_args(["--help"])
    if "--" not in words or words[-1] == "--":
        raise UsageError("no command after `--`", hint=f"{_PROGRAM} --gpus 8 -- src/train.py", code="missing-argument")
    at = words.index("--")
    options = _parser().parse_args(words[:at])
    presets = [_preset(name) for name in options.preset or ()]
    variables = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO"} if options.debug else {}
    secrets: dict[str, str] = {}
    for preset in presets:
        variables |= dict(preset.env_vars)
        secrets |= dict(preset.env_secrets)
    variables |= _pairs("--env", options.env)
    secrets |= _pairs("--env-secret", options.env_secret)
    image = options.beaker_image or next((each.beaker_image for each in reversed(presets) if each.beaker_image), None)
    config = BeakerLaunchConfig(
        name=f"{options.name}-{uuid.uuid4().hex[:8]}",
        cmd=words[at + 1 :],
        **({"beaker_image": image} if image else {}),
        budget=options.budget,
        task_name=options.task_name,
        workspace=options.workspace,
        description=options.description,
        clusters=options.cluster,
        gpu_types=options.gpu_type,
        tags=options.tag,
        num_nodes=options.nodes,
        num_gpus=options.gpus,
        preemptible=options.preemptible,
        priority=options.priority,
        slack_notifications=options.slack_notifications,
        allow_dirty=options.allow_dirty,
        shared_filesystem=options.shared_filesystem,
        env_vars=[BeakerEnvVar(name=name, value=value) for name, value in variables.items()],
        env_secrets=[BeakerEnvSecret(name=name, secret=secret) for name, secret in secrets.items()],
        weka_buckets=[BeakerWekaBucket(bucket=bucket, mount=f"/weka/{bucket}") for bucket in options.weka or ()],
        torchrun=options.torchrun,
        pre_setup=_chain(*(preset.pre_setup for preset in presets), options.pre_setup),
        post_setup=_chain(*(preset.post_setup for preset in presets), options.post_setup),
    )
    return config, options.dry_run


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    try:
        config, is_dry = read_command_line(sys.argv[1:] if argv is None else argv)
        if is_dry:
            config.dry_run()
        else:
            config.launch(follow=True)
    except WindlassError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    return 0


def _pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    for text in texts or ():
        if "=" not in text:
            hint = f"write `{option} {text}=VALUE`"
            raise UsageError(f"`{option} {text}` is not NAME=VALUE", hint=hint, code="invalid-value")
    return dict(text.split("=", 1) for text in texts or ())


def _chain(*steps: str | None) -> str | None:
    return " && ".join(step for step in steps if step) or None


def _preset(name: str) -> Any:
    """Return a preset of the installed OLMo-core, whose presets module imports nothing else."""
    try:
        known = importlib.import_module("olmo_core.launch.beaker_presets").PRESETS
    except ImportError as error:
        message = f"`--preset {name}`: presets are part of OLMo-core, which is not installed"
        raise NotFoundError(message, hint="pip install ai2-olmo-core", code="extra-missing") from error
    if name not in known:
        hint = f"available: {', '.join(sorted(known))}"
        raise NotFoundError(f"`--preset {name}`: OLMo-core has no such preset", hint=hint, code="unknown-name")
    return known[name]
