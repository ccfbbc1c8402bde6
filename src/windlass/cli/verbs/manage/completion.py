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
    from windlass.cli.completion.shells import script  # lazy: only this verb needs it

    emit(script(shell))
