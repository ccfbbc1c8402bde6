"""`windlass completion SHELL`: the script that lets a shell complete verbs, options, run names and override paths."""

from __future__ import annotations

import click

from windlass.cli.screen import emit
from windlass.cli.verb import verb

__all__ = ["completion_command"]


@verb(
    'eval "$(windlass completion bash)"           # in ~/.bashrc',
    'eval "$(windlass completion zsh)"            # in ~/.zshrc',
    "windlass completion fish | source            # in ~/.config/fish/config.fish",
    name="completion",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import ShellComplete, get_completion_class  # lazy: only this verb needs it

    from windlass.cli.program import windlass

    found = get_completion_class(shell)
    assert found is not None  # click knows the three shells of the choice
    # The plain method: the one for bash starts a bash only to look at its version.
    emit(ShellComplete.source(found(windlass, {}, "windlass", "_WINDLASS_COMPLETE")).rstrip())
