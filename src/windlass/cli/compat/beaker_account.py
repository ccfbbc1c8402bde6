"""`windlass beaker secret`, `workspace` and `config`: the Beaker account and its workspaces."""

from __future__ import annotations

import click

from windlass.cli.completion.files import complete_secret
from windlass.cli.screen import emit, emit_page, printable, tell
from windlass.cli.verb import Family, examples_page, verb

__all__ = ["config_command", "secret_command", "workspace_command"]

_WORKSPACE = click.option(
    "--workspace", default="", metavar="ORGANIZATION/NAME", help="Default: the one in Beaker's config file."
)


@click.group(
    cls=Family, name="secret", epilog=examples_page("windlass beaker secret ls", "windlass beaker secret push HF_TOKEN")
)
def secret_command() -> None:
    """Manage the secrets of a Beaker workspace: ls, push."""


@verb("windlass beaker secret ls", name="ls")
@_WORKSPACE
def secret_ls_command(workspace: str) -> None:
    """List the names of a workspace's secrets, never their values."""
    from windlass.backends.beaker.service import BeakerService  # lazy: not for a help page

    names = BeakerService().secrets(workspace)
    for name in names:
        emit(printable(name))
    if not names:
        tell("no secrets yet; add one with `windlass beaker secret push NAME`")


@verb(
    "windlass beaker secret push HF_TOKEN",
    "windlass beaker secret push HF_TOKEN --as me_HF_TOKEN --workspace lab/main",
    name="push",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_secret)
@_WORKSPACE
@click.option("--as", "there", default="", metavar="NAME", help="Name of the secret at Beaker, if it differs.")
def secret_push_command(names: tuple[str, ...], workspace: str, there: str) -> None:
    """Copy secrets from your vault (`windlass secret ls`) to a workspace; its members can then use them."""
    from windlass.backends.beaker.service import BeakerService  # lazy: not for a help page
    from windlass.core.errors import UsageError
    from windlass.runs.home import Home
    from windlass.secrets.lookup import open_secrets

    if there and len(names) > 1:
        raise UsageError(
            "`--as` takes a single secret, but several were given",
            hint="push each secret with its own command",
            code="usage",
        )
    values = open_secrets(Home.default().path).require(names)
    service = BeakerService()
    for name, value in values.items():
        service.write_secret(there or name, value, workspace=workspace)
        tell(f"pushed {there or name} to {workspace or service.default_workspace()}")


@click.group(
    cls=Family,
    name="workspace",
    epilog=examples_page("windlass beaker workspace create lab/mine", "windlass beaker workspace default lab/mine"),
)
def workspace_command() -> None:
    """Manage Beaker workspaces: create, budget, default."""


@verb("windlass beaker workspace create lab/mine --budget lab/research", name="create")
@click.argument("name", metavar="ORGANIZATION/NAME")
@click.option(
    "--budget", default="", metavar="ORGANIZATION/NAME", help="Budget that the workspace's experiments are charged to."
)
@click.option("--description", default="", help="Description of the workspace.")
def workspace_create_command(name: str, budget: str, description: str) -> None:
    """Create a workspace, or set the budget of an existing one."""
    from windlass.backends.beaker.service import BeakerService  # lazy: not for a help page

    made = BeakerService().create_workspace(name, description=description, budget=budget)
    emit(made.id)
    tell(f"next: windlass beaker workspace default {name}")


@verb("windlass beaker workspace budget lab/mine lab/research", name="budget")
@click.argument("name", metavar="WORKSPACE")
@click.argument("budget")
def workspace_budget_command(name: str, budget: str) -> None:
    """Set the default budget for a workspace's experiments."""
    from windlass.backends.beaker.service import BeakerService  # lazy: not for a help page

    BeakerService().set_budget(name, budget)
    tell(f"experiments in {name} are charged to {budget} by default")


@verb("windlass beaker workspace default lab/mine", name="default")
@click.argument("name", metavar="WORKSPACE", default="")
def workspace_default_command(name: str) -> None:
    """Show the default workspace, or set it in Beaker's config file. The workspace must exist."""
    from windlass.backends.beaker.account import set_default_workspace  # lazy: not for a help page
    from windlass.backends.beaker.service import BeakerService

    service = BeakerService()
    if not name:
        emit(service.default_workspace())
        return
    service.workspace(name)
    tell(f"set the default workspace to {name} in {set_default_workspace(name)}")


@click.group(cls=Family, name="config", epilog=examples_page("windlass beaker config check"))
def config_command() -> None:
    """Inspect Beaker's own config file: check."""


@verb("windlass beaker config check", name="check")
def config_check_command() -> None:
    """Show the account and addresses in use with their origin, and check that Beaker accepts the token."""
    from windlass.backends.beaker.account import read_account  # lazy: not for a help page
    from windlass.backends.beaker.service import BeakerService

    account = read_account()
    for note in account.notes:
        tell(f"note: {printable(note)}")
    emit_page(f"config     {account.path or 'none'}")
    emit_page(f"token      from {account.source}")
    emit_page(f"addresses  {account.agent_address}, {account.rpc_address}")
    emit_page(f"workspace  {account.default_workspace or 'none'}")
    emit_page(f"user       {BeakerService(account).user()}")


for _member in (secret_ls_command, secret_push_command):
    secret_command.add_command(_member)
for _member in (workspace_create_command, workspace_budget_command, workspace_default_command):
    workspace_command.add_command(_member)
config_command.add_command(config_check_command)
