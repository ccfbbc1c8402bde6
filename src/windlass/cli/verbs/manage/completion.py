"""`windlass completion SHELL`: shell completion of verbs, options, runs and override paths."""

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
    """Print the completion script for bash, zsh or fish."""
    from windlass.cli.completion.shells import script  # lazy: only for this verb

    emit(script(shell))
