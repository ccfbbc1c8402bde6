"""Checks that the plan, journal, outputs, code and data of an imported run match."""

from __future__ import annotations

from pathlib import Path

from windlass.core.errors import PreconditionError, WindlassError
from windlass.pin.code.checkouts import checkout
from windlass.pin.code.packing import take_in_commit
from windlass.pin.data.pinning import pin_data
from windlass.plan.plan import Plan
from windlass.record.manifest import read_manifest
from windlass.record.state import RunFacts
from windlass.runs.archive.contents import Contents
from windlass.runs.archive.origin import archived_data
from windlass.runs.archive.stream import damaged
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

__all__ = ["check_arrived"]


def check_arrived(run: RunFolder, path: Path, home: Home, contents: Contents, *, pack: Path) -> None:
    """Check that the parts of an imported run match each other; their bytes were checked before.

    The pack's commit is added to windlass's repository, which is harmless if the run is then refused.

    Args:
        path: the archive, for messages.

    Raises:
        PreconditionError: the parts do not match (`archive-damaged`), or another version made the run (`other-version`).
    """
    try:
        plan, facts = Plan.from_data(run.plan()), run.facts()
        provenance = run.provenance()
    except WindlassError as error:
        if error.code == "other-version":
            raise
        raise damaged(path, error.message) from error
    if facts.run != contents.run_id or facts.plan_hash != plan.plan_hash:
        raise damaged(path, f"its journal belongs to run {facts.run} or to another plan")
    if not facts.state.is_terminal:
        raise damaged(path, f"its run is {facts.state} and has not ended")
    if facts.num_damaged:
        raise damaged(path, f"{facts.num_damaged} records of its journal are damaged")
    code, pinned = provenance.get("code"), plan.pins.code
    is_of_plan = isinstance(code, dict) and (code.get("commit"), code.get("tree")) == (pinned.commit, pinned.tree)
    if provenance.get("plan_hash") != plan.plan_hash or not is_of_plan:
        raise damaged(path, "its provenance belongs to another plan")
    _check_outputs(run, path, facts, contents)
    _check_code(run, path, plan, home, pack)
    _check_data(run, path, plan)


def _check_outputs(run: RunFolder, path: Path, facts: RunFacts, contents: Contents) -> None:
    """Check that the journal, the manifests and the file list agree on the outputs."""
    items = {item.path: item for item in contents.items}
    for task, recorded in facts.outputs.items():
        try:
            manifest = read_manifest(run.out(task), is_beside=True)
        except WindlassError as error:
            raise damaged(path, error.message) from error
        if manifest.digest != recorded[3]:
            raise damaged(path, f"the outputs of {task} differ from those in its journal")
        for entry in manifest.entries:
            name = f"run/out/{task}/{entry.path}"
            item = items.get(name)
            if name not in contents.left_out and (item is None or item.sha256 != entry.sha256):
                raise damaged(path, f"{name} differs from the file that the job recorded")


def _check_code(run: RunFolder, path: Path, plan: Plan, home: Home, pack: Path) -> None:
    """Check that the checkout matches the pinned commit; restore it if it was removed."""
    if not pack.exists():
        return
    store = home.cache / "code.git"
    take_in_commit(plan.pins.code, pack, store)
    try:
        checkout(plan.pins.code, Path("/nonexistent"), run.code, store=store)
    except WindlassError as error:
        raise damaged(path, error.message) from error


def _check_data(run: RunFolder, path: Path, plan: Plan) -> None:
    for name, place in archived_data(run).items():
        if (
            name not in plan.pins.data
            or pin_data(name, f"file:{place}", run.path).digest != plan.pins.data[name].digest
        ):
            raise PreconditionError(
                f"{path}: data `{name}` differs from what the run pinned",
                hint="copy the archive again from its source",
                code="archive-damaged",
            )
