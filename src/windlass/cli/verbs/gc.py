"""`windlass gc`: clear away what nobody needs; never anything of a run in motion."""

from __future__ import annotations

from collections.abc import Sequence

import click

from windlass.cli.moments import as_duration
from windlass.cli.phrases import count, size
from windlass.cli.screen import emit, emit_json, tell
from windlass.cli.verb import json_option, verb
from windlass.core.errors import UsageError
from windlass.launch.clearing import Kept, Removal, left_overs, old_environments, old_runs, remove
from windlass.launch.retaining import enforce, half_removed, retained
from windlass.runs.home import Home

__all__ = ["gc_command"]

_DAY_S = 86400.0
_WEEK_S = 7 * _DAY_S


@verb(
    "windlass gc --runs --older-than 30d --dry-run",
    "windlass gc --yes",
    "windlass gc --environments",
    "windlass gc --reindex",
    name="gc",
)
@click.option("--runs", is_flag=True, help="Remove runs that ended, with checkpoints and outputs.")
@click.option(
    "--environments",
    is_flag=True,
    help="Remove built environments that only runs that succeeded used, none within a day (or --older-than).",
)
@click.option("--images", is_flag=True, help="Remove images that were built here and that no run's record pins.")
@click.option("--data", is_flag=True, help="Remove prepared data and versions in the store that no run's record pins.")
@click.option("--drop-pinned", is_flag=True, help="With --images, --data: also what only runs that succeeded pin.")
@click.option("--older-than", callback=as_duration, metavar="TIME", help="Only what ended or was used before: `30d`.")
@click.option("--reindex", is_flag=True, help="Read every run again and rebuild the index.")
@click.option(
    "--yes", "-y", is_flag=True, help="Remove what the rules of runs (`retain:`) say; without it they are only told."
)
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
@json_option
def gc_command(
    runs: bool,
    environments: bool,
    images: bool,
    data: bool,
    drop_pinned: bool,
    older_than: float | None,
    reindex: bool,
    yes: bool,
    dry_run: bool,
    is_json: bool,
) -> None:
    """Clear away old runs and environments, carry out what runs say about themselves, and rebuild the index.

    Without an option: left-overs of killed commands, secrets of runs that ended, indexes of homes that are gone go at
    once. What the rules of runs (`retain:` in the experiment) would remove is told, with the reason, and goes with --yes.

    A checkpoint that a failed or stopped run goes on from stays whatever its rules say, and so does everything of a run
    in motion. An environment that a failed or stopped run used stays, since `retry` and `resume` go on with it; it goes
    when such runs are gone (`--runs`). An image or data that the record of a run pins stays too; `--drop-pinned` gives up
    what only runs that succeeded pin. Images, data and prepared data that were used within a week stay (or --older-than).
    """
    home = Home.default()
    _check(has_runs=runs, has_caches=environments or images or data, older_than=older_than)
    if drop_pinned and not (images or data):
        raise UsageError("`--drop-pinned` of what?", hint="add --images or --data", code="usage")
    if yes and dry_run:
        raise UsageError("--yes and --dry-run contradict each other", hint="windlass gc --dry-run", code="usage")
    seen = _found(home, has_runs=runs, has_environments=environments, older_than_s=older_than)
    gone = [each for each in seen if isinstance(each, Removal) and (dry_run or remove(each, home))]
    if images or data:
        from windlass.launch.clearing_caches import clear  # lazy: beside its one use

        age_s = _WEEK_S if older_than is None else older_than
        cleared = list(
            clear(home, has_images=images, has_data=data, older_than_s=age_s, drops_pinned=drop_pinned, is_dry=dry_run)
        )
        seen += cleared
        gone += [each for each in cleared if isinstance(each, Removal)]
    ruled = [each for each in retained(home) if each.path not in {removal.path for removal in gone}]
    due = [each for each in ruled if isinstance(each, Removal)]
    due = [each for each in due if enforce(each, home)] if yes else due
    kept = [each for each in (*seen, *ruled) if isinstance(each, Kept)]
    num_indexed = _reindex(home) if reindex and not dry_run else None
    if is_json:
        emit_json("windlass.gc/1", _as_data(gone, due, kept, dry_run=dry_run, is_enforced=yes, num_indexed=num_indexed))
        return
    for word, removals in (("would remove" if dry_run else "removed", gone), ("removed" if yes else "due", due)):
        for removal in removals:
            why = f"  {removal.why}" if removal.why else ""
            emit(f"{word:<13} {removal.kind:<12} {removal.path}  {size(removal.num_bytes)}{why}")
    for each in kept:
        emit(f"{'kept':<13} {each.kind:<12} {each.path}  {each.why}")
    if num_indexed is not None:
        tell(f"the index holds {count(num_indexed, 'run')}")
    freed = sum(removal.num_bytes for removal in (*gone, *(due if yes else ())))
    tell(f"{'would free' if dry_run else 'freed'} {size(freed)}" if gone or (due and yes) else "nothing to remove")
    if due and not yes:
        tell(f"by their rules {size(sum(each.num_bytes for each in due))} are due: windlass gc --yes removes them")


def _check(*, has_runs: bool, has_caches: bool, older_than: float | None) -> None:
    if has_runs and older_than is None:
        raise UsageError(
            "`--runs` needs `--older-than`, so that no run goes by mistake",
            hint="windlass gc --runs --older-than 30d --dry-run",
            code="missing-argument",
        )
    if older_than is not None and not (has_runs or has_caches):
        raise UsageError("`--older-than` of what?", hint="add --runs, --environments, --images or --data", code="usage")


def _as_data(
    gone: Sequence[Removal],
    due: Sequence[Removal],
    kept: Sequence[Kept],
    *,
    dry_run: bool,
    is_enforced: bool,
    num_indexed: int | None,
) -> dict[str, object]:
    removed = [*gone, *(due if is_enforced else ())]
    return {
        "is_dry_run": dry_run,
        "removed": [_removal_data(each) for each in removed],
        "due": [] if is_enforced else [_removal_data(each) for each in due],
        "kept": [{"kind": each.kind, "path": str(each.path), "why": each.why} for each in kept],
        "bytes": sum(each.num_bytes for each in removed),
        "num_indexed": num_indexed,
    }


def _removal_data(removal: Removal) -> dict[str, object]:
    return {"kind": removal.kind, "path": str(removal.path), "bytes": removal.num_bytes, "why": removal.why}


def _found(home: Home, *, has_runs: bool, has_environments: bool, older_than_s: float | None) -> list[Removal | Kept]:
    found: list[Removal | Kept] = [*left_overs(home), *half_removed(home)]
    if has_runs and older_than_s is not None:
        found += old_runs(home, older_than_s)
    if has_environments:
        found += old_environments(home, _DAY_S if older_than_s is None else older_than_s)
    return found


def _reindex(home: Home) -> int:
    from windlass.runs.index import Index  # lazy: SQLite, only for this option

    return Index(home).rebuild()
