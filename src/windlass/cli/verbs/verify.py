"""`windlass verify`: is what lies there still what ran?"""

from __future__ import annotations

from dataclasses import asdict

from windlass.cli.finding import found_run
from windlass.cli.screen import emit, emit_json, paint, printable
from windlass.cli.verb import json_option, run_argument, verb
from windlass.launch.verify import Finding, verify

__all__ = ["verify_command"]

_STYLES = {"ok": "green", "failed": "red", "skipped": "yellow"}


@verb("windlass verify last", "windlass verify hello-7hq2mx4p --json", name="verify")
@run_argument()
@json_option
def verify_command(run: str, is_json: bool) -> int:
    """Check that a run's plan, code, data, checkpoints and outputs are as they were recorded; reads every byte.

    Exits with 1 when something is not.
    """
    folder = found_run(run)
    findings = list(verify(folder))
    if is_json:
        emit_json("windlass.verify/1", {"run": folder.id, "checks": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
    return 1 if any(finding.status == "failed" for finding in findings) else 0


def _print(finding: Finding) -> None:
    head, *rest = finding.message.split("\n")
    emit(f"{paint(f'{finding.status:<8}', _STYLES[finding.status])} {finding.what:<22} {printable(head)}")
    for line in rest:
        emit(f"{'':<31} {printable(line)}")
