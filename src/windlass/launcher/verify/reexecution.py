"""Verification by re-execution: check every part, execute the plan again and compare the outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, WindlassError
from windlass.launcher import output_files
from windlass.launcher.follow import wait
from windlass.launcher.rerun import Rerun, prepare_rerun
from windlass.launcher.start import start_run
from windlass.launcher.verify.difference import explained
from windlass.launcher.verify.finding import Finding, ProvenanceLink, broken_links
from windlass.launcher.verify.verify import verify
from windlass.plan.pins import built_name
from windlass.record.state import RunFacts, State
from windlass.runs import metrics, outputs
from windlass.runs.compare.outputs import compare_files, json_names
from windlass.runs.compare.run_differences import Area, Difference, difference_text
from windlass.runs.compare.tolerance import Tolerance, compare_metrics, unmatched
from windlass.runs.home import Home
from windlass.runs.outputs import Manifest
from windlass.runs.store import RunFolder

__all__ = ["Reexecution", "Verification", "prove"]

_MAX_LISTED = 10
_MANIFEST_S = 600.0
_POLL_S = 0.05
_LINK_OF_AREA = {
    Area.CODE: ProvenanceLink.CODE,
    Area.ENVIRONMENT: ProvenanceLink.ENVIRONMENT,
    Area.DATA: ProvenanceLink.DATA,
    Area.PARAMETERS: ProvenanceLink.PARAMETERS,
    Area.RESOURCES: ProvenanceLink.HARDWARE,
    Area.HARDWARE: ProvenanceLink.HARDWARE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reexecution:
    """Options of a re-execution and of the comparison.

    Attributes:
        how: place and overrides of the new run.
        tolerances: tolerances for reported metrics and numbers in JSON outputs; if empty, bytes are compared.
        ignored: patterns of output paths to ignore.
        against: run to compare with, instead of a new one.
        compares_sources: report changes to the user's own code, lock file or image tags since the run.
    """

    how: Rerun = Rerun(note="verification of")
    tolerances: tuple[Tolerance, ...] = ()
    ignored: tuple[str, ...] = ()
    against: RunFolder | None = None
    compares_sources: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of a verification.

    Attributes:
        again: id of the run used for comparison; empty if nothing was executed.
        differences: between the two runs, except outputs.
    """

    run: str
    again: str
    findings: tuple[Finding, ...]
    differences: tuple[Difference, ...] = ()

    @property
    def broken(self) -> tuple[ProvenanceLink, ...]:
        """Return the parts that differ from their record, in order; the first one often explains the others."""
        return broken_links(self.findings)

    @property
    def is_verified(self) -> bool:
        """Return whether all parts match their record and, after a re-execution, the outputs match too."""
        return not self.broken

    @property
    def verdict(self) -> str:
        """Return the result as one sentence."""
        if self.broken:
            first = next(finding for finding in self.findings if finding.link is self.broken[0] and finding.is_broken)
            files = f"{', '.join(first.files[:3])}{', ...' if len(first.files) > 3 else ''}"
            where = files or first.message.split("\n", 1)[0]
            return f"{self.broken[0]} differs from the record{f' ({first.what})' if ' ' in first.what else ''}: {where}"
        return "everything matches its record" + (f", and {self.again} gave the same outputs" if self.again else "")


def prove(
    run: RunFolder,
    home: Home,
    reexecution: Reexecution | None = None,
    *,
    log: Callable[[str], None] = lambda line: None,
    on_finding: Callable[[Finding], None] = lambda finding: None,
) -> Verification:
    """Check every part of a run, execute its plan again, and compare the outputs. Blocks until the new run ends.

    The new run is kept. Nothing is executed if an input is missing.

    Args:
        log: called with progress lines.
        on_finding: called with each finding.

    Raises:
        PreconditionError: the run did not succeed, or has no outputs to compare.
        UsageError: a tolerance matches no metric and no output value.
        WindlassError: the new run was refused.
    """
    wanted = reexecution or Reexecution()
    findings: list[Finding] = []

    def found(finding: Finding) -> None:
        findings.append(finding)
        on_finding(finding)

    _await_outputs(run)
    for finding in verify(run, compares_sources=wanted.compares_sources):
        found(finding)
    if any(finding.status == "failed" and finding.link is not ProvenanceLink.OUTPUTS for finding in findings):
        return Verification(run=run.id, again="", findings=tuple(findings))
    _check_comparable(run, wanted)
    again = wanted.against or _execute(run, home, wanted, log)
    differences = [each for each in explained(run, again, home) if each.cause is not Area.OUTPUTS]
    num_before = len(findings)
    for finding in _compared(run, again, wanted):
        found(finding)
    if any(finding.is_broken for finding in findings[num_before:]):
        for finding in _reasons(differences):
            found(finding)
    return Verification(run=run.id, again=again.id, findings=tuple(findings), differences=tuple(differences))


def _check_comparable(run: RunFolder, wanted: Reexecution) -> None:
    facts = run.facts()
    if facts.state is not State.SUCCEEDED:
        raise PreconditionError(
            f"{run.id} is {facts.state}: there are no results to compare with",
            hint=f"check only its record: windlass verify {run.id} --quick",
            code="nothing-to-compare",
        )
    recorded = {task: outputs.read_manifest(run.out(task)) for task in facts.outputs if _has_manifest(run, task)}
    names = [name for task, manifest in recorded.items() for name in json_names(run.out(task), manifest)]
    problem = unmatched(wanted.tolerances, [*names, *metrics.names(run)])
    if problem is not None:
        raise problem
    if not any(manifest.entries for manifest in recorded.values()) and not wanted.tolerances:
        known = metrics.names(run)
        name = known[0] if known else "METRIC"
        raise PreconditionError(
            f"{run.id} has no output files here to compare with",
            hint=f"compare a metric with --tolerance {name}=0, or check only the record with --quick",
            code="nothing-to-compare",
        )


def _has_manifest(run: RunFolder, task: str) -> bool:
    try:
        outputs.read_manifest(run.out(task))
    except WindlassError:
        return False
    return True


def _execute(run: RunFolder, home: Home, wanted: Reexecution, log: Callable[[str], None]) -> RunFolder:
    prepared = prepare_rerun(run, home, how=wanted.how, log=log)
    new = start_run(prepared, log=log)
    log(f"executing again as {new.id} on {prepared.plan.site.name}")
    wait(new, home)
    _await_outputs(new)
    for task in new.facts().tasks if new.is_mirrored else ():
        output_files.fetch(new, home, task)
    return new


def _await_outputs(run: RunFolder) -> None:
    """Wait for the manifests of a run that has just succeeded; they are written after its verdict."""
    deadline = time.monotonic() + _MANIFEST_S
    while time.monotonic() < deadline:
        facts = run.facts()
        due = [name for name, task in facts.tasks.items() if task.state is State.SUCCEEDED]
        if all(name in facts.outputs for name in due) or time.time() > facts.ended_at + _MANIFEST_S:
            return
        time.sleep(_POLL_S)


def _compared(run: RunFolder, again: RunFolder, wanted: Reexecution) -> Iterator[Finding]:
    new = again.facts()
    if new.state is not State.SUCCEEDED:
        yield Finding(what="run", status="failed", message=f"{again.id} {new.state}: {new.cause}")
        return
    facts = run.facts()
    recorded = _recorded(facts)
    for task in (task for task in facts.tasks if task in recorded):
        yield _outputs_compared(run, again, task, recorded[task], wanted)
    for name, problem in compare_metrics(run, again, wanted.tolerances):
        if problem:
            yield Finding(what=f"metric {name}", status="failed", message=problem, files=(name,))
        else:
            yield Finding(what=f"metric {name}", status="ok", message="equal within its tolerance")


def _recorded(facts: RunFacts) -> dict[str, str]:
    """Return the digests of outputs by task, except for data builds, which are checked separately."""
    return {
        task: digest for task, (_, num_files, _, digest) in facts.outputs.items() if num_files and not built_name(task)
    }


def _outputs_compared(run: RunFolder, again: RunFolder, task: str, digest: str, wanted: Reexecution) -> Finding:
    what = f"outputs {task}"
    made = again.facts().outputs.get(task)
    if made is not None and made[3] == digest:
        return Finding(what=what, status="ok", message=f"bit-identical in {again.id}, sha256:{digest[:12]}")
    try:
        before, after = _side(run, task), _side(again, task)
    except WindlassError as error:
        return Finding(what=what, status="failed", message=f"different, and {error.message}")
    found = compare_files(before, after, wanted.tolerances, wanted.ignored)
    if not found:
        how = "within the tolerances" if wanted.tolerances else "except for ignored files"
        return Finding(what=what, status="ok", message=f"equal in {again.id} {how}")
    listed = [f"{path}: {problem}" for path, problem in found[:_MAX_LISTED]]
    listed += [f"and {len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
    head = f"{len(found)} of {len(before[1].entries)} files differ in {again.id}"
    return Finding(
        what=what, status="failed", message="\n".join([head, *listed]), files=tuple(path for path, _ in found)
    )


def _side(run: RunFolder, task: str) -> tuple[Path, Manifest]:
    return run.out(task), outputs.read_manifest(run.out(task))


def _reasons(differences: Sequence[Difference]) -> Iterator[Finding]:
    """Yield findings about parts that differ between the two executions and may explain different outputs."""
    links: dict[ProvenanceLink, list[Difference]] = {}
    for each in differences:
        link = ProvenanceLink.IMAGE if each.path.startswith("image") else _LINK_OF_AREA[each.cause]
        links.setdefault(link, []).append(each)
    for link, found in links.items():
        lines = [difference_text(each) for each in found[:_MAX_LISTED]]
        lines += [f"  {detail}" for each in found for detail in each.details[:_MAX_LISTED]]
        message = "\n".join(["different in the two runs", *lines])
        yield Finding(what=str(link), status="failed", message=message, files=_files(found))
    if not links:
        message = "all inputs of the two runs are equal: the task is not deterministic"
        yield Finding(what="outputs", status="failed", message=f"{message} (seeds, time, threads)")


def _files(differences: Sequence[Difference]) -> tuple[str, ...]:
    """Return the names of changed files if they are known, otherwise of changed settings."""
    named = [name for each in differences for name in each.files]
    return tuple(named or (each.path for each in differences))
