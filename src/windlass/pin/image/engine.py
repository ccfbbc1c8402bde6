"""Interface to docker, podman and buildah: inspects, pulls, pushes and tags images.

Everything goes through their command lines, with the user's own configuration and logins.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, PreconditionError, UnreachableError
from windlass.core.json_text import decode_json
from windlass.core.process import Completed, run
from windlass.pin.image.faults import explain_fault, is_passing

__all__ = ["ImageEngine", "ImageFacts", "find_engine"]

_LOOK_TIMEOUT_S = 60.0
_MOVE_TIMEOUT_S = 6 * 3600.0
_PAUSES_S = (1.0, 4.0, 15.0)
_VARIABLES = {"docker": "WINDLASS_DOCKER", "podman": "WINDLASS_PODMAN", "buildah": "WINDLASS_BUILDAH"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """Identity, size and settings of an image that an engine has.

    Attributes:
        image_id: `sha256:...` of its configuration, by which the engine identifies its content.
        digests: `name@sha256:...` for each registry it was pulled from or pushed to.
        platform: `linux/amd64`, ...
    """

    image_id: str
    digests: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    platform: str = ""
    size_bytes: int = 0

    def digest_of(self, name: str) -> str:
        """Return the image's digest at the registry in `name`; empty if unknown."""
        for each in self.digests:
            known, _, digest = each.partition("@")
            if known in (name, f"docker.io/{name}", f"docker.io/library/{name}", f"localhost/{name}"):
                return digest
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEngine:
    """Container engine, called through its program.

    Attributes:
        kind: `docker`, `podman` or `buildah`.
        program: the program to call; `WINDLASS_DOCKER`, `WINDLASS_PODMAN` and `WINDLASS_BUILDAH` override it.
        pause: called to wait between attempts.
    """

    kind: str
    program: str
    pause: Callable[[float], None] = time.sleep

    def call(
        self,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        timeout_s: float = _LOOK_TIMEOUT_S,
        log: Path | None = None,
        cwd: Path | None = None,
    ) -> Completed:
        """Run the program until it exits, whatever its exit code.

        With `log`, its output is written there as it appears.
        """
        argv = [self.program, *arguments]
        if log is not None:
            argv = ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', str(log), *argv]
        environment = {**os.environ, "LC_ALL": "C", "NO_COLOR": "1", **(variables or {})}
        done = run(argv, env=environment, timeout_s=timeout_s, cwd=cwd)
        if done.code != 0:
            self._check_answer(done.stderr)
        return done

    def look(self, *names: str) -> dict[str, ImageFacts]:
        """Return the facts about those images that exist, by requested name. One process (podman: one for each image).

        Raises:
            UnreachableError: the engine does not respond.
        """
        if self.kind == "buildah":
            asked = {name: self.call("inspect", "--type", "image", name) for name in names}
            return {name: self._facts(done, _of_buildah) for name, done in asked.items() if done.code == 0}
        found: dict[str, ImageFacts] = {}
        for name in names:  # missing images are omitted from the output, so one call cannot tell which is which
            done = self.call("image", "inspect", name)
            if done.code == 0:
                found[name] = self._facts(done, lambda answer: _of_docker(answer[0]))
        return found

    def _facts(self, done: Completed, read: Callable[[Any], ImageFacts]) -> ImageFacts:
        try:
            return read(decode_json(done.stdout))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
            raise UnreachableError(
                f"`{self.program} {' '.join(done.argv[1:3])}` does not respond like {self.kind}: {error!r:.200}",
                hint=f"run it yourself, or name another program in {_VARIABLES[self.kind]}",
                code="engine-failed",
            ) from error

    def find(self, name: str) -> ImageFacts | None:
        """Return the facts about one image; None if it does not exist."""
        return self.look(name).get(name)

    def pull(self, reference: str, log: Callable[[str], None]) -> None:
        """Pull an image; layers that arrived before an interruption are kept. Blocking; tried up to four times.

        Raises:
            WindlassError: the registry denies access, has no such image, or its content does not match the digest.
        """
        arguments = ("pull", reference) if self.kind != "docker" else ("pull", "--quiet", reference)
        self._move(arguments, f"pull {reference}", reference, log)

    def push(self, reference: str, log: Callable[[str], None]) -> None:
        """Push an image; layers that the registry has are not sent again. Blocking; tried up to four times."""
        arguments = ("push", "--quiet", reference) if self.kind != "buildah" else ("push", reference)
        self._move(arguments, f"push {reference}", reference, log)

    def tag(self, image: str, name: str) -> None:
        """Add a name to an image; idempotent."""
        done = self.call("tag", image, name)
        if done.code != 0:
            raise explain_fault(done.stderr, f"{self.kind} tag {name}", name)

    def remove(self, name: str) -> bool:
        """Remove a name, and the image with its last name; return False if the name did not exist."""
        return self.call(*(("rmi",) if self.kind == "buildah" else ("image", "rm")), name).code == 0

    def _move(self, arguments: tuple[str, ...], what: str, reference: str, log: Callable[[str], None]) -> None:
        for pause_s in (*_PAUSES_S, None):
            done = self.call(*arguments, timeout_s=_MOVE_TIMEOUT_S)
            if done.code == 0:
                return
            said = done.stderr or done.stdout
            if pause_s is None or not is_passing(said):
                raise explain_fault(said, f"{self.kind} {what}", reference)
            log(
                f"{self.kind} {what}: {said.strip().splitlines()[-1] if said.strip() else 'failed'}; again in {pause_s:g} s"
            )
            self.pause(pause_s)

    def _check_answer(self, said: str) -> None:
        text = said.lower()
        if "permission denied" in text and ("trying to connect" in text or "dial unix" in text):
            raise AccessError(
                f"permission denied by the engine of `{self.program}`",
                hint="ask an administrator to add you to the group `docker`, or use `--on podman`",
                code="engine-failed",
            )
        if "cannot connect to the docker daemon" in text or "cannot connect to podman" in text:
            raise UnreachableError(
                f"cannot connect to the engine of `{self.program}`: {said.strip().splitlines()[-1]}",
                hint="start it (`systemctl start docker`), or set DOCKER_HOST",
                code="engine-failed",
            )


def find_engine(kind: str = "") -> ImageEngine:
    """Return the named engine (`docker`, `podman`); without a name, the first one that is installed.

    Raises:
        PreconditionError: none is installed (`program-missing`).
    """
    for each in (kind,) if kind else ("docker", "podman", "buildah"):
        program = os.environ.get(_VARIABLES[each]) or each
        if shutil.which(program) is not None:
            return ImageEngine(kind=each, program=program)
    wanted = kind or "docker, podman or buildah"
    raise PreconditionError(
        f"{wanted} is not installed or not on the PATH",
        hint=f"install {kind or 'one of them'}, or name the program in {_VARIABLES[kind or 'docker']}",
        code="program-missing",
    )


def _of_docker(data: Mapping[str, Any]) -> ImageFacts:
    config = data.get("Config") or data.get("ContainerConfig") or {}
    return ImageFacts(
        image_id=_full(data["Id"]),
        digests=_texts(data.get("RepoDigests") or ()),
        tags=_texts(data.get("RepoTags") or ()),
        labels=_labels(config),
        workdir=_text(config.get("WorkingDir") or "/"),
        platform=f"{data.get('Os', 'linux')}/{data.get('Architecture', '')}",
        size_bytes=int(data.get("Size") or 0),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not a text")
    return value


def _texts(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(_text(value) for value in values)


def _labels(config: Mapping[str, Any]) -> Mapping[str, str]:
    return {name: _text(value) for name, value in (config.get("Labels") or {}).items()}


def _of_buildah(data: Mapping[str, Any]) -> ImageFacts:
    image = data.get("OCIv1") or {}
    config = image.get("config") or {}
    name = str(data.get("FromImage", "")).rpartition(":")[0]
    digest = data.get("FromImageDigest")
    return ImageFacts(
        image_id=_full(data["FromImageID"]),
        digests=(f"{name}@{digest}",) if name and digest else (),
        tags=(str(data.get("FromImage", "")),),
        labels=_labels(config),
        workdir=_text(config.get("WorkingDir") or "/"),
        platform=f"{image.get('os', 'linux')}/{image.get('architecture', '')}",
    )


def _full(image_id: str) -> str:
    return image_id if image_id.startswith("sha256:") else f"sha256:{image_id}"
