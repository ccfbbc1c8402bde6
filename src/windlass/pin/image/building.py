"""Building of an image with the builder that an engine has; the command lines are pure.

Source: docker-build(1), docker buildx build, buildah-build(1); BuildKit, "Inline cache".
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, WindlassError
from windlass.pin.image.engine import ImageEngine
from windlass.pin.image.faults import explain_fault

__all__ = ["Builder", "ImageRecipe", "build", "build_command", "build_failure", "find_builder", "num_cached"]

_TIMEOUT_S = 12 * 3600.0
_NUM_LINES = 12
_CACHED = re.compile(r"^#\d+ CACHED|^ ?-+> Using cache", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STEPS = (
    re.compile(r"^ > \[[^\]]*\] ?(?P<step>.+?):?$", re.MULTILINE),
    re.compile(r'building at STEP "(?P<step>.+?)": ', re.MULTILINE),
    re.compile(r"^(?:Step \d+/\d+ : |STEP \d+(?:/\d+)?: )(?P<step>.+)$", re.MULTILINE),
)
_NOT_A_STEP = re.compile(
    r"no space left|disk quota|pull access denied|failed to (?:do request|resolve|authorize)|manifest unknown|"
    r"unexpected EOF|connection re(?:set|fused)",
    re.IGNORECASE,
)

Flavour = Literal["buildx", "buildkit", "classic", "buildah"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Builder that an engine has.

    Attributes:
        flavour: `buildx`; `buildkit`, built into an engine; `classic`; `buildah`, built into podman.
        is_separate: whether it runs in a separate container, so that its cache must be exported and images loaded.
        needs_host_network: whether the engine has no separate network for the steps.
    """

    flavour: Flavour
    is_separate: bool = False
    needs_host_network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe:
    """Image to build.

    Attributes:
        secrets: path of the file with each secret's value, never the value.
        cache: image (`registry/name:tag`) whose layers are reused, and which the next build updates.
        local_cache: folder for the layers of a builder without its own cache.
    """

    context: Path
    dockerfile: Path
    tag: str
    target: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    cache: str = ""
    local_cache: Path | None = None
    platform: str = ""


def find_builder(engine: ImageEngine) -> Builder:
    """Return an engine's best builder: buildx, or else BuildKit, or else the classic one. Takes a few short calls."""
    if engine.kind != "docker":
        return Builder(flavour="buildah")
    needs_host = engine.call("network", "inspect", "bridge").code != 0
    if engine.call("buildx", "version").code == 0:
        driver = re.search(r"^Driver:\s*(\S+)", engine.call("buildx", "inspect").stdout, re.MULTILINE)
        is_separate = driver is not None and driver.group(1) != "docker"
        return Builder(flavour="buildx", is_separate=is_separate, needs_host_network=needs_host)
    version = engine.call("version", "--format", "{{.Client.Version}} {{.Server.Version}}").stdout.split()
    majors = [int(found.group()) for each in version if (found := re.match(r"\d+", each))]
    # From 23 on the client leaves BuildKit to the plugin; before 18 the engine had none.
    has_buildkit = len(majors) == 2 and majors[0] < 23 and majors[1] >= 18
    return Builder(flavour="buildkit" if has_buildkit else "classic", needs_host_network=needs_host)


def build_command(engine: ImageEngine, builder: Builder, recipe: ImageRecipe) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and variables for the build command; pure.

    Raises:
        PreconditionError: it needs secrets, and the builder cannot keep them out of the image.
    """
    if recipe.secrets and builder.flavour == "classic":
        raise PreconditionError(
            f"the classic builder of `{engine.program}` cannot keep secrets ({', '.join(recipe.secrets)}) out of the image",
            hint="install the buildx plugin, or build with podman",
            code="program-missing",
        )
    arguments = ["buildx", "build"] if builder.flavour == "buildx" else ["build"]
    arguments += {"buildah": ["--layers"], "classic": ["--force-rm"]}.get(builder.flavour, ["--progress=plain"])
    if builder.flavour == "buildx":
        arguments.append("--load")
    if builder.needs_host_network:
        arguments.append("--network=host")
    if recipe.platform and builder.flavour != "classic":
        arguments.append(f"--platform={recipe.platform}")
    arguments += _cache_arguments(builder, recipe)
    if recipe.target:
        arguments.append(f"--target={recipe.target}")
    arguments += [f"--build-arg={name}={value}" for name, value in recipe.args.items()]
    arguments += [f"--label={name}={value}" for name, value in recipe.labels.items()]
    arguments += [f"--secret=id={name},src={path}" for name, path in recipe.secrets.items()]
    arguments += [f"--file={recipe.dockerfile}", f"--tag={recipe.tag}", str(recipe.context)]
    variables = {"buildkit": {"DOCKER_BUILDKIT": "1"}, "classic": {"DOCKER_BUILDKIT": "0"}}.get(builder.flavour, {})
    return arguments, variables


def _cache_arguments(builder: Builder, recipe: ImageRecipe) -> list[str]:
    if builder.flavour == "buildah":
        repository = recipe.cache.rpartition(":")[0]
        return [f"--cache-from={repository}", f"--cache-to={repository}"] if repository else []
    if builder.is_separate and recipe.cache:
        where = f"type=registry,ref={recipe.cache}"
        return [f"--cache-from={where}", f"--cache-to={where},mode=max"]
    if builder.is_separate and recipe.local_cache is not None:
        return [
            f"--cache-from=type=local,src={recipe.local_cache}",
            f"--cache-to=type=local,dest={recipe.local_cache},mode=max",
        ]
    inline = ["--build-arg=BUILDKIT_INLINE_CACHE=1"] if recipe.cache and builder.flavour != "classic" else []
    return [*inline, f"--cache-from={recipe.cache}"] if recipe.cache else []


def build(engine: ImageEngine, builder: Builder, recipe: ImageRecipe, log: Path, secrets: Mapping[str, bytes]) -> None:
    """Build the image and tag it; the output goes to `log`. Blocking.

    Raises:
        PreconditionError: a step failed (`build-failed`); the message has its last lines.
    """
    with _hidden(secrets) as files:
        arguments, variables = build_command(engine, builder, replace(recipe, secrets=files))
        done = engine.call(*arguments, variables=variables, timeout_s=_TIMEOUT_S, log=log, cwd=recipe.context)
    if done.code != 0:
        raise build_failure(log, recipe.tag, done.code)


@contextlib.contextmanager
def _hidden(secrets: Mapping[str, bytes]) -> Iterator[dict[str, Path]]:
    """Yield the secrets as anonymous files in memory, so that nothing is left if this process is killed."""
    descriptors: dict[str, int] = {}
    try:
        for name, value in secrets.items():
            descriptors[name] = os.memfd_create(name)
            os.write(descriptors[name], value)
        yield {name: Path(f"/proc/{os.getpid()}/fd/{number}") for name, number in descriptors.items()}
    finally:
        for number in descriptors.values():
            os.close(number)


def num_cached(log: str) -> int:
    """Return the number of steps in a build log that were taken from a cache."""
    return len(_CACHED.findall(log))


def build_failure(log: Path, name: str, code: int) -> WindlassError:
    """Return the error for a failed build, with the step, its last lines, and the log's path."""
    text = _ANSI.sub("", log.read_text(errors="replace"))
    tail = "\n".join(text.splitlines()[-40:])
    if _NOT_A_STEP.search(tail):
        found = explain_fault(_fault_line(tail), f"build {name}", name)
        return type(found)(f"{found.message} (log: {log})", hint=found.hint, code=found.code)
    step = next((steps[-1].group("step") for each in _STEPS if (steps := list(each.finditer(text)))), "")
    lines = _last_lines(text)
    at = f" at `{step}`" if step else ""
    shown = "".join(f"\n  {line}" for line in lines)
    return PreconditionError(
        f"building the image {name} failed{at}:{shown}",
        hint=f"the full output is in {log}; correct the step and commit",
        code="build-failed",
    )


def _fault_line(tail: str) -> str:
    lines = [line for line in tail.splitlines() if _NOT_A_STEP.search(line)]
    return lines[-1]


def _last_lines(text: str) -> Sequence[str]:
    """Return the last lines of the failed step; BuildKit numbers the steps and mixes their output."""
    failed = re.findall(r"^#(\d+) ERROR: (.*)$", text, re.MULTILINE)
    if failed:
        number, error = failed[-1]
        said = re.findall(rf"^#{number} [\d.]+ (.*)$", text, re.MULTILINE)
    else:
        said, error = text.splitlines(), ""
    return [line.rstrip() for line in (*said, error) if line.strip()][-_NUM_LINES:]
