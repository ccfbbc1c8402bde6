"""`windlass mason build SCRIPT`: build a branch's image for a launch script, and upload it to Beaker if missing.

Does the work of open-instruct's image wrapper: the tree must be clean, the image is called after the branch, its description
says `Git commit: <hash>`, and the script gets the image as its first argument.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.core.names import nearest

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService
    from windlass.pin.code.pinned import CodePin
    from windlass.runs.home import Home

__all__ = [
    "BeakerImages",
    "BranchImage",
    "BuildOptions",
    "ImageStore",
    "UploadedImage",
    "build_branch_image",
    "read_build",
    "run_script",
]

_PREFIX = "open-instruct-integration-test"
_CUDA_VERSIONS = ("12", "13")
_COMMIT = re.compile(r"Git commit: ([0-9a-f]{7,40})")
_SHORT = 9
_MAX_NAME = 127
_EXAMPLE = "windlass mason build [--cuda-version 12|13] SCRIPT [ARGUMENT]..."


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of `windlass mason build`.

    Attributes:
        workspace: the image's workspace; empty for the account's default.
        arguments: the script's arguments after the image.
    """

    script: Path
    arguments: tuple[str, ...] = ()
    cuda_version: str = "12"
    workspace: str = ""
    dockerfile: str = "Dockerfile"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedImage:
    """Image that exists at Beaker."""

    id: str
    description: str = ""


class ImageStore(Protocol):
    """Images in one Beaker account; methods may raise the Beaker backend's errors."""

    def user(self) -> str:
        """Return the user's name, the first part of the image's full name."""

    def find(self, name: str) -> UploadedImage | None:
        """Return the image with this full name, or None if there is none."""

    def unname(self, image: UploadedImage) -> None:
        """Remove an image's name, so that another can use it; it remains available by its id."""

    def upload(self, name: str, tag: str, *, workspace: str, description: str) -> None:
        """Upload an image from this machine's container engine; blocks for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchImage:
    """Image built for a branch.

    Attributes:
        name: the name passed to the script: `USER/NAME` at Beaker, else the engine's tag.
        is_built, is_uploaded: whether the image had to be built or uploaded.
    """

    name: str
    commit: str
    is_built: bool = False
    is_uploaded: bool = False


def read_build(words: Sequence[str]) -> BuildOptions:
    """Parse the words after `windlass mason build`; options come before the script.

    Raises:
        UsageError: no script, an unknown option, or an unknown CUDA version.
    """
    given: dict[str, str] = {}
    flags = {"--cuda-version": "cuda_version", "--workspace": "workspace", "--dockerfile": "dockerfile"}
    position = 0
    while position < len(words) and words[position].startswith("-"):
        flag, equals, value = words[position].partition("=")
        if flag not in flags:
            close = nearest(flag, flags)
            hint = f"did you mean `{close}`?" if close else _EXAMPLE
            raise UsageError(f"`{flag}` is not an option of `windlass mason build`", hint=hint, code="unknown-option")
        if not equals and position + 1 < len(words):
            position += 1
            value = words[position]
        given[flags[flag]] = value
        position += 1
    if position >= len(words):
        raise UsageError("`windlass mason build` needs a launch script", hint=_EXAMPLE, code="missing-argument")
    if given.get("cuda_version", "12") not in _CUDA_VERSIONS:
        message = f"`--cuda-version {given['cuda_version']}`: 12 or 13 is expected"
        raise UsageError(message, hint="--cuda-version 12", code="invalid-value")
    return BuildOptions(script=Path(words[position]), arguments=tuple(words[position + 1 :]), **given)


def build_branch_image(
    options: BuildOptions, folder: Path, home: Home, store: ImageStore | None, *, log: Callable[[str], None]
) -> BranchImage:
    """Ensure that the branch's image exists, and is at Beaker if there is an account.

    Idempotent; blocks while building.

    Nothing is built if Beaker has the image of this commit, or if the content was already built.

    Args:
        folder: the repository's folder.
        store: None to leave the image in this machine's engine.

    Raises:
        NotFoundError: there is no such script.
        PreconditionError: the tree is not clean, there is no repository, or the build fails.
        WindlassError: the engine or Beaker fails.
    """
    if not (folder / options.script).is_file():
        raise NotFoundError(f"no such script: `{options.script}`", hint="check the path", code="file-not-found")
    code = _clean_code(folder, home)
    tag = image_name(code.branch, options.cuda_version)
    if store is None:
        return BranchImage(name=tag, commit=code.commit, is_built=_build(options, code, folder, home, tag, log))
    name = f"{store.user()}/{tag}"
    present = store.find(name)
    if present is not None and _is_of(code.commit, present.description):
        log(f"Beaker has {name} of commit {code.commit[:_SHORT]}: nothing to build or upload")
        return BranchImage(name=name, commit=code.commit)
    is_built = _build(options, code, folder, home, tag, log)
    if present is not None:
        store.unname(present)
    description = f"Git commit: {code.commit[:_SHORT]}; CUDA: {options.cuda_version}"
    log(f"uploading {tag} to Beaker as {name} ({description})")
    store.upload(tag, tag, workspace=options.workspace, description=description)
    return BranchImage(name=name, commit=code.commit, is_built=is_built, is_uploaded=True)


def _clean_code(folder: Path, home: Home) -> CodePin:
    """Return the commit of a clean tree, to be recorded in the image."""
    from windlass.pin.code.pinning import pin_code  # lazy: imports git

    try:
        return pin_code(folder, store=home.cache / "code.git")
    except PreconditionError as error:
        if error.code != "dirty-tree":
            raise
        hint = "commit them, or list files that are not code in .gitignore: the image is built from a commit"
        raise PreconditionError(error.message, hint=hint, code=error.code, place=error.place) from error


def run_script(options: BuildOptions, image: BranchImage, folder: Path, environ: Mapping[str, str]) -> int:
    """Run the launch script with the image as its first argument, and return its exit code."""
    variables = {
        "UV_PROJECT_ENVIRONMENT": ".venv-launcher",
        **environ,
        "OPEN_INSTRUCT_CUDA_VERSION": options.cuda_version,
    }
    argv = ["bash", str(options.script), image.name, *options.arguments]
    return subprocess.run(argv, cwd=folder, env=variables, check=False).returncode


def image_name(branch: str, cuda_version: str) -> str:
    """Return the image name for a branch, as the wrapper script builds it.

    Beaker allows letters, digits, `-`, `_`, `.`.
    """
    plain = re.sub(r"[^a-z0-9._-]", "-", branch.lower()).removeprefix("-") or "detached"
    tail = f"-cuda{cuda_version}"
    return f"{_PREFIX}-{plain}"[: _MAX_NAME - len(tail)].rstrip("-._") + tail


def _is_of(commit: str, description: str) -> bool:
    found = _COMMIT.search(description)
    return found is not None and commit.startswith(found.group(1))


@dataclass(slots=True)
class _Heard:
    """Line handler that forwards lines and keeps them."""

    log: Callable[[str], None]
    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self.log(line)


def _build(
    options: BuildOptions, code: CodePin, folder: Path, home: Home, tag: str, log: Callable[[str], None]
) -> bool:
    """Ensure that this machine's engine has the image under its name; return whether this call built it."""
    from windlass.pin.image.engine import find_engine
    from windlass.pin.image.ensuring import ImageMaker, ensure_image  # lazy: imports engines
    from windlass.pin.image.pinning import ImageSource, pin_built

    engine = find_engine("")
    source = ImageSource(dockerfile=options.dockerfile, args=_arguments(options, code, folder))
    store = home.cache / "code.git"
    pin = pin_built(source, code, folder, engine=engine, has_own_code=True, network="host", store=store)
    maker = ImageMaker(engine=engine, code=code, folder=folder, cache=home.cache, store=store, log=log)
    built = ensure_image(pin, maker)
    done = engine.call("tag", built.image_id, tag)
    if done.code:
        message = f"{engine.kind} could not tag {built.image_id} as `{tag}`: {done.stderr.strip()}"
        raise PreconditionError(message, hint=f"windlass image show {code.commit[:_SHORT]}", code="engine-failed")
    return not built.is_hit


def _arguments(options: BuildOptions, code: CodePin, folder: Path) -> dict[str, str]:
    """Return those of the wrapper script's build arguments that the Dockerfile declares."""
    try:
        text = (folder / options.dockerfile).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        hint = "--dockerfile PATH names another one"
        raise NotFoundError(f"no such Dockerfile: `{options.dockerfile}`", hint=hint, code="file-not-found") from error
    given = {"GIT_COMMIT": code.commit[:_SHORT], "GIT_BRANCH": code.branch, "CUDA_VERSION": options.cuda_version}
    declared = set(re.findall(r"^\s*ARG\s+(\w+)", text, re.MULTILINE | re.IGNORECASE))
    return {name: value for name, value in given.items() if name in declared}


_UPLOAD_S = 6 * 3600.0


class BeakerImages:
    """Images of a Beaker account; implements `windlass.compat.mason.build.ImageStore`.

    Uploads are done by the client, which uses Docker's socket (DOCKER_HOST).
    """

    def __init__(self, service: BeakerService) -> None:
        self._service = service

    def user(self) -> str:
        """Return the user's name."""
        return self._service.user()

    def find(self, name: str) -> UploadedImage | None:
        """Return the image with this full name, or None if there is none."""
        from beaker.exceptions import BeakerImageNotFound  # lazy: the client costs half a second

        with self._service.asking(f"looking up the image {name}") as client:
            try:
                image = client.image.get(name)
            except BeakerImageNotFound:
                return None
        return UploadedImage(id=image.id, description=image.description)

    def unname(self, image: UploadedImage) -> None:
        """Remove an image's name; it remains available by its id."""
        with self._service.asking(f"removing the name of image {image.id}") as client:
            client.image.update(client.image.get(image.id), name="")

    def upload(self, name: str, tag: str, *, workspace: str, description: str) -> None:
        """Upload an image from Docker; blocks for minutes."""
        with self._service.asking(f"uploading the image {name}", _UPLOAD_S) as client:
            place = client.workspace.get(workspace) if workspace else None
            client.image.create(name, tag, workspace=place, description=description, commit=True)
