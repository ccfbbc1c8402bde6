"""Is what lies there still what ran? Each part of a run compared with what was recorded of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windlass.core.errors import NotFoundError, WindlassError
from windlass.pin import DataPin, check_data, checkout
from windlass.plan import Plan
from windlass.record.journal import JournalReader
from windlass.record.manifest import differences, manifest_path, read_manifest
from windlass.record.state import RunFacts, State
from windlass.runs import outputs
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

__all__ = ["Finding", "verify"]

_MAX_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one part of a run."""

    what: str
    status: Literal["ok", "failed", "skipped"]
    message: str


def verify(run: RunFolder) -> Iterator[Finding]:
    """One finding per part: journal, plan, code, data, checkpoints, outputs. Reads every byte of them."""
    yield _journal(run)
    try:
        facts = run.facts()
        plan = Plan.from_data(run.plan())
    except WindlassError as error:
        yield Finding(what="plan", status="failed", message=error.message)
        return
    yield _plan(plan, facts)
    provenance = _provenance(run)
    base = Path(str(provenance.get("base", "."))) if provenance is not None else None
    yield _code(run, plan, base)
    for name, pin in plan.pins.data.items():
        yield _data(name, pin, base)
    for name, task in facts.tasks.items():
        if task.last_checkpoint[1]:
            yield _checkpoint(name, Path(task.last_checkpoint[1]))
        if task.state is State.SUCCEEDED:
            yield _outputs(run, facts, name)


def _journal(run: RunFolder) -> Finding:
    reader = JournalReader(run.journal)
    try:
        records = reader.poll()
    except WindlassError as error:
        return Finding(what="journal", status="failed", message=error.message)
    if reader.num_damaged:
        message = f"{reader.num_damaged} damaged among {len(records)}"
        return Finding(what="journal", status="failed", message=message)
    return Finding(what="journal", status="ok", message=f"{len(records)} records")


def _plan(plan: Plan, facts: RunFacts) -> Finding:
    if facts.plan_hash and facts.plan_hash != plan.plan_hash:
        message = f"plan.json has the hash {plan.plan_hash[:12]}, the run was started with {facts.plan_hash[:12]}"
        return Finding(what="plan", status="failed", message=message)
    return Finding(what="plan", status="ok", message=plan.plan_hash[:12])


def _provenance(run: RunFolder) -> dict[str, object] | None:
    try:
        return run.provenance()
    except WindlassError:
        return None


def _code(run: RunFolder, plan: Plan, base: Path | None) -> Finding:
    pin = plan.pins.code
    if pin.kind in ("in-place", "none"):
        return Finding(what="code", status="skipped", message=f"it was not pinned ({pin.kind})")
    if not run.code.is_dir():
        return Finding(what="code", status="skipped", message="the run's checkout was cleared away")
    folder = (base or Path.cwd()) / str(plan.experiment.get("code", "."))
    store = Home.default().cache / "code.git"
    commit = f"commit {pin.commit[:12]}, tree" if pin.kind == "commit" else pin.kind
    return _outcome("code", f"{commit} {pin.tree[:12]}", lambda: checkout(pin, folder, run.code, store=store))


def _data(name: str, pin: DataPin, base: Path | None) -> Finding:
    if base is None:
        return Finding(what=f"data {name}", status="skipped", message="no provenance says where it was")
    found = f"{_files(pin.num_files)}, {pin.size_bytes:,} bytes, sha256:{pin.digest[:12]}"
    return _outcome(f"data {name}", found, lambda: check_data(pin, base))


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


def _outcome(what: str, message: str, check: Callable[[], object]) -> Finding:
    try:
        check()
    except NotFoundError as error:
        return Finding(what=what, status="failed", message=error.message)
    except WindlassError as error:
        return Finding(what=what, status="failed", message=error.message)
    return Finding(what=what, status="ok", message=message)


def _checkpoint(task: str, path: Path) -> Finding:
    what = f"checkpoint {task}"
    if not path.exists():
        return Finding(what=what, status="failed", message=f"{path} is gone; it was the last one committed")
    if not manifest_path(path).exists():
        return Finding(what=what, status="failed", message=f"{path} has no manifest any more")
    return _compared(what, str(path), lambda: differences(path, read_manifest(path)))


def _compared(what: str, message: str, compare: Callable[[], list[tuple[str, str]]]) -> Finding:
    try:
        found = compare()
    except WindlassError as error:
        return Finding(what=what, status="failed", message=error.message)
    if not found:
        return Finding(what=what, status="ok", message=message)
    listed = [f"{path}: {problem}" for path, problem in found[:_MAX_LISTED]]
    listed += [f"and {len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
    return Finding(what=what, status="failed", message="\n".join([f"{len(found)} of its files differ", *listed]))


def _outputs(run: RunFolder, facts: RunFacts, task: str) -> Finding:
    what, folder = f"outputs {task}", run.out(task)
    try:
        manifest = outputs.read_manifest(folder)
    except NotFoundError:
        return Finding(what=what, status="skipped", message="no manifest was written")
    except WindlassError as error:
        return Finding(what=what, status="failed", message=error.message)
    recorded = facts.outputs.get(task)
    if recorded and recorded[3] != manifest.digest:
        message = f"the manifest has the digest {manifest.digest[:12]}, the journal says {recorded[3][:12]}"
        return Finding(what=what, status="failed", message=message)
    summary = f"{_files(len(manifest.entries))}, {manifest.num_bytes:,} bytes, sha256:{manifest.digest[:12]}"
    return _compared(what, summary, lambda: [(each.path, each.problem) for each in outputs.verify(folder, manifest)])
