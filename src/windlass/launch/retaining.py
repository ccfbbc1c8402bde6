"""Carry out the rules of runs (`retain:`): what they would remove, and removing it; never what somebody still needs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from windlass.core.errors import NotFoundError, WindlassError
from windlass.core.files import lock
from windlass.core.units import format_duration
from windlass.launch.clearing import Kept, Removal, has_processes, num_bytes, remove
from windlass.record.manifest import FILE_SUFFIX
from windlass.record.state import RunFacts, State
from windlass.runs import metrics, retention
from windlass.runs.archived import imported_at
from windlass.runs.home import Home
from windlass.runs.retention import Decision, Held
from windlass.runs.store import RunFolder, run_ids

__all__ = ["enforce", "half_removed", "retained"]

_ASIDE = ".windlass-gc-"


def retained(home: Home, now: float | None = None) -> Iterator[Removal | Kept]:
    """What the rules of all runs say about what is on the disk; changes nothing, and reads the checkpoints that stay.

    A run in motion and one that lives at another site are left alone and not even named.
    """
    now = time.time() if now is None else now
    reader = retention.readers(home)
    for run_id in run_ids(home):
        run = RunFolder(home.runs / run_id)
        try:
            yield from _of_run(run, reader, now)
        except NotFoundError:
            continue  # it has no plan, and so no rules
        except WindlassError as error:
            yield Kept(path=run.path, why=error.message, kind="run")


def _of_run(run: RunFolder, reader: Callable[[RunFolder, str], str], now: float) -> Iterator[Removal | Kept]:
    rules = retention.rules_of(run)
    if rules == type(rules)() or run.is_mirrored:
        return
    facts = run.facts()
    if not facts.tasks or not facts.state.is_terminal:
        return
    if rules.ttl is not None and (passed := now - max(facts.ended_at, imported_at(run))) >= rules.ttl:
        user = reader(run, "")
        if not user:
            why = f"ended {format_duration(int(passed))} ago, retain.ttl={format_duration(rules.ttl)}"
            yield Removal(kind="run", path=run.path, num_bytes=num_bytes(run.path), why=why)
            return
        yield Kept(path=run.path, why=f"{user} takes data from it", kind="run")
    for task in facts.tasks:
        for decision in _decisions(run, facts, task, reader):
            path = decision.held.path
            if decision.is_kept:
                yield Kept(path=path, why=decision.why, kind="checkpoint")
            else:
                yield Removal(kind="checkpoint", path=path, num_bytes=_size(path), why=decision.why)


def _decisions(run: RunFolder, facts: RunFacts, task: str, reader: Callable[[RunFolder, str], str]) -> list[Decision]:
    rule = retention.rules_of(run).checkpoints
    if rule.last is None and rule.best is None:
        return []
    held = retention.held_checkpoints(run, task)
    needed = _needed(run, facts, task, held, reader)
    series = metrics.series(run, rule.best.metric, task) if rule.best is not None else ()
    return retention.choose(held, rule, series, needed=needed)


def _needed(
    run: RunFolder, facts: RunFacts, task: str, held: Sequence[Held], reader: Callable[[RunFolder, str], str]
) -> Mapping[Path, str]:
    """Checkpoints that stay whatever the rules say, and why."""
    user = reader(run, f"checkpoints/{task}")
    if user:
        return {each.path: f"{user} takes data from it" for each in held}
    later = [name for name, other in facts.tasks.items() if task in other.after and other.state is not State.SUCCEEDED]
    if later:
        return {each.path: f"task {later[0]} may still read it" for each in held}
    if facts.tasks[task].state is State.SUCCEEDED:
        return {}
    newest = retention.newest_whole(held)
    return {} if newest is None else {newest.path: f"the {facts.tasks[task].state} task goes on from it"}


def enforce(removal: Removal, home: Home) -> bool:
    """Remove what `retained` named; False when the rules or the run say otherwise by now. Blocking; idempotent."""
    if removal.kind == "run":
        is_read = retention.readers(home)(RunFolder(removal.path), "")
        return not is_read and remove(removal, home)
    run = RunFolder(removal.path.parents[len(removal.path.relative_to(home.runs).parts) - 2])
    task = removal.path.relative_to(run.path).parts[1]
    with lock(run.path / "keeper.lock"):
        facts = run.facts()
        if not facts.state.is_terminal or has_processes(run):
            return False
        decisions = _decisions(run, facts, task, retention.readers(home))
        chosen = [each for each in decisions if each.held.path == removal.path and not each.is_kept]
        if not chosen:
            return False
        retention.note_removed(run, chosen, time.time())
        _put_aside(removal.path, run.checkpoints(task))
    for left in _asides(run.checkpoints(task)):
        _delete(left)
    return True


def _put_aside(path: Path, folder: Path) -> None:
    """Take a checkpoint out of everybody's sight in one step; of a file, its manifest follows."""
    aside = folder / f"{_ASIDE}{os.getpid()}-{path.name}"
    os.rename(path, aside)
    manifest = path.with_name(path.name + FILE_SUFFIX)
    if manifest.exists():
        os.rename(manifest, aside.with_name(aside.name + FILE_SUFFIX))


def _asides(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_ASIDE}*"))


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def half_removed(home: Home) -> Iterator[Removal]:
    """Checkpoints whose removal was cut off: out of sight already, or a file's manifest that was left alone."""
    for run_id in run_ids(home):
        run = RunFolder(home.runs / run_id)
        for path in sorted(run.path.glob(f"checkpoints/*/{_ASIDE}*")):
            yield Removal(kind="left-over", path=path, num_bytes=_size(path), why="its removal was cut off")
        for path in map(Path, retention.removed(run)):
            manifest = path.with_name(path.name + FILE_SUFFIX)
            if manifest.exists() and not path.exists():
                yield Removal(kind="left-over", path=manifest, num_bytes=_size(manifest), why="its file is gone")


def _size(path: Path) -> int:
    return num_bytes(path) if path.is_dir() else path.lstat().st_blocks * 512
