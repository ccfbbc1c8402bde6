"""`windlass verify`: check that a run can be reproduced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from windlass.cli.completion.files import complete_places
from windlass.cli.completion.runs import complete_run_overrides, complete_runs
from windlass.cli.finding import found_run
from windlass.cli.screen import emit_json, emit_page, paint, printable, tell
from windlass.cli.verb import json_option, run_argument, verb
from windlass.core.errors import UsageError
from windlass.launcher.verify.finding import Finding, broken_links
from windlass.launcher.verify.verify import verify
from windlass.runs.home import Home

if TYPE_CHECKING:
    from windlass.launcher.verify.reexecution import Verification
    from windlass.runs.store import RunFolder

__all__ = ["verify_command"]

_STYLES = {"ok": "green", "changed": "red", "failed": "red", "skipped": "yellow"}


@verb(
    "windlass verify last",
    "windlass verify hello-7hq2mx4p --quick",
    "windlass verify hello-7hq2mx4p --on isambard --tolerance loss=1e-3",
    "windlass verify hello-7hq2mx4p --on docker env.image=python:3.12 '~env.uv'",
    name="verify",
)
@run_argument()
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_run_overrides)
@click.option("--quick", is_flag=True, help="Check records and pins only; execute nothing.")
@click.option(
    "--on", metavar="SITE[/PARTITION]", default="", shell_complete=complete_places, help="Execute at this site instead."
)
@click.option(
    "--against",
    metavar="RUN",
    default="",
    shell_complete=complete_runs,
    help="Compare with this run instead of executing.",
)
@click.option(
    "--tolerance",
    metavar="NAME=AMOUNT",
    multiple=True,
    help="Allowed difference of metrics and JSON numbers: loss=1e-3, loss=0.1%, '*=1e-6'.",
)
@click.option("--ignore", metavar="PATTERN", multiple=True, help="Output files to leave out.")
@click.option("--pins", is_flag=True, help="Do not check your current code folder, lock file and tags.")
@click.option(
    "--best-effort", is_flag=True, help="Ignore settings that the site does not support, and print a note for each."
)
@json_option
def verify_command(
    run: str,
    overrides: tuple[str, ...],
    quick: bool,
    on: str,
    against: str,
    tolerance: tuple[str, ...],
    ignore: tuple[str, ...],
    pins: bool,
    best_effort: bool,
    is_json: bool,
) -> int:
    """Execute a run again from its pins and compare the outputs, byte for byte or within a tolerance.

    First code, environment, image, data, parameters and outputs are checked against the record; missing content ends the
    check. Then the same plan runs again as a new run, which is kept, and each output file is compared. The last line
    names the first mismatch and its file.

    Exits with 0 if everything matches, and with 1 if not. `changed` means that the pinned content still exists but your
    folder or tag has changed without a commit; `--pins` leaves this check out.

    OVERRIDES adapt the run to another kind of site: `env.image=...` if it needs an image.
    """
    _check_together(quick, on=on, against=against, overrides=overrides, tolerance=tolerance, ignore=ignore)
    home = Home.default()
    folder = found_run(run, home)
    if quick:
        return _quick(folder, compares_sources=not pins, is_json=is_json)
    from windlass.launcher.rerun import Rerun
    from windlass.launcher.verify.reexecution import Reexecution, prove  # lazy: --quick needs no planner
    from windlass.runs.compare.tolerance import parse_tolerance

    done = prove(
        folder,
        home,
        Reexecution(
            how=Rerun(on=on, overrides=overrides, best_effort=best_effort, note="verification of"),
            tolerances=tuple(map(parse_tolerance, tolerance)),
            ignored=ignore,
            against=found_run(against, home) if against else None,
            compares_sources=not pins,
        ),
        log=tell,
        on_finding=(lambda finding: None) if is_json else _print,
    )
    return _conclude(done, is_json=is_json)


def _check_together(quick: bool, *, on: str, against: str, **others: tuple[str, ...]) -> None:
    given = {"--on": on, "--against": against, **{f"--{name}": value for name, value in others.items()}}
    clash = [name for name, value in given.items() if value]
    if quick and clash:
        word = "an override" if clash[0] == "--overrides" else f"`{clash[0]}`"
        raise UsageError(
            f"{word} has no effect with `--quick`, which executes nothing", hint="remove one of them", code="usage"
        )
    if against and (on or others["overrides"]):
        word = "`--on`" if on else "an override"
        raise UsageError(
            f"{word} has no effect with `--against`, which executes nothing", hint="remove one of them", code="usage"
        )


def _quick(folder: RunFolder, *, compares_sources: bool, is_json: bool) -> int:
    findings = []
    for finding in verify(folder, compares_sources=compares_sources):
        findings.append(finding)
        if not is_json:
            _print(finding)
    broken = broken_links(findings)
    if is_json:
        emit_json("windlass.verify/1", _data(folder.id, "", findings))
    elif broken:
        tell(f"mismatch: {broken[0]}")
    return 1 if broken else 0


def _conclude(done: Verification, *, is_json: bool) -> int:
    if is_json:
        causes = [{"cause": str(each.cause), "path": each.path} for each in done.differences]
        content = _data(done.run, done.again, done.findings)
        emit_json("windlass.verify/1", {**content, "verdict": done.verdict, "differences": causes})
    else:
        tell(f"{'verified' if done.is_verified else 'not verified'}: {printable(done.verdict)}")
        if not done.again:
            tell("not executed again: the same inputs are no longer available")
    return 0 if done.is_verified else 1


def _data(run: str, again: str, findings: list[Finding] | tuple[Finding, ...]) -> dict[str, object]:
    checks = [
        {
            "what": finding.what,
            "link": str(finding.link),
            "status": finding.status,
            "message": finding.message,
            "files": list(finding.files),
        }
        for finding in findings
    ]
    broken = broken_links(findings)
    return {
        "run": run,
        "again": again,
        "is_verified": not broken,
        "broken": [str(link) for link in broken],
        "checks": checks,
    }


def _print(finding: Finding) -> None:
    head, *rest = finding.message.split("\n")
    emit_page(f"{paint(f'{finding.status:<8}', _STYLES[finding.status])} {finding.what:<22} {printable(head)}")
    for line in rest:
        emit_page(f"{'':<31} {printable(line)}")
