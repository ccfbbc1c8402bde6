"""`windlass beaker`: work with plain Beaker experiments, spec files and your account."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.compat.beaker_account import config_command, secret_command, workspace_command
from windlass.cli.compat.beaker_files import export_command, import_command
from windlass.cli.compat.beaker_logs import fetch_command, logs_command
from windlass.cli.screen import emit, emit_json, emit_page, printable, table, tell
from windlass.cli.verb import Family, examples_page, json_option, verb
from windlass.core.errors import UsageError

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService

__all__ = ["beaker_command"]


@click.group(
    cls=Family,
    name="beaker",
    epilog=examples_page("windlass beaker submit spec.yaml", "windlass beaker logs --follow me/my-experiment"),
)
def beaker_command() -> None:
    """Work with Beaker: submit, show, logs, fetch, why, cancel, secret, workspace, groups, config, import, export.

    EXPERIMENT is a plain Beaker experiment, by id or AUTHOR/NAME. To run a windlass experiment on Beaker use
    `windlass launch FILE --on SITE`; then `show`, `logs` and `stop` work as for every run.
    """


@verb(
    "windlass beaker submit spec.yaml",
    "windlass beaker submit spec.yaml --workspace lab/main --name first-try",
    name="submit",
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--workspace", default="", metavar="ORGANIZATION/NAME", help="Default: the one in Beaker's config file.")
@click.option("--name", default="", help="Name of the experiment. Default: from its first task.")
@json_option
def submit_command(file: Path, workspace: str, name: str, is_json: bool) -> None:
    """Submit a Beaker spec file (YAML or JSON, v2) unchanged.

    Checks first that its secrets exist. Never creates a second experiment, even if Beaker's reply is lost.
    """
    from windlass.backends.beaker.submit import check_secrets, secrets_in  # lazy: not for a help page
    from windlass.compat.spec.reading import read_spec, sent

    read = read_spec(file)
    spec = sent(read.data)
    for note in read.notes:
        tell(f"note: {printable(note)}")
    service = _service()
    if secrets_in(spec):
        check_secrets(spec, service.secrets(workspace), workspace)
    made = service.create(spec, workspace=workspace, name=name)
    if is_json:
        emit_json("windlass.beaker.submit/1", {"id": made.id, "name": made.name, "url": made.url})
        return
    emit(made.id)
    tell(f"{made.name}: {made.url}")
    tell(f"next: windlass beaker logs --follow {made.id}")


@verb("windlass beaker show 01J8XYZ", "windlass beaker show me/my-experiment --json", name="show")
@click.argument("experiment")
@json_option
def show_command(experiment: str, is_json: bool) -> None:
    """Show an experiment's state and the jobs of every replica."""
    from windlass.cli.render.beaker import as_data, page  # lazy: not for a help page

    service = _service()
    seen = service.get(experiment)
    jobs = service.jobs(seen.id)
    if is_json:
        emit_json("windlass.beaker.show/1", as_data(seen, jobs))
        return
    for line in page(seen, jobs):
        emit_page(printable(line))


@verb("windlass beaker why 01J8XYZ", name="why")
@click.argument("experiment")
def why_command(experiment: str) -> None:
    """Show why an experiment is not running yet, as reported by Beaker's scheduler."""
    service = _service()
    seen = service.get(experiment)
    reasons = service.why(seen.id)
    for reason in reasons:
        emit_page(printable(reason))
    if not reasons:
        tell(f"not waiting: {seen.status.replace('_', ' ')}")


@verb("windlass beaker cancel 01J8XYZ --reason 'wrong learning rate'", name="cancel")
@click.argument("experiments", nargs=-1, required=True, metavar="EXPERIMENT...")
@click.option("--reason", default="", help="Reason, added to the experiment's description.")
@click.option("-d", "--detach", is_flag=True, help="Do not wait for the jobs to end.")
def cancel_command(experiments: tuple[str, ...], reason: str, detach: bool) -> None:
    """Cancel experiments and wait for their jobs to end."""
    service = _service()
    for experiment in experiments:
        service.cancel(experiment, reason, waits=not detach)
        tell(f"{experiment} is cancelled" if not detach else f"requested cancellation of {experiment}")


@verb("windlass beaker groups", "windlass beaker groups --add sweep-3 01J8XYZ 01J8ABC", name="groups")
@click.argument("experiments", nargs=-1, metavar="[EXPERIMENT]...")
@click.option(
    "--add", "group", default="", metavar="GROUP", help="Add the experiments to this group; created if needed."
)
@click.option("--workspace", default="", metavar="ORGANIZATION/NAME", help="Default: the one in Beaker's config file.")
def groups_command(experiments: tuple[str, ...], group: str, workspace: str) -> None:
    """List the groups of a workspace, or add experiments to one."""
    if bool(group) != bool(experiments):
        hint = "windlass beaker groups --add GROUP EXPERIMENT..."
        raise UsageError("`--add` and the experiments must be given together", hint=hint, code="usage")
    service = _service()
    if group:
        ids = [service.get(experiment).id for experiment in experiments]
        tell(f"added {len(ids)} to {service.add_to_group(group, ids, workspace=workspace).name}")
        return
    rows = [(printable(one.name), one.id, printable(one.description)) for one in service.groups(workspace)]
    if not rows:
        tell("no groups yet; add one with `windlass beaker groups --add GROUP EXPERIMENT...`")
        return
    for line in table(("name", "id", "description"), rows):
        emit_page(line)


def _service() -> BeakerService:
    from windlass.backends.beaker.service import BeakerService  # lazy: not for a help page

    return BeakerService()


for _member in (
    submit_command,
    show_command,
    logs_command,
    fetch_command,
    why_command,
    cancel_command,
    secret_command,
    workspace_command,
    groups_command,
    config_command,
    import_command,
    export_command,
):
    beaker_command.add_command(_member)
