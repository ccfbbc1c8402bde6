"""`windlass gc`: clear away what nobody needs; never anything of a run in motion."""

from __future__ import annotations

import click

from windlass.cli.clearing import Kept, Removal, left_overs, old_environments, old_runs, remove
from windlass.cli.moments import as_duration
from windlass.cli.phrases import count, size
from windlass.cli.screen import emit, emit_json, tell
from windlass.cli.verb import json_option, verb
from windlass.core.errors import UsageError
from windlass.runs.home import Home

__all__ = ["gc_command"]

_DAY_S = 86400.0


@verb(
    "windlass gc --runs --older-than 30d --dry-run",
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
@click.option("--older-than", callback=as_duration, metavar="TIME", help="Only what ended or was used before: `30d`.")
@click.option("--reindex", is_flag=True, help="Read every run again and rebuild the index.")
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
@json_option
def gc_command(
    runs: bool, environments: bool, older_than: float | None, reindex: bool, dry_run: bool, is_json: bool
) -> None:
    """Clear away old runs and environments, and rebuild the index.

    Without an option: left-overs of killed commands, secrets of runs that ended, indexes of homes that are gone.

    An environment that a failed or stopped run used stays, since `retry` and `resume` go on with it; it goes when such
    runs are gone (`--runs`).
    """
    home = Home.default()
    if runs and older_than is None:
        raise UsageError(
            "`--runs` needs `--older-than`, so that no run goes by mistake",
            hint="windlass gc --runs --older-than 30d --dry-run",
            code="missing-argument",
        )
    if older_than is not None and not (runs or environments):
        raise UsageError("`--older-than` of what?", hint="add --runs or --environments", code="usage")
    seen = _found(home, has_runs=runs, has_environments=environments, older_than_s=older_than)
    kept = [each for each in seen if isinstance(each, Kept)]
    found = [each for each in seen if isinstance(each, Removal) and (dry_run or remove(each, home))]
    for removal in [] if is_json else found:
        emit(
            f"{'would remove' if dry_run else 'removed':<13} {removal.kind:<12} {removal.path}  {size(removal.num_bytes)}"
        )
    for each in [] if is_json else kept:
        emit(f"{'kept':<13} {'environment':<12} {each.path}  {each.why}")
    freed = sum(removal.num_bytes for removal in found)
    num_indexed = _reindex(home) if reindex and not dry_run else None
    if is_json:
        removed = [{"kind": each.kind, "path": str(each.path), "bytes": each.num_bytes} for each in found]
        content = {
            "is_dry_run": dry_run,
            "removed": removed,
            "kept": [{"path": str(each.path), "why": each.why} for each in kept],
            "bytes": freed,
            "num_indexed": num_indexed,
        }
        emit_json("windlass.gc/1", content)
        return
    if num_indexed is not None:
        tell(f"the index holds {count(num_indexed, 'run')}")
    tell(f"{'would free' if dry_run else 'freed'} {size(freed)}" if found else "nothing to remove")


def _found(home: Home, *, has_runs: bool, has_environments: bool, older_than_s: float | None) -> list[Removal | Kept]:
    found: list[Removal | Kept] = list(left_overs(home))
    if has_runs and older_than_s is not None:
        found += old_runs(home, older_than_s)
    if has_environments:
        found += old_environments(home, _DAY_S if older_than_s is None else older_than_s)
    return found


def _reindex(home: Home) -> int:
    from windlass.runs.index import Index  # lazy: SQLite, only for this option

    return Index(home).rebuild()
