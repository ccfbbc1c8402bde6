"""`windlass gc`: delete old runs, caches and unused data, but nothing that an active run needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from windlass.cli.completion.files import complete_sites
from windlass.cli.screen import emit_json, emit_page, tell
from windlass.cli.times import as_duration
from windlass.cli.verb import json_option, verb
from windlass.core.errors import PreconditionError, UsageError, WindlassError
from windlass.core.phrases import count, size
from windlass.core.units import format_duration
from windlass.launcher.gc.removable import Kept, Removal, leftovers, old_environments, old_runs, remove
from windlass.launcher.gc.retain_rules import enforce, half_removed, retained
from windlass.runs.home import Home

__all__ = ["gc_command"]

_DAY_S = 86400.0
_WEEK_S = 7 * _DAY_S


@verb(
    "windlass gc --runs --older-than 30d --dry-run",
    "windlass gc --runs --older-than 30d --yes    # does not ask",
    "windlass gc --yes",
    "windlass gc --environments",
    "windlass gc --environments --on isambard --older-than 30d",
    "windlass gc --reindex",
    name="gc",
)
@click.option("--runs", is_flag=True, help="Remove ended runs with checkpoints and outputs.")
@click.option(
    "--environments",
    is_flag=True,
    help="Remove environments used only by succeeded runs, and not within a day.",
)
@click.option("--images", is_flag=True, help="Remove images built here that no run pins.")
@click.option("--data", is_flag=True, help="Remove prepared data and stored versions that no run pins.")
@click.option(
    "--drop-pinned", is_flag=True, help="With --images or --data: also remove items that only succeeded runs pin."
)
@click.option(
    "--on",
    "site",
    default="",
    metavar="SITE",
    shell_complete=complete_sites,
    help="With --environments: environments built at this site.",
)
@click.option(
    "--older-than",
    callback=as_duration,
    metavar="TIME",
    help="Only items that ended or were last used longer ago than TIME: `30d`.",
)
@click.option("--reindex", is_flag=True, help="Rebuild the index from all runs.")
@click.option(
    "--yes",
    "-y",
    is_flag=True,
    help="Remove without asking, including files that the runs' `retain:` rules list.",
)
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@json_option
def gc_command(
    *,
    runs: bool,
    environments: bool,
    images: bool,
    data: bool,
    drop_pinned: bool,
    site: str,
    older_than: float | None,
    reindex: bool,
    yes: bool,
    dry_run: bool,
    is_json: bool,
) -> None:
    """Delete old runs, environments, images and data, apply the retention rules of runs, or rebuild the index.

    Without options, removes leftovers of killed commands, secrets of ended runs and indexes of deleted homes, and lists
    what the retention rules of runs (`retain:` in the experiment) would remove; --yes removes that too. --runs asks
    first; without a terminal it needs --yes.

    Always kept: everything of active runs; the checkpoint that a failed or stopped run would continue from; environments
    of failed or stopped runs, until those runs are removed; images and data that a run pins, unless --drop-pinned is
    given and only succeeded runs pin them; images and data used within a week (or --older-than).

    A run at an ssh site is removed there and here; it is kept while the site cannot be reached.
    """
    home = Home.default()
    _check(has_runs=runs, has_caches=environments or images or data, older_than=older_than)
    if drop_pinned and not (images or data):
        raise UsageError("`--drop-pinned` needs `--images` or `--data`", hint="add --images or --data", code="usage")
    if yes and dry_run:
        raise UsageError("`--yes` and `--dry-run` are mutually exclusive", hint="windlass gc --dry-run", code="usage")
    if site:
        if runs or images or data or reindex or yes or not environments:
            message = "`--on` works only with `--environments`; files of a run at a site are removed with the run"
            raise UsageError(message, hint=f"windlass gc --environments --on {site} --dry-run", code="usage")
        _at_site(site, home, older_than, dry_run=dry_run, is_json=is_json)
        return
    found = _found(home, has_runs=runs, has_environments=environments, older_than_s=older_than)
    if not (yes or dry_run):
        _ask([each for each in found if isinstance(each, Removal) and each.kind == "run"], older_than)
    seen = [
        each if dry_run or isinstance(each, Kept) else _removed(each, lambda it: remove(it, home)) for each in found
    ]
    gone = [each for each in seen if isinstance(each, Removal)]
    if images or data:
        cleared = _caches(home, older_than, has_images=images, has_data=data, drops_pinned=drop_pinned, is_dry=dry_run)
        seen += cleared
        gone += [each for each in cleared if isinstance(each, Removal)]
    ruled = [each for each in retained(home) if each.path not in {removal.path for removal in gone}]
    due = [each for each in ruled if isinstance(each, Removal)]
    enforced = [_removed(each, lambda it: enforce(it, home)) for each in due] if yes else []
    due = [each for each in enforced if isinstance(each, Removal)] if yes else due
    kept = list(dict.fromkeys(each for each in (*seen, *ruled, *enforced) if isinstance(each, Kept)))
    num_indexed = _reindex(home) if reindex and not dry_run else None
    if is_json:
        emit_json("windlass.gc/1", _as_data(gone, due, kept, dry_run=dry_run, is_enforced=yes, num_indexed=num_indexed))
        return
    _emit(gone, kept, due=due, word="would remove" if dry_run else "removed", due_word="removed" if yes else "due")
    if num_indexed is not None:
        tell(f"indexed {count(num_indexed, 'run')}")
    freed = sum(removal.num_bytes for removal in (*gone, *(due if yes else ())))
    tell(f"{'would free' if dry_run else 'freed'} {size(freed)}" if gone or (due and yes) else "nothing to remove")
    if due and not yes:
        tell(f"retention rules would free {size(sum(each.num_bytes for each in due))}: run `windlass gc --yes`")


def _ask(runs: Sequence[Removal], older_than_s: float | None) -> None:
    """Ask the user to confirm the removal of runs; return at once if there are none.

    Raises:
        PreconditionError: the user declined, or there is no terminal.
    """
    if not runs:
        return
    what = f"{count(len(runs), 'run')} with checkpoints and outputs, {size(sum(each.num_bytes for each in runs))}"
    line = f"windlass gc --runs --older-than {format_duration(older_than_s or 0.0)}"
    if not _can_answer():
        hint = f"`{line} --dry-run` lists them, `{line} --yes` removes them"
        raise PreconditionError(f"cannot ask to remove {what} without a terminal", hint=hint, code="not-confirmed")
    for each in runs:
        tell(f"  {_place(each)}  {size(each.num_bytes)}")
    if not click.confirm(f"remove {what}?", err=True):
        raise PreconditionError("nothing was removed", hint=f"{line} --dry-run", code="not-confirmed")


def _can_answer() -> bool:
    """Return whether there is a terminal on which to ask."""
    return sys.stdin is not None and sys.stdin.isatty()


def _removed(removal: Removal, carry_out: Callable[[Removal], bool]) -> Removal | Kept:
    """Remove one item; if that fails, return it as kept with the reason."""
    try:
        is_gone, why = carry_out(removal), "it is active, needed, or cannot be checked"
    except WindlassError as error:
        is_gone, why = False, error.message
    if is_gone:
        return removal
    return Kept(path=removal.path, why=why, kind=removal.kind, site=removal.site)


def _caches(
    home: Home, older_than: float | None, *, has_images: bool, has_data: bool, drops_pinned: bool, is_dry: bool
) -> list[Removal | Kept]:
    from windlass.launcher.gc.caches import clear  # lazy: only for this option

    age_s = _WEEK_S if older_than is None else older_than
    return list(
        clear(
            home,
            has_images=has_images,
            has_data=has_data,
            older_than_s=age_s,
            drops_pinned=drops_pinned,
            is_dry=is_dry,
        )
    )


def _at_site(name: str, home: Home, older_than: float | None, *, dry_run: bool, is_json: bool) -> None:
    from windlass.launcher.gc.at_site import collect_environments  # lazy: only for this option
    from windlass.sites.store import find_site

    age_s = _DAY_S if older_than is None else older_than
    found = list(collect_environments(home, find_site(name, home.path), age_s, is_dry=dry_run))
    gone = [each for each in found if isinstance(each, Removal)]
    kept = [each for each in found if isinstance(each, Kept)]
    if is_json:
        emit_json("windlass.gc/1", _as_data(gone, [], kept, dry_run=dry_run, is_enforced=True, num_indexed=None))
        return
    _emit(gone, kept, word="would remove" if dry_run else "removed")
    freed = size(sum(each.num_bytes for each in gone))
    tell(f"{'would free' if dry_run else 'freed'} {freed} at {name}" if gone else "nothing to remove")


def _emit(
    gone: Sequence[Removal], kept: Sequence[Kept], *, word: str, due: Sequence[Removal] = (), due_word: str = "due"
) -> None:
    for said, removals in ((word, gone), (due_word, due)):
        for removal in removals:
            why = f"  {removal.why}" if removal.why else ""
            emit_page(f"{said:<13} {removal.kind:<12} {_place(removal)}  {size(removal.num_bytes)}{why}")
    for each in kept:
        emit_page(f"{'kept':<13} {each.kind:<12} {_place(each)}  {each.why}")


def _place(each: Removal | Kept) -> str:
    return f"{each.site}:{each.path}" if each.site else str(each.path)


def _check(*, has_runs: bool, has_caches: bool, older_than: float | None) -> None:
    if has_runs and older_than is None:
        raise UsageError(
            "`--runs` needs `--older-than`, so that no run is removed by mistake",
            hint="windlass gc --runs --older-than 30d --dry-run",
            code="missing-argument",
        )
    if older_than is not None and not (has_runs or has_caches):
        raise UsageError(
            "`--older-than` needs what to remove", hint="add --runs, --environments, --images or --data", code="usage"
        )


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
        "kept": [{"kind": each.kind, "path": str(each.path), "why": each.why, **_site_data(each)} for each in kept],
        "bytes": sum(each.num_bytes for each in removed),
        "num_indexed": num_indexed,
    }


def _removal_data(removal: Removal) -> dict[str, object]:
    data = {"kind": removal.kind, "path": str(removal.path), "bytes": removal.num_bytes, "why": removal.why}
    return {**data, **_site_data(removal)}


def _site_data(each: Removal | Kept) -> dict[str, object]:
    """Return the site of an item, or nothing if the item is on this machine."""
    return {"site": each.site} if each.site else {}


def _found(home: Home, *, has_runs: bool, has_environments: bool, older_than_s: float | None) -> list[Removal | Kept]:
    found: list[Removal | Kept] = [*leftovers(home), *half_removed(home)]
    if has_runs and older_than_s is not None:
        found += old_runs(home, older_than_s)
    if has_environments:
        found += old_environments(home, _DAY_S if older_than_s is None else older_than_s)
    return found


def _reindex(home: Home) -> int:
    from windlass.runs.index import Index  # lazy: SQLite, only for this option

    return Index(home).rebuild()
