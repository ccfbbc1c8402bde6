"""Does the same plan still give the same result? Look at every link, execute anew, compare, and name the link that broke."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, WindlassError
from windlass.launch.rerun import Rerun, prepare_rerun
from windlass.launch.run import Run
from windlass.launch.verify.difference import explained
from windlass.launch.verify.finding import Finding, ProvenanceLink, broken_links
from windlass.launch.verify.verify import verify
from windlass.plan.pins import built_name
from windlass.record.state import RunFacts, State
from windlass.runs import metrics, outputs
from windlass.runs.compare.compare import Area, Difference, difference_text
from windlass.runs.compare.outputs import compare_files, json_names
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
    """How a run is executed anew and compared.

    Attributes:
        how: the place, and what may differ there.
        tolerances: of reported metrics and of numbers in JSON outputs; without any, only bytes count.
        ignored: patterns of output paths that are not compared.
        against: id of a run to compare with, instead of executing anew.
        compares_sources: a change of the user's own code, lock file or image tags since then counts.
    """

    how: Rerun = Rerun(note="verification of")
    tolerances: tuple[Tolerance, ...] = ()
    ignored: tuple[str, ...] = ()
    against: RunFolder | None = None
    compares_sources: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of it.

    Attributes:
        again: id of the run that was compared with; empty: nothing was executed.
        differences: between the two runs, outputs left out.
    """

    run: str
    again: str
    findings: tuple[Finding, ...]
    differences: tuple[Difference, ...] = ()

    @property
    def broken(self) -> tuple[ProvenanceLink, ...]:
        """The links that do not hold, in the order of the chain; the first is where to look."""
        return broken_links(self.findings)

    @property
    def is_verified(self) -> bool:
        """Whether every link holds and, where it was executed anew, gave the same."""
        return not self.broken

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.broken:
            first = next(finding for finding in self.findings if finding.link is self.broken[0] and finding.is_broken)
            files = f"{', '.join(first.files[:3])}{', ...' if len(first.files) > 3 else ''}"
            where = files or first.message.split("\n", 1)[0]
            return f"the chain breaks at {self.broken[0]}{f' ({first.what})' if ' ' in first.what else ''}: {where}"
        return "everything is as it was recorded" + (f", and {self.again} gave the same" if self.again else "")


def prove(
    run: RunFolder,
    home: Home,
    reexecution: Reexecution | None = None,
    *,
    log: Callable[[str], None] = lambda line: None,
    on_finding: Callable[[Finding], None] = lambda finding: None,
) -> Verification:
    """Check every link, execute the same plan anew, compare; blocks until the new run ends. The new run is kept.

    Nothing is executed where a link before the outputs is broken so that the same cannot be run again.

    Args:
        log: gets progress lines.
        on_finding: gets each finding as it is made.

    Raises:
        PreconditionError: the run did not succeed, or left nothing to compare.
        UsageError: a tolerance speaks of nothing the run left.
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
            f"{run.id} is {facts.state}, so there is no result to compare with",
            hint=f"`windlass verify {run.id} --quick` checks what was recorded",
            code="nothing-to-verify",
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
            f"{run.id} left no output files here to compare with",
            hint=f"--tolerance {name}=0 compares a reported metric; --quick checks the links without executing anew",
            code="nothing-to-verify",
        )


def _has_manifest(run: RunFolder, task: str) -> bool:
    try:
        outputs.read_manifest(run.out(task))
    except WindlassError:
        return False
    return True


def _execute(run: RunFolder, home: Home, wanted: Reexecution, log: Callable[[str], None]) -> RunFolder:
    prepared = prepare_rerun(run, home, how=wanted.how, log=log)
    new: Run = prepared.launch(log=log)
    log(f"executing anew as {new.id} on {prepared.plan.site.name}")
    new.wait()
    _await_outputs(new.folder)
    for task in new.facts.tasks if new.folder.is_mirrored else ():
        new.fetch_output(task)
    return new.folder


def _await_outputs(run: RunFolder) -> None:
    """Wait for the manifests of a run that has just succeeded: they are made when its verdict is known already."""
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
            yield Finding(what=f"metric {name}", status="ok", message="the same within its tolerance")


def _recorded(facts: RunFacts) -> dict[str, str]:
    """Digest of each task's output; a build of data is a link of its own, and no task where it is there already."""
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
        return Finding(what=what, status="failed", message=f"they differ, and {error.message}")
    found = compare_files(before, after, wanted.tolerances, wanted.ignored)
    if not found:
        how = "within the tolerances" if wanted.tolerances else "but for what is ignored"
        return Finding(what=what, status="ok", message=f"the same in {again.id} {how}")
    listed = [f"{path}: {problem}" for path, problem in found[:_MAX_LISTED]]
    listed += [f"and {len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
    head = f"{len(found)} of {len(before[1].entries)} files differ in {again.id}"
    return Finding(
        what=what, status="failed", message="\n".join([head, *listed]), files=tuple(path for path, _ in found)
    )


def _side(run: RunFolder, task: str) -> tuple[Path, Manifest]:
    return run.out(task), outputs.read_manifest(run.out(task))


def _reasons(differences: Sequence[Difference]) -> Iterator[Finding]:
    """The links that differ between the two executions, which is why their results may."""
    links: dict[ProvenanceLink, list[Difference]] = {}
    for each in differences:
        link = ProvenanceLink.IMAGE if each.path.startswith("image") else _LINK_OF_AREA[each.cause]
        links.setdefault(link, []).append(each)
    for link, found in links.items():
        lines = [difference_text(each) for each in found[:_MAX_LISTED]]
        lines += [f"  {detail}" for each in found for detail in each.details[:_MAX_LISTED]]
        message = "\n".join(["differs between the two runs", *lines])
        yield Finding(what=str(link), status="failed", message=message, files=_files(found))
    if not links:
        message = "nothing before the outputs differs between the two runs: the task does not give the same twice"
        yield Finding(what="outputs", status="failed", message=f"{message} (seeds, time, threads)")


def _files(differences: Sequence[Difference]) -> tuple[str, ...]:
    """Names of files where they are known, else of what differs."""
    named = [name for each in differences for name in each.files]
    return tuple(named or (each.path for each in differences))
