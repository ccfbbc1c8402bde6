"""Command line of a wrapper program: its options, its variables by role, then `--` and the user's command.

`windlass.pyz ray --num-gpus=4 --driver-set=LD_PRELOAD=/x.so --worker-unset=LD_PRELOAD -- python train.py`

Afterwards the replica's process is replaced by the user's command, with its exit code and signals.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field

from windlass.core.dataclass import dataclass
from windlass.record.causes import Cause
from windlass.supervise.replica.exit_report import report_end

__all__ = ["RoleVariables", "WrappedCommand", "become"]


@dataclass(frozen=True)
class RoleVariables:
    """Variables to set or unset for processes with a given role."""

    set: Mapping[str, str] = field(default_factory=dict)
    unset: Sequence[str] = ()

    def apply(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return a process's variables with this role's changes applied."""
        kept = {name: value for name, value in environ.items() if name not in self.unset}
        return {**kept, **self.set}


@dataclass(frozen=True)
class WrappedCommand:
    """User's command, and the options before it.

    Attributes:
        options: options of the program, by name without dashes.
        driver: variables for the user's command.
        worker: variables for everything else that runs user code.
    """

    command: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    driver: RoleVariables = RoleVariables()
    worker: RoleVariables = RoleVariables()

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> WrappedCommand:
        """Parse what the planner wrote; raises ValueError for anything else."""
        split = list(arguments).index("--")
        options: dict[str, str] = {}
        values: dict[str, dict[str, str]] = {"driver": {}, "worker": {}}
        gone: dict[str, list[str]] = {"driver": [], "worker": []}
        for argument in arguments[:split]:
            name, _, value = argument[2:].partition("=")
            role, _, verb = name.partition("-")
            if role in values and verb == "set":
                key, _, text = value.partition("=")
                values[role][key] = text
            elif role in values and verb == "unset":
                gone[role].append(value)
            else:
                options[name] = value
        roles = {role: RoleVariables(values[role], tuple(gone[role])) for role in values}
        return cls(tuple(arguments[split + 1 :]), options, roles["driver"], roles["worker"])

    def number(self, name: str, default: float = 0.0) -> float:
        """Return the value of a numeric option."""
        return float(self.options.get(name) or default)


def become(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Replace this process with a command; return an exit code only on failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), dict(environ))
    except OSError as error:
        return report_end(environ, Cause.START_FAILED, f"`{command[0]}` cannot be executed: {error.strerror}", code=127)
