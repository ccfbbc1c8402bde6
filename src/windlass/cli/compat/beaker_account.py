"""`windlass beaker secret`, `workspace` and `config`: the account, and what its workspaces hold."""

from __future__ import annotations

import click

from windlass.cli.completion.files import complete_secret
from windlass.cli.screen import emit, emit_page, printable, tell
from windlass.cli.verb import Family, examples_page, verb

__all__ = ["config_command", "secret_command", "workspace_command"]

_WORKSPACE = click.option(
    "--workspace", default="", metavar="ORGANIZATION/NAME", help="Default: that of Beaker's config file."
)


@click.group(
    cls=Family, name="secret", epilog=examples_page("windlass beaker secret ls", "windlass beaker secret push HF_TOKEN")
)
def secret_command() -> None:
    """Secrets of a workspace of Beaker: ls, push."""


@verb("windlass beaker secret ls", name="ls")
@_WORKSPACE
def secret_ls_command(workspace: str) -> None:
    """List the names of a workspace's secrets; values are never shown."""
    from windlass.backends.beaker.service import BeakerService  # lazy: a help page needs none of it

    names = BeakerService().secrets(workspace)
    for name in names:
        emit(printable(name))
    if not names:
        tell("no secrets yet: windlass beaker secret push NAME")


@verb(
    "windlass beaker secret push HF_TOKEN",
    "windlass beaker secret push HF_TOKEN --as me_HF_TOKEN --workspace lab/main",
    name="push",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_secret)
@_WORKSPACE
@click.option("--as", "there", default="", metavar="NAME", help="Its name at Beaker, where that differs.")
def secret_push_command(names: tuple[str, ...], workspace: str, there: str) -> None:
    """Copy secrets of yours (`windlass secret ls`) into a workspace, whose members can then use them."""
    from windlass.backends.beaker.service import BeakerService  # lazy: a help page needs none of it
    from windlass.core.errors import UsageError
    from windlass.runs.home import Home
    from windlass.secrets import open_secrets

    if there and len(names) > 1:
        raise UsageError("--as gives one name, and several secrets are named", hint="one call for each", code="usage")
    values = open_secrets(Home.default().path).require(names)
    service = BeakerService()
    for name, value in values.items():
        service.write_secret(there or name, value, workspace=workspace)
        tell(f"{there or name} is in {workspace or service.default_workspace()}")


@click.group(
    cls=Family,
    name="workspace",
    epilog=examples_page("windlass beaker workspace create lab/mine", "windlass beaker workspace default lab/mine"),
)
def workspace_command() -> None:
    """Workspaces of Beaker: create, budget, default."""


@verb("windlass beaker workspace create lab/mine --budget lab/research", name="create")
@click.argument("name", metavar="ORGANIZATION/NAME")
@click.option("--budget", default="", metavar="ORGANIZATION/NAME", help="What its experiments are charged to.")
@click.option("--description", default="", help="What it is for.")
def workspace_create_command(name: str, budget: str, description: str) -> None:
    """Make a workspace; one that is there already is taken, and gets the budget that is named."""
    from windlass.backends.beaker.service import BeakerService  # lazy: a help page needs none of it

    made = BeakerService().create_workspace(name, description=description, budget=budget)
    emit(made.id)
    tell(f"next: windlass beaker workspace default {name}")


@verb("windlass beaker workspace budget lab/mine lab/research", name="budget")
@click.argument("name", metavar="WORKSPACE")
@click.argument("budget")
def workspace_budget_command(name: str, budget: str) -> None:
    """Give a workspace the budget that its experiments are charged to where they name none."""
    from windlass.backends.beaker.service import BeakerService  # lazy: a help page needs none of it

    BeakerService().set_budget(name, budget)
    tell(f"experiments of {name} are charged to {budget}")


@verb("windlass beaker workspace default lab/mine", name="default")
@click.argument("name", metavar="WORKSPACE", default="")
def workspace_default_command(name: str) -> None:
    """Show the workspace that is meant where none is named, or set it in Beaker's config file. It must exist."""
    from windlass.backends.beaker.account import set_default_workspace  # lazy: a help page needs none of it
    from windlass.backends.beaker.service import BeakerService

    service = BeakerService()
    if not name:
        emit(service.default_workspace())
        return
    service.workspace(name)
    tell(f"{name} is the default workspace, in {set_default_workspace(name)}")


@click.group(cls=Family, name="config", epilog=examples_page("windlass beaker config check"))
def config_command() -> None:
    """Beaker's own config file: check."""


@verb("windlass beaker config check", name="check")
def config_check_command() -> None:
    """Say which account and addresses are used and where they come from, and ask Beaker whether it takes the token."""
    from windlass.backends.beaker.account import read_account  # lazy: a help page needs none of it
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
