"""`windlass site`: add, list, show and check the places that run experiments."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from windlass.cli.completion.files import complete_file, complete_partition, complete_sites
from windlass.cli.screen import emit_json, emit_page, paint, printable, table, tell
from windlass.cli.times import as_duration
from windlass.cli.verb import Family, examples_page, json_option, verb
from windlass.core.errors import PreconditionError, UsageError, WindlassError
from windlass.core.phrases import count
from windlass.runs.home import Home

__all__ = ["site_command"]

_LOCAL = "local"
_TIMEOUT_S = 600.0


@click.group(
    cls=Family,
    name="site",
    epilog=examples_page("windlass site add isambard --ssh me@login.example.org", "windlass site check isambard"),
)
def site_command() -> None:
    """Describe the places that run experiments: add, ls, show, check.

    A site is a file, WINDLASS_HOME/sites/NAME.yaml. Experiments do not mention it: `windlass launch FILE --on NAME`.
    """


@verb(
    "windlass site add isambard --ssh me@login.example.org",
    "windlass site add mine --from frontier fs.shared=/projects/abc scheduler.account=abc123",
    "windlass site add mine --replace    # probe again, keep your other settings",
    "windlass site add lab --from ai2-weka beaker.workspace=lab/main fs.shared=/weka/bucket/me",
    name="add",
)
@click.argument("name", shell_complete=complete_sites)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--ssh", default="", metavar="USER@HOST", help="Login node. [default: this machine]")
@click.option(
    "--from",
    "base",
    default="",
    metavar="SITE",
    shell_complete=complete_sites,
    help="Start from this profile. [default: the shipped profile NAME]",
)
@click.option("--no-probe", is_flag=True, help="Do not contact the site; write only known facts.")
@click.option("--replace", is_flag=True, help="Overwrite an edited profile.")
@json_option
def add_command(
    name: str, overrides: tuple[str, ...], ssh: str, base: str, no_probe: bool, replace: bool, is_json: bool
) -> None:
    """Query a Slurm machine or Beaker and write its site profile.

    Queries partitions, limits, accounts, QOS, GPUs, folders and programs in one round trip, without changing anything
    there. KEY=VALUE sets a field of the profile.
    """
    from windlass.launcher.sites.add import add_site  # lazy: here and below, not for a help page

    path = add_site(
        name,
        Home.default().path,
        ssh=ssh,
        base=base,
        overrides=overrides,
        today=_today(),
        is_probed=not no_probe,
        replaces_edits=replace,
    )
    if not is_json:
        tell(f"wrote {path}")
    _show(name, is_json)
    tell(f"next: windlass site check {name}")


@verb("windlass site ls", "windlass site ls --json", name="ls")
@json_option
def ls_command(is_json: bool) -> None:
    """List your sites and the shipped ones."""
    from windlass.cli.render.site import check_word
    from windlass.launcher.sites.check_history import last_check
    from windlass.sites.store import find_site, profile_path, site_names

    home = Home.default().path
    rows: list[tuple[str, str, str, str, str]] = [(_LOCAL, "windlass", "this machine", "", "")]
    for name in site_names(home):
        whose = "windlass" if profile_path(name, home) == profile_path(name, None) else "yours"
        last = last_check(home, name)
        checked = f"{last.at[:10]} {check_word(last)}" if last is not None else "never"
        try:
            profile = find_site(name, home)
            about = profile.about or count(len(profile.partitions), "partition")
            rows.append((name, whose, f"ssh {profile.ssh}" if profile.ssh else "", checked, about))
        except WindlassError as error:
            rows.append((name, whose, "", checked, f"broken: {error.message} [{error.code}]"))
    if is_json:
        keys = ("name", "from", "reached_by", "checked", "about")
        emit_json("windlass.sites/1", {"sites": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    lines = table(("site", "from", "access", "checked", "about"), rows)
    emit_page(paint(lines[0], "bold"))
    for line in lines[1:]:
        emit_page(printable(line))


@verb("windlass site show isambard", "windlass site show isambard --json", name="show")
@click.argument("name", shell_complete=complete_sites)
@json_option
def show_command(name: str, is_json: bool) -> None:
    """Show the facts about a site, their sources, and the last check."""
    _show(name, is_json)


def _show(name: str, is_json: bool) -> None:
    from windlass.cli.render.site import site_data, site_lines
    from windlass.launcher.sites.check_history import last_check
    from windlass.sites.store import find_site, profile_path

    home = Home.default().path
    _refuse_local(name)
    profile = find_site(name, home)
    path = profile_path(name, home) or Path(name)
    last = last_check(home, name)
    if is_json:
        emit_json("windlass.site/1", site_data(profile, path, last, _today()))
        return
    for line in site_lines(profile, path, last, _today()):
        emit_page(line)


@verb(
    "windlass site check isambard",
    "windlass site check isambard --nodes 4 --python /projects/abc/env/bin/python",
    name="check",
)
@click.argument("name", shell_complete=complete_sites)
@click.option(
    "--nodes", type=click.IntRange(min=1, max=64), default=2, show_default=True, help="Nodes of the larger job."
)
@click.option("--partition", default="", shell_complete=complete_partition, help="Partition. [default: the profile's]")
@click.option(
    "--python",
    default="",
    metavar="PATH",
    shell_complete=complete_file,
    help="Interpreter with torch, for an all-reduce across nodes.",
)
@click.option("--timeout", callback=as_duration, metavar="TIME", help="Cancel after TIME. [default: 10m]")
@json_option
def check_command(name: str, nodes: int, partition: str, python: str, timeout: float | None, is_json: bool) -> int:
    """Check a site with real jobs on one node and on two. Exits with 8 if a check fails.

    Checks the shared folder, modules, Python, GPUs, clocks, ports between nodes and, with --python, an all-reduce. For a
    Beaker site it checks the account, workspace, secrets and image, without queueing a job.

    Results are kept; `windlass site show` shows the latest.
    """
    from windlass.backends.site_shell import shell_for
    from windlass.cli.render.site import check_data, check_lines, check_word
    from windlass.launcher.sites.check import check_site
    from windlass.sites.store import find_site
    from windlass.supervise.archive import ensure_archive

    _refuse_local(name)
    home = Home.default()
    profile = find_site(name, home.path)
    is_beaker = profile.kind == "beaker"
    if is_beaker:
        from windlass.launcher.beaker.site import check_beaker_site

        check = check_beaker_site(profile, home=home.path)
    else:
        check = check_site(
            profile,
            home=home.path,
            shell=shell_for(profile),
            archive=ensure_archive(home.cache / "archives"),
            num_nodes=nodes,
            partition=partition,
            python=python,
            timeout_s=timeout or _TIMEOUT_S,
            tell=tell,
        )
    if is_json:
        emit_json("windlass.site-check/1", check_data(check))
    else:
        for line in check_lines(check, nowhere="beaker" if is_beaker else "login"):
            emit_page(line)
        tell(f"{name}: {check_word(check)}")
    return 0 if check.is_ok else PreconditionError.exit_code


def _refuse_local(name: str) -> None:
    if name == _LOCAL:
        hint = "`windlass doctor` checks this machine"
        raise UsageError("`local` is this machine, which has no profile", hint=hint, code="unknown-site")


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


for _member in (add_command, ls_command, show_command, check_command):
    site_command.add_command(_member)
