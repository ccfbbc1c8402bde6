"""Retention rules of runs (`retain:`): listing and removing what the rules no longer keep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.errors import NotFoundError, WindlassError
from windlass.core.files import disk_bytes, lock
from windlass.core.units import format_duration
from windlass.launcher.gc.removable import Kept, Removal, has_processes, remove
from windlass.record.manifest import FILE_SUFFIX
from windlass.record.state import RunFacts, State
from windlass.runs import metrics, retention
from windlass.runs.archive.origin import imported_at
from windlass.runs.home import Home
from windlass.runs.retention import RetentionDecision
from windlass.runs.store import RunFolder, run_ids
from windlass.supervise.remote.checkpoint_files import CheckpointFiles, delete, move_to_trash, newest_intact, trashed

if TYPE_CHECKING:
    from windlass.launcher.gc.at_site import SiteCheckpoints

__all__ = ["enforce", "half_removed", "retained"]


def retained(home: Home, now: float | None = None) -> Iterator[Removal | Kept]:
    """Yield what the rules of all runs would remove and keep. Changes nothing.

    Active runs are skipped. Rules on checkpoints at a site query the site; if it cannot be reached, they are kept.
    """
    now = time.time() if now is None else now
    reader = retention.readers(home)
    for run_id in run_ids(home):
        run = RunFolder(home.runs / run_id)
        try:
            yield from _of_run(run, home, reader, now)
        except NotFoundError:
            continue  # no plan, so no rules
        except WindlassError as error:
            yield Kept(path=run.path, why=error.message, kind="run")


def _of_run(
    run: RunFolder, home: Home, reader: Callable[[RunFolder, str], str], now: float
) -> Iterator[Removal | Kept]:
    rules = retention.rules_of(run)
    if rules == type(rules)():
        return
    facts = run.facts()
    if not facts.tasks or not facts.state.is_terminal:
        return
    if rules.ttl is not None and (passed := now - max(facts.ended_at, imported_at(run))) >= rules.ttl:
        user = reader(run, "")
        if not user:
            why = f"ended {format_duration(int(passed))} ago, retain.ttl={format_duration(rules.ttl)}"
            yield Removal(kind="run", path=run.path, num_bytes=disk_bytes(run.path), why=why)
            return
        yield Kept(path=run.path, why=f"{user} reads data from it", kind="run")
    if rules.checkpoints == type(rules.checkpoints)():
        return
    for task in facts.tasks:
        there = _there(run, task, home)
        site = there.site if there is not None else ""
        for decision in _decisions(run, facts, task, reader, there):
            path = decision.held.path
            if decision.is_kept:
                yield Kept(path=path, why=decision.why, kind="checkpoint", site=site)
                continue
            size = there.sizes[path] if there is not None else disk_bytes(path)
            yield Removal(
                kind="checkpoint", path=path, num_bytes=size, why=decision.why, run=run.id, task=task, site=site
            )


def _there(run: RunFolder, task: str, home: Home) -> SiteCheckpoints | None:
    """Return a task's checkpoints at its site; None for a local run.

    Raises:
        WindlassError: the site cannot be reached, or has no server.
    """
    if not run.is_mirrored:
        return None
    from windlass.launcher.gc.at_site import checkpoints_at_site  # lazy: most runs are on this machine

    return checkpoints_at_site(run, task, retention.pattern_of(run, task), home)


def _decisions(
    run: RunFolder, facts: RunFacts, task: str, reader: Callable[[RunFolder, str], str], there: SiteCheckpoints | None
) -> list[RetentionDecision]:
    rule = retention.rules_of(run).checkpoints
    if rule.last is None and rule.best is None:
        return []
    held = retention.held_checkpoints(run, task) if there is None else list(there.held)
    needed = _needed(run, facts, task, held, reader, there)
    series = metrics.series(run, rule.best.metric, task) if rule.best is not None else ()
    return retention.choose(held, rule, series, needed=needed)


def _needed(
    run: RunFolder,
    facts: RunFacts,
    task: str,
    held: Sequence[CheckpointFiles],
    reader: Callable[[RunFolder, str], str],
    there: SiteCheckpoints | None,
) -> Mapping[Path, str]:
    """Return the checkpoints that are kept regardless of the rules, with the reasons."""
    user = reader(run, f"checkpoints/{task}")
    if user:
        return {each.path: f"{user} reads data from it" for each in held}
    later = [name for name, other in facts.tasks.items() if task in other.after and other.state is not State.SUCCEEDED]
    if later:
        return {each.path: f"task {later[0]} may still read it" for each in held}
    if facts.tasks[task].state is State.SUCCEEDED:
        return {}
    newest = newest_intact(held) if there is None else there.whole
    return {} if newest is None else {newest.path: f"the {facts.tasks[task].state} task can continue from it"}


def enforce(removal: Removal, home: Home) -> bool:
    """Remove an item that `retained` listed; return False if it must stay after all. Blocking; idempotent."""
    if removal.kind == "run":
        is_read = retention.readers(home)(RunFolder(removal.path), "")
        return not is_read and remove(removal, home)
    run, task = RunFolder(home.runs / removal.run), removal.task
    with lock(run.path / "reconcile.lock"):
        facts = run.facts()
        if not facts.state.is_terminal or has_processes(run):
            return False
        there = _there(run, task, home)
        decisions = _decisions(run, facts, task, retention.readers(home), there)
        chosen = [each for each in decisions if each.held.path == removal.path and not each.is_kept]
        if not chosen:
            return False
        retention.note_removed(run, chosen, time.time())
        if there is not None:
            there.remove([each.held for each in chosen])
            return True
        move_to_trash(removal.path, run.checkpoints(task))
    for left in trashed(run.checkpoints(task)):
        delete(left)
    return True


def half_removed(home: Home) -> Iterator[Removal]:
    """Yield checkpoints whose removal was interrupted: hidden folders and orphaned manifests."""
    for run_id in run_ids(home):
        run = RunFolder(home.runs / run_id)
        for path in [left for folder in sorted(run.path.glob("checkpoints/*")) for left in trashed(folder)]:
            yield Removal(kind="left-over", path=path, num_bytes=disk_bytes(path), why="its removal was interrupted")
        for path in map(Path, retention.removed(run)):
            manifest = path.with_name(path.name + FILE_SUFFIX)
            if manifest.exists() and not path.exists():
                yield Removal(
                    kind="left-over", path=manifest, num_bytes=disk_bytes(manifest), why="its file is missing"
                )
