"""Container of a node, if its cluster has an `image`: set-up, Ray and commands run in it, the agent stays on the machine.

    host set-up -> engine -> image -> container -> `docker exec`: set-up, Ray, commands

The container has the machine's network, process numbers, shared memory, the user's home and Ray's folder. So paths and
processes are the same inside and outside, and what ends processes by the node's token ends those inside as well. Variables
are passed by name, never on a command line. `container.json` is written before the container is made, so that `down`, or
the next agent, finds the container of a killed agent by its label.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.files import write_atomic
from windlass.core.json_text import decode_json
from windlass.supervise.container.engine import TOKEN_LABEL, ContainerEngine

__all__ = [
    "NOT_REMOVED",
    "PIPE",
    "NodeContainer",
    "end_container",
    "enter",
    "inside_environment",
    "last_line",
    "read_container",
    "write_container",
]

PIPE = 3
"""Descriptor that is a command's standard output outside; inside, its standard output is its standard error."""

NOT_REMOVED = 46
"""Exit code of `node-stop` if the engine did not remove the container; its last line of errors is a command to try."""

_FILE = "container.json"
_ASK_S = 60.0
_END_S = 20.0
_AGAIN_S = 0.05
_LATE_S = 1.0
_TO_PIPE = f'exec {PIPE}>&1 1>&2; exec "$@"'
_INHERITED = (
    *("HOME", "USER", "LOGNAME", "TERM"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)


@dataclass(frozen=True)
class NodeContainer:
    """A container, as its node's folder records it.

    Attributes:
        program: `docker` or `podman`.
        is_podman: whether it is podman, which may be called docker.
        variables: those that select and configure the engine.
        label: value of the label by which the container is found.
        python: path of the Python with Ray in it; empty before it is known, so perhaps before the container is made.
    """

    program: str
    is_podman: bool
    variables: Mapping[str, str]
    name: str
    label: str
    python: str = ""

    @property
    def engine(self) -> ContainerEngine:
        """Return the engine."""
        return ContainerEngine(self.program, self.variables)

    @property
    def removal(self) -> str:
        """Return the command that removes it."""
        return f"{self.program} rm --force --volumes {self.name}"


def write_container(folder: Path, container: NodeContainer) -> None:
    """Write the record of a node's container."""
    write_atomic(folder / _FILE, json.dumps(asdict(container)).encode(), mode=0o600)


def read_container(folder: Path) -> NodeContainer | None:
    """Return a node's container; None if it has none."""
    try:
        return NodeContainer(**decode_json((folder / _FILE).read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise PreconditionError(f"{folder}/{_FILE}: {error}", code="node-damaged") from error


def inside_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what processes in a container have of the machine's variables; `PATH` and others are those of the image."""
    return {name: environ[name] for name in _INHERITED if environ.get(name)}


def enter(
    container: NodeContainer | None,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    cwd: str = "",
    has_pipe: bool = False,
    interaction: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and variables that run a command in a container; unchanged if there is none.

    Args:
        environ: all variables of the command besides those of the image.
        has_pipe: `PIPE` is the standard output outside.
        interaction: options for input and a terminal.
    """
    if container is None:
        return list(argv), dict(environ)
    words = [container.program, "exec", *interaction, *([f"--workdir={cwd}"] if cwd else [])]
    own = {name: value for name, value in environ.items() if name != "PATH"}  # the engine is found on the machine's
    words += [f"--env={name}" for name in sorted(own)]
    words += [f"--env=PATH={environ['PATH']}"] if "PATH" in environ else []
    inner = ["/bin/sh", "-c", _TO_PIPE, "sh", *argv] if has_pipe else list(argv)
    outer = {**os.environ, **container.variables, **own}
    return [*words, container.name, *inner], outer


def end_container(folder: Path, *, limit_s: float = _END_S, is_last: bool = True) -> str:
    """Remove a node's container with all processes in it; return why that failed, or nothing. Idempotent.

    Another process may remove it at the same time, as an agent does that was told to end.

    Args:
        is_last: nobody makes the container any more, so its record goes; one whose maker was killed a moment ago, which
            appears a little later, is waited for.
    """
    try:
        container = read_container(folder)
    except PreconditionError as error:
        return error.message
    if container is None:
        return ""
    listing = ("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={TOKEN_LABEL}={container.label}")
    end_s, is_complete, refusal = time.monotonic() + limit_s, not is_last or bool(container.python), None
    while True:
        found = container.engine.ask(*listing, timeout_s=_ASK_S)
        if found.code:
            return f"{container.program} does not list containers: {last_line(found.stderr)}"
        if not found.stdout.split():
            if is_complete:
                break
            is_complete = True
            time.sleep(_LATE_S)
            continue
        if refusal is not None and time.monotonic() > end_s:
            return f"{container.program} does not remove the container {container.name}: {last_line(refusal)}"
        is_complete = True
        refusal = container.engine.ask("rm", "--force", "--volumes", *found.stdout.split(), timeout_s=_ASK_S).stderr
        time.sleep(_AGAIN_S)
    if is_last:
        with contextlib.suppress(OSError):  # the record of a container that is gone does no harm
            os.unlink(str(folder / _FILE))
    return ""


def last_line(text: str) -> str:
    """Return the reason that an engine prints last."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("See '")]
    return lines[-1][:400] if lines else "no reason given"
