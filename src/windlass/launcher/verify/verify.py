"""Comparison of each part of a run with its record, without executing anything."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from windlass.core.errors import NotFoundError, WindlassError
from windlass.core.phrases import count
from windlass.launcher.archive.plan import plan_here
from windlass.launcher.verify.finding import Finding
from windlass.launcher.verify.sources import Present, check_code, check_environment, check_image
from windlass.pin.data.pinned import DataPin, DataPlaces
from windlass.pin.data.pinning import check_data
from windlass.plan.plan import Plan
from windlass.record.causes import Cause
from windlass.record.journal import JournalReader
from windlass.record.manifest import differences, manifest_path, read_manifest
from windlass.record.state import RunFacts, State, TaskFacts
from windlass.runs import outputs
from windlass.runs.archive.origin import archived_data, is_imported, left_out_of, path_here
from windlass.runs.home import Home
from windlass.runs.retention import removed
from windlass.runs.store import RunFolder

__all__ = ["Finding", "verify"]

_MAX_LISTED = 10


def verify(run: RunFolder, *, compares_sources: bool = True) -> Iterator[Finding]:
    """Yield findings about the journal, plan, code, environment, image, data, checkpoints and outputs.

    Reads every byte.

    Args:
        compares_sources: also compare the user's code, lock file and image tags with the pins.
    """
    yield _journal(run)
    try:
        facts = run.facts()
        plan = plan_here(run)
    except WindlassError as error:
        yield Finding(what="plan", status="failed", message=error.message)
        return
    yield _plan(plan, facts)
    provenance = _provenance(run)
    base = Path(str(provenance.get("base", "."))) if provenance is not None else None
    home = Home(run.path.parents[1])
    compares_sources = compares_sources and not is_imported(run)  # the user's own code is on another machine
    present = Present(run=run, plan=plan, base=base, home=home, compares_sources=compares_sources)
    for check in (check_code, check_environment, check_image):
        yield from check(present)
    for name, pin in plan.pins.data.items():
        yield _data(run, name, pin, base, home)
    if plan.pins.builds:
        from windlass.launcher.stage.prepared_data import check_builds_of  # lazy: most experiments build no data

        yield from check_builds_of(run, plan, home)
    for name, task in facts.tasks.items():
        if task.last_checkpoint.path and run.is_mirrored:
            message = f"{task.last_checkpoint.path} is at {plan.site.name}"
            yield Finding(what=f"checkpoint {name}", status="skipped", message=message)
        elif task.last_checkpoint.path:
            yield _checkpoint(run, name, task.last_checkpoint.path)
        if task.evaluates is not None:
            yield from _evaluated(run, task)
        if task.state is State.SUCCEEDED:
            yield _outputs(run, facts, name)


def _journal(run: RunFolder) -> Finding:
    reader = JournalReader(run.journal)
    try:
        records = reader.poll()
    except WindlassError as error:
        return Finding(what="journal", status="failed", message=error.message)
    if reader.num_damaged:
        message = f"{count(reader.num_damaged, 'damaged record')} among {len(records)}"
        return Finding(what="journal", status="failed", message=message)
    return Finding(what="journal", status="ok", message=count(len(records), "record"))


def _plan(plan: Plan, facts: RunFacts) -> Finding:
    if facts.plan_hash and facts.plan_hash != plan.plan_hash:
        message = f"plan.json has the hash {plan.plan_hash[:12]}, but the run started with {facts.plan_hash[:12]}"
        return Finding(what="plan", status="failed", message=message)
    return Finding(what="plan", status="ok", message=plan.plan_hash[:12])


def _provenance(run: RunFolder) -> dict[str, object] | None:
    try:
        return run.provenance()
    except WindlassError:
        return None


def _data(run: RunFolder, name: str, pin: DataPin, base: Path | None, home: Home) -> Finding:
    if base is None:
        return Finding(
            what=f"data {name}", status="skipped", message="its path is unknown: there is no provenance.json"
        )
    found = f"{count(pin.num_files, 'file')}, {pin.size_bytes:,} bytes, sha256:{pin.digest[:12]}"
    outcome = _outcome(
        f"data {name}",
        found,
        lambda: check_data(pin, base, cache=home.cache / "digests", places=DataPlaces.of(home.path)),
    )
    if outcome.status == "failed" and is_imported(run) and name not in archived_data(run):
        return Finding(what=f"data {name}", status="skipped", message=f"not included in the archive; {outcome.message}")
    return outcome


def _outcome(what: str, message: str, check: Callable[[], object]) -> Finding:
    try:
        check()
    except WindlassError as error:
        return Finding(what=what, status="failed", message=error.message)
    return Finding(what=what, status="ok", message=message)


def _checkpoint(run: RunFolder, task: str, recorded: str) -> Finding:
    what, path = f"checkpoint {task}", path_here(run, recorded)
    if not path.exists() and (recorded in removed(run) or (is_imported(run) and not run.checkpoints(task).exists())):
        why = removed(run).get(recorded, "the archive does not include checkpoints")
        return Finding(what=what, status="skipped", message=f"{recorded} was removed: {why}")
    if not path.exists():
        return Finding(what=what, status="failed", message=f"{path} is missing; it was the last committed one")
    if not manifest_path(path).exists():
        return Finding(what=what, status="failed", message=f"{path} has lost its manifest")
    return _compared(what, str(path), lambda: _differences(path))


def _evaluated(run: RunFolder, task: TaskFacts) -> Iterator[Finding]:
    """Yield a finding for each evaluated checkpoint: whether its manifest is the one of the evaluation."""
    assert task.evaluates is not None  # checked by the caller
    for attempt in task.attempts.values():
        step, recorded = attempt.evaluates
        if not recorded or not attempt.evaluated_digest or attempt.end is None or attempt.end.cause != Cause.OK:
            continue
        what = f"checkpoint {task.evaluates.of} step {step}, evaluated by {task.name}"
        path = path_here(run, recorded)
        if run.is_mirrored or not path.exists():
            yield Finding(what=what, status="skipped", message=f"{recorded} is not on this machine any more")
            continue
        try:
            digest = read_manifest(path).digest
        except WindlassError as error:
            yield Finding(what=what, status="failed", message=error.message)
            continue
        if digest != attempt.evaluated_digest:
            message = f"its digest is {digest[:12]}, but {attempt.evaluated_digest[:12]} was evaluated"
            yield Finding(what=what, status="failed", message=message)
            continue
        yield _compared(what, f"sha256:{digest[:12]}", functools.partial(_differences, path))


def _differences(path: Path) -> list[tuple[str, str]]:
    return differences(path, read_manifest(path))


def _compared(what: str, message: str, compare: Callable[[], list[tuple[str, str]]]) -> Finding:
    try:
        found = compare()
    except WindlassError as error:
        return Finding(what=what, status="failed", message=error.message)
    if not found:
        return Finding(what=what, status="ok", message=message)
    listed = [f"{path}: {problem}" for path, problem in found[:_MAX_LISTED]]
    listed += [f"and {len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
    message = "\n".join([f"{len(found)} of its files differ", *listed])
    return Finding(what=what, status="failed", message=message, files=tuple(path for path, _ in found))


def _outputs(run: RunFolder, facts: RunFacts, task: str) -> Finding:
    what, folder = f"outputs {task}", run.out(task)
    try:
        manifest = outputs.read_manifest(folder)
    except NotFoundError:
        message = "not fetched from its site" if run.is_mirrored else "no manifest was written"
        return Finding(what=what, status="skipped", message=message)
    except WindlassError as error:
        return Finding(what=what, status="failed", message=error.message)
    recorded = facts.outputs.get(task)
    if recorded and recorded[3] != manifest.digest:
        message = f"the manifest has the digest {manifest.digest[:12]}, but the journal has {recorded[3][:12]}"
        return Finding(what=what, status="failed", message=message)
    summary = f"{count(len(manifest.entries), 'file')}, {manifest.num_bytes:,} bytes, sha256:{manifest.digest[:12]}"
    known = {(path.removeprefix(f"run/out/{task}/"), "missing") for path in left_out_of(run)}
    return _compared(
        what,
        summary,
        lambda: [
            found for each in outputs.verify(folder, manifest) if (found := (each.path, each.problem)) not in known
        ],
    )
