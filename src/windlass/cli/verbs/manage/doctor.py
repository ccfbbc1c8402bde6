"""`windlass doctor`: check this machine."""

from __future__ import annotations

from dataclasses import asdict

from windlass.cli.machine_checks import checks
from windlass.cli.screen import emit_json, emit_page, paint, printable
from windlass.cli.verb import json_option, verb
from windlass.core.errors import PreconditionError

__all__ = ["doctor_command"]

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@verb("windlass doctor", "windlass doctor --json", name="doctor")
@json_option
def doctor_command(is_json: bool) -> int:
    """Check this machine: programs, folders, disk, GPUs, kernel. Exits with 8 if a check fails."""
    found = []
    for check in checks():
        found.append(check)
        if not is_json:
            emit_page(
                f"{paint(f'{check.status:<5}', _STYLES[check.status])} {check.name:<14} {printable(check.message)}"
            )
            if check.hint:
                emit_page(f"{'':<20} {paint('hint:', 'cyan')} {check.hint}")
    if is_json:
        emit_json("windlass.doctor/1", {"checks": [asdict(check) for check in found]})
    is_fit = all(check.status != "fail" for check in found)
    return 0 if is_fit else PreconditionError.exit_code
