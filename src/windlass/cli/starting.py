"""Creation of a new experiment's folder from a template, with a first commit that can be pinned."""

from __future__ import annotations

import os
import re
from pathlib import Path

from windlass.core.errors import PreconditionError, UsageError
from windlass.core.files import write_atomic
from windlass.core.names import NAME_RULE, is_name
from windlass.core.process import Completed, run

__all__ = ["TEMPLATES", "commit_files", "repository_of", "write_template"]

_FOLDER = Path(__file__).parent / "templates"
TEMPLATES = ("hello", "torch-ddp", "empty")
_SUFFIX = ".in"
_DOTTED = {"gitignore": ".gitignore", "dockerignore": ".dockerignore"}
_DOCKER = "docker"
_IN_IMAGE = (
    "env: {image: Dockerfile}   # built from the commit; python, torch, ...: `windlass image ls --named`\nwhere: docker"
)
_AIMING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")


def write_template(template: str, folder: Path, *, in_image: bool = False) -> list[str]:
    """Write a template's files, all or none; the experiment is named after the folder.

    Args:
        in_image: add a Dockerfile, and run the experiment in its image.

    Returns:
        Names of the files.

    Raises:
        UsageError: the folder's name is not a valid experiment name.
        PreconditionError: a file already exists; nothing was written.
    """
    name = folder.name
    if not is_name(name):
        suggestion = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64] or "experiment"
        message = f"invalid experiment name `{name}`: {NAME_RULE}"
        raise UsageError(message, hint=f"windlass init {suggestion}", code="invalid-name")
    if folder.exists() and not folder.is_dir():
        raise PreconditionError(f"{folder} is a file", hint="choose another name", code="already-exists")
    package = re.sub(r"[-_.]+", "-", name)
    files = {
        _DOTTED.get(stem := path.name.removesuffix(_SUFFIX), stem): path.read_text(encoding="utf-8")
        for part in (template, *([_DOCKER] if in_image else []))
        for path in sorted((_FOLDER / part).iterdir())
        if path.name.endswith(_SUFFIX)
    }
    present = [each for each in files if (folder / each).exists()]
    if present:
        raise PreconditionError(
            f"{folder} already has {', '.join(present)}; nothing was written",
            hint="choose another name, or move the existing files",
            code="already-exists",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for each, text in files.items():
        content = text.replace("{{name}}", name).replace("{{package}}", package)
        if in_image and each == "experiment.yaml":
            content = _run_in_image(content)
        write_atomic(folder / each, content.encode(), is_durable=False)
    return list(files)


def _run_in_image(experiment: str) -> str:
    """Return the experiment's text, changed so that the image is its environment."""
    lines = [line for line in experiment.split("\n") if not line.startswith(("env:", "where:"))]
    at = next((number for number, line in enumerate(lines) if line.startswith("code:")), 0)
    return "\n".join([*lines[: at + 1], _IN_IMAGE, *lines[at + 1 :]])


def repository_of(folder: Path) -> Path | None:
    """Return the root of the repository that contains a folder, or None outside a repository.

    Raises:
        PreconditionError: git is not installed.
    """
    done = _git(folder, "rev-parse", "--show-toplevel")
    return Path(done.stdout.strip()) if done.code == 0 and done.stdout.strip() else None


def commit_files(folder: Path, files: list[str]) -> str:
    """Create a repository in a folder, commit the files and return the short commit.

    Without a configured git user the author of this commit is `windlass`.

    Raises:
        PreconditionError: git failed.
    """
    _must(folder, "init", "--quiet")
    _must(folder, "add", "--force", "--", *files)
    identity = [] if _git(folder, "var", "GIT_COMMITTER_IDENT").code == 0 and _has_name(folder) else _OURS
    _must(
        folder,
        *identity,
        "-c",
        "commit.gpgSign=false",
        "commit",
        "--quiet",
        "--no-verify",
        "-m",
        f"Start {folder.name}",
    )
    return _must(folder, "rev-parse", "--short", "HEAD").stdout.strip()


_OURS = ["-c", "user.name=windlass", "-c", "user.email=windlass@localhost"]


def _has_name(folder: Path) -> bool:
    is_in_environment = bool(os.environ.get("GIT_AUTHOR_EMAIL") and os.environ.get("GIT_COMMITTER_EMAIL"))
    return is_in_environment or _git(folder, "config", "user.email").code == 0


def _must(folder: Path, *arguments: str) -> Completed:
    done = _git(folder, *arguments)
    if done.code != 0:
        said = done.stderr.strip().split("\n")[-1]
        raise PreconditionError(
            f"`git {' '.join(arguments[:1])}` failed in {folder}: {said}",
            hint=f"the files were written; commit them yourself, or use `windlass launch {folder}/experiment.yaml --snapshot`",
            code="git-failed",
        )
    return done


def _git(folder: Path, *arguments: str) -> Completed:
    environment = {name: value for name, value in os.environ.items() if name not in _AIMING}
    return run(["git", *arguments], cwd=folder, env={**environment, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"})
