"""`windlass init`: create a small experiment."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from windlass.cli.screen import tell
from windlass.cli.starting import TEMPLATES, commit_files, repository_of, write_template
from windlass.cli.verb import verb
from windlass.core.errors import PreconditionError, UsageError

__all__ = ["init_command"]


@verb(
    "windlass init hello && cd hello && windlass launch experiment.yaml",
    "windlass init ddp --template torch-ddp",
    "windlass init hello --docker",
    name="init",
)
@click.argument("name", type=click.Path(path_type=Path))
@click.option("--template", type=click.Choice(TEMPLATES), default="hello", show_default=True, help="Template.")
@click.option("--docker", is_flag=True, help="Add a Dockerfile that installs the lock file, then the code.")
def init_command(name: Path, template: str, docker: bool) -> None:
    """Create a folder with a small experiment that runs unchanged.

    Outside a git repository it also creates one and commits, so that there is a commit to pin. Overwrites nothing.
    """
    if docker and template != "hello":
        hint = "windlass init NAME --docker; then change the code, and `uv add` what it needs"
        raise UsageError(f"`--docker` needs a lock file, but the template `{template}` has none", hint=hint)
    folder = name.expanduser().absolute()
    files = write_template(template, folder, in_image=docker)
    for file in files:
        tell(f"  {name / file}")
    _commit(folder, name, files)
    if template == "torch-ddp":
        tell("note: the Python on the PATH must have torch; experiment.yaml shows how to pin an environment instead")
    go = "" if folder == Path.cwd() else f"cd {shlex.quote(str(name))} && "
    tell(f"next: {go}windlass launch experiment.yaml")


def _commit(folder: Path, name: Path, files: list[str]) -> None:
    """Make a first commit or, in an existing repository, print the command for it."""
    try:
        top = repository_of(folder)
        if top is None:
            tell(f"created a git repository, first commit {commit_files(folder, files)}")
            return
    except PreconditionError as error:
        tell(f"note: {error.message}; without a commit use `windlass launch experiment.yaml --snapshot`")
        return
    where = shlex.quote(str(name))
    tell(f"{folder} is in the repository {top}; commit it with:")
    tell(f"  git add {where} && git commit -m 'Start {folder.name}' -- {where}")
